"""Saves and loads the state of a run. A checkpoint exists when its manifest does."""
