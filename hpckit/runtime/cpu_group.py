"""hpckit's own process groups on the CPU, next to those of the user.

gloo connects every rank of a group with every other one at once: one socket per pair, in each group. Our
groups connect a pair only when it first communicates, and our collectives let few pairs communicate.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_LAZY = "TORCH_GLOO_LAZY_INIT"
"""Read by torch (2.8 or newer) whenever a gloo group is made; the only way it offers."""
OWN = "hpckit"
"""Describes our groups, apart from those of the user."""


def make_gloo_group_of_all_ranks(timeout: timedelta | None = None) -> Any:
    """Return a new gloo group of all ranks; collective, on the main thread.

    `timeout` bounds each of its operations; without it torch's own timeout applies. The user's
    groups are connected as before, whether they are made earlier or later.
    """
    is_users = _LAZY in os.environ
    os.environ.setdefault(_LAZY, "1")
    try:
        return dist.new_group(backend="gloo", timeout=timeout, group_desc=OWN)
    finally:
        if not is_users:
            os.environ.pop(_LAZY, None)
