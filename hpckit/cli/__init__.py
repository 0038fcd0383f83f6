"""Speaks with the user: options, output, exit codes. It decides nothing."""
