"""Sums up a profile of steps."""
