"""Verdicts on runs: a rule each, with all their numbers in thresholds."""
