"""Composes configurations: Hydra's only home. Nothing is composed on a node."""
