"""Finds, verifies and exports checkpoints. Only a run writes them."""
