"""Attention over a sequence that is cut over ranks."""
