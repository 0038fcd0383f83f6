"""hpckit: from a Hydra config to a finished run on Slurm, whatever breaks on the way.

Responsible for the public names a training script needs; it must not import torch, Hydra or
submitit by itself, so that `hpckit --help` stays as fast as Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpckit.runtime.rank.attach import attach as attach
    from hpckit.runtime.rank.run import Run as Run

__all__ = ["Run", "__version__", "attach"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import `Run` and `attach` when first asked for (PEP 562)."""
    if name in {"Run", "attach"}:
        from hpckit.runtime.rank import attach, run  # noqa: PLC0415 - see the module docstring

        return run.Run if name == "Run" else attach.attach
    raise AttributeError(f"module 'hpckit' has no attribute {name!r}")
