"""Logged metrics: written by ranks, read as an effective history."""
