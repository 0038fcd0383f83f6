"""Verdicts on runs, and what they rest on. The rules are in planning/diagnosis."""
