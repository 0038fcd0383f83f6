"""Verbs that start runs, or say what would start: launch, check, resume, rerun, watch."""
