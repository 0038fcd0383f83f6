"""Process groups of hpckit's own, on the CPU, beside those of the user.

Responsible for how they are made; it must not know what they are for. gloo connects every rank of a
group with every other one at once: a socket a pair, in each group. Ours connect a pair when it
first talks, and our collectives let few pairs talk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_LAZY = "TORCH_GLOO_LAZY_INIT"
"""Read by torch (2.8 or newer) whenever a gloo group is made; the only way it offers."""


def make_cpu_group(timeout: timedelta | None = None) -> Any:
    """Return a new gloo group of all ranks; collective, on the main thread.

    `timeout` bounds each of its operations; without it torch's own does. The user's groups are
    connected as before, whether they are made earlier or later.
    """
    with _connecting_at_first_use():
        return dist.new_group(backend="gloo", timeout=timeout)


@contextmanager
def _connecting_at_first_use() -> Iterator[None]:
    """Set torch's variable for this moment, unless the user has set it."""
    if _LAZY in os.environ:
        yield
        return
    os.environ[_LAZY] = "1"
    try:
        yield
    finally:
        os.environ.pop(_LAZY, None)
