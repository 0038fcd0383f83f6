"""Batches of a rank, by the number of the step's first sample, never by what was read."""
