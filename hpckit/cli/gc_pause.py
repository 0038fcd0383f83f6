"""Python's collector of cycles, put aside while a verb reads and shows many runs.

Responsible for that switch; it must not be used by what lives long.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collect no cycles for a while: of ten thousand runs that takes a third of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
