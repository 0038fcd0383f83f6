"""What runs can be exported to, and which extra each kind needs.

A kind's module is imported when it is asked for: trackers are slow to import, and optional.
"""

from __future__ import annotations

import importlib
from enum import StrEnum
from types import ModuleType

from hpckit.errors import UsageError


class ExportKind(StrEnum):
    """The forms that an export can have."""

    csv = "csv"
    jsonl = "jsonl"
    openmetrics = "openmetrics"
    trace = "trace"
    tensorboard = "tensorboard"
    wandb = "wandb"
    mlflow = "mlflow"

    @property
    def is_tracker(self) -> bool:
        """Whether the target is a folder that a tracker's own library writes."""
        return self in _TRACKERS

    @property
    def marks_undone(self) -> bool:
        """Whether the form can hold values that were undone."""
        return self in {ExportKind.csv, ExportKind.jsonl}


_TRACKERS = {
    ExportKind.tensorboard: "tensorboard_files",
    ExportKind.wandb: "wandb_folders",
    ExportKind.mlflow: "mlflow_store",
}


def tracker_module(kind: ExportKind) -> ModuleType:
    """Import the module that writes a tracker's files; raises UsageError without its library."""
    try:
        return importlib.import_module(f"hpckit.operations.export.{_TRACKERS[kind]}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("hpckit"):
            raise
        raise UsageError(
            f"an export to {kind} needs {error.name}, which is not installed",
            hint=f"pip install 'hpckit-slurm[{kind}]'; csv and jsonl need nothing",
        ) from error
