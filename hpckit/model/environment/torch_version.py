"""Which versions of torch hpckit works with. Pure.

All tests of checkpoints, data, ranks and layouts pass with the oldest ones. Older ones are refused:
some fail in the first save, others load wrong values without a word.
"""

from __future__ import annotations

from hpckit.errors import UsageError
from hpckit.patterns import lazy_pattern

OLDEST_TORCH = (2, 9)
OLDEST_FOR_LAYOUTS = (2, 12)
"""Of layouts other than data parallelism: `fully_shard` with DTensor restores other values from a
checkpoint in 2.9."""

_VERSION = lazy_pattern(r"v?(\d+)(?:\.(\d+))?")


def is_version_older(version: str | None, oldest: tuple[int, int]) -> bool:
    """Return whether a version is older; one that cannot be read is not.

    ```python
    is_version_older("2.8.0a0+git1234", (2, 9))  # True
    ```
    """
    found = _VERSION.match(version or "")
    return found is not None and (int(found[1]), int(found[2] or 0)) < oldest


def check_torch_version(
    version: str, what: str = "a run of hpckit", oldest: tuple[int, int] = OLDEST_TORCH
) -> None:
    """Raise UsageError if this version of torch is too old for `what`."""
    if is_version_older(version, oldest):
        raise UsageError(
            f"torch {version} is installed, and {what} needs torch {format_version(oldest)} or newer",
            hint=suggest_torch_upgrade(oldest),
        )


def suggest_torch_upgrade(oldest: tuple[int, int]) -> str:
    """Return what to do about a torch that is too old."""
    return (
        f"pip install 'torch>={format_version(oldest)}' there, or name a Python that has it: "
        "cluster.python=/path/to/python"
    )


def format_version(version: tuple[int, int]) -> str:
    """Return a version as it is written: `2.9`."""
    return ".".join(map(str, version))
