"""Brings data and environments to each node before its ranks start, and results back.

It must not decide what becomes of a run whose node has failed.
"""
