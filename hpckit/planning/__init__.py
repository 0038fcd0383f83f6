"""Decisions: pure functions. No clock, environment, file or process inside."""
