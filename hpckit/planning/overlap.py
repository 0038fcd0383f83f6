"""How many runs of a launch were under way at the same time as each of them. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)


def runs_together(spans: Mapping[_Key, tuple[datetime, datetime]]) -> Mapping[_Key, float]:
    """Return by how many each run, or attempt, has to be divided so that all together count once.

    `spans` are the beginning and end of each, by its key. The result is 1 for a run that was
    alone, 2 for one that always had one other beside it, and in between for a part of the time: the
    run's time over the integral of 1 / (number of runs under way).

    ```python
    runs_together({0: (nine, ten), 1: (nine, ten), 2: (ten, eleven)})  # {0: 2.0, 1: 2.0, 2: 1.0}
    ```
    """
    moments = sorted({moment for begin, end in spans.values() for moment in (begin, end)})
    changes = dict.fromkeys(moments, 0)
    for begin, end in spans.values():
        if begin < end:
            changes[begin] += 1
            changes[end] -= 1
    count, passed = 0, 0.0
    # Seconds of a run's own until a moment: those of the clock over the number of runs.
    own = {moments[0]: 0.0} if moments else {}
    for before, after in pairwise(moments):
        count += changes[before]
        passed += (after - before).total_seconds() / max(count, 1)
        own[after] = passed
    return {
        index: (
            # A sum of fractions may be off by its last bits.
            max(1.0, (end - begin).total_seconds() / (own[end] - own[begin]))
            if begin < end
            else 1.0
        )
        for index, (begin, end) in spans.items()
    }
