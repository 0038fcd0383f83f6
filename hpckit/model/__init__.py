"""The vocabulary: frozen dataclasses and enums.

Standard library only; no file, clock or environment.
"""
