"""Cuts models and batches over ranks, and runs their steps. Sizes are chosen in planning/layout."""
