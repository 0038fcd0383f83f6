"""Verbs that show something. They change no run."""
