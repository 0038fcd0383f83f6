"""Random number generators of this process: random, numpy and torch, CPU and CUDA.

Captures and sets their states.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def capture_rng() -> dict[str, Any]:
    """Return the states of all generators in use."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if _cuda():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def load_state_dict(states: dict[str, Any]) -> None:
    """Set all generators whose states were captured."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy as np  # noqa: PLC0415  # only if its state was captured

        np.random.set_state(states["numpy"])  # noqa: NPY002  # the generator user code draws from
    if "cuda" in states and _cuda():
        torch.cuda.set_rng_state(states["cuda"])


def reseed(seed: int, step: int) -> None:
    """Seed all generators from seed and step, the same on every rank as at the start of a run."""
    value = int.from_bytes(hashlib.sha256(f"{seed}/{step}".encode()).digest()[:4])
    random.seed(value)
    torch.manual_seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value)


def _cuda() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
