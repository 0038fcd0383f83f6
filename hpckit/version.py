"""The version of hpckit, on its own: whoever needs it imports no public name."""

__version__ = "0.1.0"
