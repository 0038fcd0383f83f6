"""Requests to a running run: a shell, a fault, a profile, another size."""
