"""Collects the facts of login and compute nodes for `doctor --env`."""
