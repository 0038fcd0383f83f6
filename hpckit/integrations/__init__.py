"""Trainers that people have already, a file each, in a run's steps and checkpoints. The core imports none."""

from importlib import import_module


def __getattr__(name: str) -> object:
    """Import an integration when it is first asked for: `hpckit.integrations.lightning.Callback()`."""
    if name in {"accelerate", "lightning", "transformers"}:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
