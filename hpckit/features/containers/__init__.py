"""Runs in an image: what starts the container of each node, what is in it, and whether it fits the node."""
