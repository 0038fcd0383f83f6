"""Measures a node before ranks start on it. Judging is the task of planning/preflight."""
