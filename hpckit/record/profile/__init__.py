"""Reads traces of a profiler."""
