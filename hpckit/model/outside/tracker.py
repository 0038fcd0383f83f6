"""What a user may configure of trackers: the section `tracker`, as `model/launch.py` has others.

`scripts/config_reference.py` takes the docstrings below the fields.
"""

from __future__ import annotations

from enum import StrEnum

from hpckit.values import dataclass


class TrackerKind(StrEnum):
    """Which tracker the code of a run uses."""

    none = "none"
    """none: no variable is set"""
    wandb = "wandb"
    """Weights & Biases"""
    mlflow = "mlflow"
    """MLflow"""


class TrackerMode(StrEnum):
    """Whether Weights & Biases sends what it is given."""

    online = "online"
    """at once"""
    offline = "offline"
    """not at all: `wandb sync` does, later"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracker:
    """Variables for a tracker that your own code calls in the ranks.

    They are the same in every attempt of a run. Values that you set in `env` take their place. The
    [guide](../guides/notify-and-trackers.md#trackers) lists them.
    """

    kind: TrackerKind = TrackerKind.none
    """Which tracker your code uses."""
    project: str | None = None
    """Project of W&B, or experiment of MLflow. Null: `WANDB_PROJECT` or `MLFLOW_EXPERIMENT_NAME` of
    the shell that launches, else the name of the project's folder."""
    mode: TrackerMode | None = None
    """Whether W&B sends what rank 0 logs. Null: `WANDB_MODE` of the shell, else W&B's default."""
    uri: str | None = None
    """Where MLflow's server or store is, without a password. Null: `MLFLOW_TRACKING_URI` of the
    shell, else MLflow's default."""
