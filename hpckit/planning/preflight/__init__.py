"""Judges what was measured of nodes before ranks start on them."""
