"""hpckit: from a Hydra config to a finished run on Slurm, whatever breaks on the way.

Responsible for the public names a training script needs; it must not import torch, Hydra or
submitit by itself, so that `hpckit --help` stays as fast as Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpckit.model.parallel.plan import Plan as Plan
    from hpckit.runtime.parallel.initialise import reset_parameters as reset_parameters
    from hpckit.runtime.rank.attach import attach as attach
    from hpckit.runtime.rank.run import Run as Run

__all__ = ["Plan", "Run", "__version__", "attach", "reset_parameters"]
__version__ = "0.1.0"

_HOMES = {
    "Plan": "hpckit.model.parallel.plan",
    "Run": "hpckit.runtime.rank.run",
    "attach": "hpckit.runtime.rank.attach",
    "reset_parameters": "hpckit.runtime.parallel.initialise",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for (PEP 562)."""
    module = _HOMES.get(name)
    if module is not None:
        return getattr(import_module(module), name)
    if name == "integrations":
        return import_module("hpckit.integrations")
    raise AttributeError(f"module 'hpckit' has no attribute {name!r}")
