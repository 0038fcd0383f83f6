"""The vocabulary: dataclasses and enums. Standard library only; no file, clock, environment."""
