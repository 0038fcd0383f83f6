"""Measures, an item a function: takes a scene, returns plain values. Judges nothing."""
