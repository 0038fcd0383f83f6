"""Verbs that change what runs: cancel, grow, shrink, chaos, shell."""
