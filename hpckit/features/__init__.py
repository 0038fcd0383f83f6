"""Capabilities that few runs need, a room each. The core imports none of them."""
