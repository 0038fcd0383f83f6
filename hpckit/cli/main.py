"""The command line (being built)."""


def main() -> int:
    """Run the command line."""
    return 0
