"""Ranks that start by a fork of a process with their imports done."""
