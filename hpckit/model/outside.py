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
    """a run starts again"""
    stalled = "stalled"
    """a run hung"""
    finished = "finished"
    """all runs are over, and nothing starts one again by itself"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notify:
    """Notices that hpckit sends to people or programs.

    Addresses are secrets and not in the configuration: `$HPCKIT_NOTIFY` or a private file has them
    ([guide](../guides/notify-and-trackers.md#notices)).
    """

    events: list[NoticeKind] = field(default_factory=list)
    """What is told, each once."""
    file: str | None = None
    """File with one address per line, for you alone; absolute, or with `~`. Null: `$HPCKIT_NOTIFY`,
    with line breaks between several."""


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
    """no variable is set"""
    wandb = "wandb"
    """Weights & Biases"""
    mlflow = "mlflow"
    """MLflow"""


class TrackerMode(StrEnum):
    """Whether Weights & Biases sends what it is given."""

    online = "online"
    """at once"""
    offline = "offline"
    """only by a later `wandb sync`"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracker:
    """Variables for a tracker that your own code calls in the ranks.

    They are the same in every attempt of a run. Values in `env` win. The
    [guide](../guides/notify-and-trackers.md#trackers) lists them.
    """

    kind: TrackerKind = TrackerKind.none
    """Which tracker your code uses."""
    project: str | None = None
    """W&B project or MLflow experiment. Null: `WANDB_PROJECT` or `MLFLOW_EXPERIMENT_NAME` of the
    launching shell, else the name of the project's folder."""
    mode: TrackerMode | None = None
    """When W&B sends what rank 0 logs. Null: `WANDB_MODE` of the shell, else W&B's default."""
    uri: str | None = None
    """MLflow's server or store, without a password. Null: `MLFLOW_TRACKING_URI` of the shell, else
    MLflow's default."""
