"""What a user may configure of notices (`notify`) and trackers (`tracker`); what a notice says.

`scripts/config_reference.py` takes the docstrings below the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from hpckit.values import dataclass, field

VARIABLE = "HPCKIT_NOTIFY"
"""The variable with the addresses of notices, which are secrets."""


class NoticeKind(StrEnum):
    """What a notice can be about."""

    failed = "failed"
    """a run failed or was interrupted, and nothing starts it again by itself"""
    completed = "completed"
    """a run completed"""
    resumed = "resumed"
    """a run starts again, in the same allocation or in a new one"""
    stalled = "stalled"
    """a run hung, and its ranks were ended"""
    finished = "finished"
    """all runs of the launch are over, and nothing starts one again by itself"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notify:
    """Notices that hpckit sends to people or programs.

    Where they go is a secret, so it is not in the configuration: `$HPCKIT_NOTIFY` or a private file
    names it ([guide](../guides/notify-and-trackers.md#notices)).
    """

    events: list[NoticeKind] = field(default_factory=list)
    """What is told, each once. Empty: nothing."""
    file: str | None = None
    """A file with one address per line, which only you may read; an absolute path, or one with `~`.
    Null: `$HPCKIT_NOTIFY`, where there is more than one address with line breaks between them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UserNotice:
    """One notice. `key` is the name of its files: one event has one key, whoever tells of it.

    `run` is null for the whole launch. `counts` are the states of all runs, `metrics` the latest
    values. `command` shows more.
    """

    key: str
    kind: NoticeKind
    at: datetime
    launch: str
    folder: str
    state: str
    title: str
    text: str
    command: str
    run: str | None = None
    attempt: int | None = None
    cause: str | None = None
    rank: int | None = None
    node: str | None = None
    step: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


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
