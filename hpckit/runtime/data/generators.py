"""Random numbers that datasets draw: they follow from the seed and the sample, nothing else.

So what a transform draws is the same after a restart, with any number of workers and ranks.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hpckit.model.parallel.permutation import mixed


@contextmanager
def kept_generators() -> Iterator[None]:
    """Leave the generators of Python, NumPy and torch (CPU) as they were before."""
    numpy = sys.modules.get("numpy")
    python, tensors = random.getstate(), torch.get_rng_state()
    arrays = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(tensors)
        if numpy is not None:
            numpy.random.set_state(arrays)


def seed_sample(seed: int, number: int) -> None:
    """Seed the generators of Python, NumPy and torch (CPU) for a sample of this number."""
    bits = mixed(seed, number)
    random.seed(bits)
    torch.default_generator.manual_seed(bits)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(bits % 2**32)
