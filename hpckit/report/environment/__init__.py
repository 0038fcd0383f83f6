"""The text of `doctor --env`."""
