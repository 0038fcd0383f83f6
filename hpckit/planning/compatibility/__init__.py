"""Whether the software of nodes goes together."""
