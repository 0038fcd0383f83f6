"""What a user may configure of preflight, telemetry, trackers and notices; what a notice says.

Other sections are in `launch.py`. `scripts/config_reference.py` takes the docstrings below the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from hpckit.values import dataclass, field

VARIABLE = "HPCKIT_NOTIFY"
"""The variable with the addresses of notices, which are secrets."""


class GpuOption(StrEnum):
    """Which option of sbatch asks for GPUs."""

    gpus_per_node = "gpus_per_node"
    """`--gpus-per-node`"""
    gres = "gres"
    """`--gres`, at sites that refuse the other"""


class PreflightLevel(StrEnum):
    """How thoroughly nodes are inspected before they train."""

    auto = "auto"
    """`fast` if the run asks for GPUs, else `off`"""
    off = "off"
    """no inspection"""
    fast = "fast"
    """what can be read; 15 seconds"""
    medium = "medium"
    """also what can be computed; 60 seconds"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """Agents inspect nodes before a run trains on them ([guide](../guides/preflight.md))."""

    level: PreflightLevel = PreflightLevel.auto
    """How thoroughly nodes are inspected."""
    limit_s: float | None = None
    """How long a node's answer is awaited; then its health is unknown, without consequence. Null:
    15, for `medium` 60."""
    avoid: bool = True
    """Leave out nodes on which your runs found faults lately (`hpckit nodes`)."""
    clock_s: float = 30.0
    """How far a node's clock may differ from the others'."""


LIMITS_S = {PreflightLevel.fast: 15.0, PreflightLevel.medium: 60.0}


def preflight_answer_limit_s(settings: Preflight, level: PreflightLevel) -> float:
    """Return how long the answer of a node is awaited, in seconds."""
    return LIMITS_S[level] if settings.limit_s is None else settings.limit_s


class ProfileTool(StrEnum):
    """What records a profile."""

    torch = "torch"
    """torch's own profiler; hpckit sums up its traces"""
    nsys = "nsys"
    """Nsight Systems: the ranks start below `nsys profile`, if the node has it"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Profiles that are planned; `hpckit profile` asks for one at any time."""

    at_step: int | None = None
    """First step to profile, in each round that comes to it. Null: no profile is planned."""
    steps: int = 5
    """Steps of a planned profile."""
    ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks to profile, 64 at most. With `tool: nsys` they start below nsys."""
    tool: ProfileTool = ProfileTool.torch
    """What records the profile."""

    @property
    def is_profiling_planned(self) -> bool:
        """Whether ranks are profiled, or may be by nsys, without being asked to."""
        return self.at_step is not None or self.tool is ProfileTool.nsys


@dataclass(frozen=True, kw_only=True, slots=True)
class Observe:
    """What each node measures of itself: its GPUs, host and networks.

    A thread of the node's agent measures, never a rank. The [launch
    folder](run-folder.md#telemetry) has the results.
    """

    interval_s: float = 5.0
    """Time between two samples, at least 0.5. 0: nothing is measured."""
    row_s: float = 30.0
    """Time of a row, 3600 at most: minimum, mean, maximum and 95th percentile of its samples."""
    measure_gpus: bool = True
    """Measure GPUs."""
    gpm: bool = True
    """Measure multiprocessors, tensor cores and memory of GPUs that have counters for them (Hopper
    and later)."""
    measure_host: bool = True
    """Measure processors, memory, pressure, disks and networks."""
    measure_steps: bool = True
    """Measure what each rank's steps wait for, and compare ranks."""
    max_mb: float = 60.0
    """All telemetry of a node in a run. Older rows are merged into coarser ones, sooner if there is
    less room."""
    printed_metrics: list[str] = field(default_factory=list)
    """Metrics to take from what rank 0 prints ([rules](../guides/command.md#metrics)): names in
    front of a number, or regular expressions with named groups."""
    profile: Profile = field(default_factory=Profile)
    memory_snapshot: bool = False
    """When GPU memory runs out, write where it was allocated: [a
    snapshot](../guides/profile.md#when-gpu-memory-runs-out)."""


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
    """Kinds of notices to send, each once."""
    file: str | None = None
    """File with one address per line, for you alone; absolute, or with `~`. Null: `$HPCKIT_NOTIFY`,
    with line breaks between several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UserNotice:
    """One notice. `key` is the name of its files: one event has one key, whoever sends it.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """The snapshot of your project."""

    snapshot: bool = True
    """Freeze a copy of the code. False: runs use the project itself, with your later edits."""
    root: str | None = None
    """Folder to copy. Null: the git checkout around the working directory, else that directory."""
    paths: list[str] = field(default_factory=lambda: [".", "src"])
    """Folders below `root` for PYTHONPATH."""
    max_mb: float = 200.0
    """Largest snapshot; a larger one is refused."""
    secrets: list[str] = field(default_factory=list)
    """Files, folders or globs to copy although they look like secrets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a launch may cost at most; beyond it nothing is submitted."""

    gpu_hours: float | None = None
    """GPU-hours of all runs, each once and for its whole time limit. Null: no limit."""
