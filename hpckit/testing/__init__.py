"""Fake hardware, which users' tests may take, too."""
