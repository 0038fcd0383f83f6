"""Layouts of ranks, the order of samples and of sums, as numbers. No tensors."""
