"""What a user may configure, with types and defaults; also Hydra's schema.

Responsible for the names of configuration; it must not read files or know about Hydra. Numbers
carry their unit in the name; `resources` uses submitit's names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MISSING: Any = "???"
"""OmegaConf's mark for a mandatory value; spelt out here so that the model stays pure."""


class ClusterKind(StrEnum):
    """Where runs go. `auto` becomes `slurm` where `sbatch` is on PATH, else `local`."""

    auto = "auto"
    local = "local"
    slurm = "slurm"


class DeviceKind(StrEnum):
    """Which device ranks train on. `auto` takes a GPU where the rank sees one."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class WorkingFolder(StrEnum):
    """Where the ranks of a run start, and relative paths lead.

    `run`: a folder of the run's own, in which the frozen code is to be seen; `code`: the frozen
    code, read-only and shared by all runs of a launch; `project`: the folder it was launched from.
    """

    run = "run"
    code = "code"
    project = "project"


class DrainPolicy(StrEnum):
    """What a run does when a node it runs on is being drained.

    `move`: start a new round with a spare node, where there is one; `leave`: where there is none,
    save and ask for a new attempt; `ignore`: nobody asks.
    """

    move = "move"
    leave = "leave"
    ignore = "ignore"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Site facts: what is true of the cluster, whoever runs there.

    `partitions` lists the partitions that exist (empty: not checked before submission);
    `cpus_per_node` is what a node has to give to ranks (null: not checked);
    `bin_dir` is where sbatch and its siblings lie when they are not on PATH; `setup` are shell
    lines for the top of the batch script, verbatim; `service_partition` and `service_qos` are where
    hpckit's own small jobs go, which resume runs and hand them in, each one CPU without GPUs (null:
    where the runs go); `max_parallel` is how many runs of a sweep
    the local executor keeps going at a time.
    """

    kind: ClusterKind = ClusterKind.auto
    partition: str | None = None
    partitions: list[str] = field(default_factory=list)
    account: str | None = None
    qos: str | None = None
    gpus_per_node: int = 0
    cpus_per_node: int | None = None
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    python: str | None = None
    bin_dir: str | None = None
    service_partition: str | None = None
    service_qos: str | None = None
    template: str = "job.sbatch.j2"
    srun_args: list[str] = field(default_factory=list)
    max_parallel: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What one run needs, in submitit's words.

    `mem_gb` is per node; `timeout_min` is Slurm's time limit (null: the partition's default);
    `spare_nodes` are allocated beside `nodes` and stand in for one that is lost; `min_nodes` is
    how far a run may shrink inside its allocation before it waits for a new one (null: not);
    `additional_parameters` goes to sbatch as it is, for what is not named here.
    """

    nodes: int = 1
    min_nodes: int | None = None
    spare_nodes: int = 0
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    mem_gb: float | None = None
    timeout_min: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    reservation: str | None = None
    gres: str | None = None
    exclusive: bool = False
    dependency: str | None = None
    comment: str | None = None
    mail_type: str | None = None
    mail_user: str | None = None
    array_parallelism: int = 256
    additional_parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Where state is kept, and how often it is saved.

    `dir` null means the run's own folder; `keep` is how many proved checkpoints stay. The interval
    is `interval_steps`, else `interval_min`, else it follows from the measured cost of a save and
    from `mtbf_hours`, the expected time between failures of the run. `patience_s` is for how
    long a run's last state is tried to be saved, before the run fails.
    """

    dir: str | None = None
    keep: int = 3
    interval_steps: int | None = None
    interval_min: float | None = None
    mtbf_hours: float = 24.0
    patience_s: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """What happens after a failure.

    `requeue` lets Slurm start the run again: after a preemption, a node failure, at the time limit;
    `queue_successor` queues the next attempt ahead instead, which saves Slurm's delay.
    `restarts` is, for each cause (model.failure.Cause), how often the run is started again after
    it without getting further; a step further than ever before refills all of them, and causes
    that are not named get none. After `max_identical_failures` of one signature without
    progress the run ends, whatever is left. A node is left out once `node_failures` were its own.
    The first restart is at once, later ones after `backoff_s`, doubled each time. A loss that was
    logged `nan_patience` times in a row without being finite is a failure (0: never). `on_drain`
    is what follows when a node is being drained: `move` to a spare node, `leave` also without one
    (by a new attempt), or `ignore`.
    """

    requeue: bool = False
    queue_successor: bool = False
    restarts: dict[str, int] = field(default_factory=dict)
    max_identical_failures: int = 3
    node_failures: int = 2
    backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    nan_patience: int = 100
    on_drain: DrainPolicy = DrainPolicy.move


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """How ranks are started and ended.

    `agent_timeout_s`: until every node has reported; `rendezvous_timeout_s`: until every rank
    has; `notice_grace_s`: for ranks in a step loop to save and leave after a notice (Slurm's
    KillWait, 30 s by default, is the limit of all); `stop_grace_s`: between SIGTERM and SIGKILL
    of a rank that has to go; `node_timeout_s`: without a sign of life from a node's agent, until
    the node counts as lost (eight or more at once, whose kernels still answer: five times as
    long); `save_before_timeout_s`: how long before the time limit ranks save and leave until
    a save has been measured (0: not at all).

    Slurm is asked about every `drain_poll_interval_s` whether nodes are being drained (0: never).

    A rank hangs when no step of it begins for `hang_factor` times its usual step, but never less
    than `hang_min_s` (0: ranks are never taken to hang), and `hang_first_s` before its steps are
    known, before the first one and after the last (0: no limit then).
    """

    device: DeviceKind = DeviceKind.auto
    cwd: WorkingFolder = WorkingFolder.run
    agent_timeout_s: float = 120.0
    rendezvous_timeout_s: float = 120.0
    notice_grace_s: float = 15.0
    stop_grace_s: float = 10.0
    node_timeout_s: float = 6.0
    save_before_timeout_s: float = 60.0
    drain_poll_interval_s: float = 300.0
    hang_min_s: float = 300.0
    hang_factor: float = 10.0
    hang_first_s: float = 1800.0


class Sampler(StrEnum):
    """How the points of a sweep are chosen.

    `grid`: all there are; `random`: `samples` drawn beforehand; `optuna`: `samples`, each asked of
    an Optuna study when its run begins, by what the runs before it have reported.
    """

    grid = "grid"
    random = "random"
    optuna = "optuna"


class Direction(StrEnum):
    """Whether a small or a large value of the metric is good."""

    minimize = "minimize"
    maximize = "maximize"


class Pruner(StrEnum):
    """What ends runs early that promise little: Optuna's median rule, or nothing."""

    none = "none"
    median = "median"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """How the points of a sweep are chosen, and how many of its runs may run at a time.

    `max_concurrent` counts runs, `max_gpus` the GPUs they hold together, over all arrays; null
    means no bound. `runs_per_job` runs share a Slurm job, `runs_per_gpu` of them a GPU, through
    CUDA MPS where there is one and `mps` is on. `job_timeout_min` is the time limit of such a job,
    which is queued again while runs are left (null: long enough for all of them). `samples` is how
    many points a `sampler` other than `grid` chooses, `seed` what its choice follows from;
    `metric`, `direction` and `pruner` are for `optuna`. `zip` are groups of swept keys that advance
    together; `points` is a file of points (.csv, .yaml or .jsonl), only on the command line.
    """

    max_concurrent: int | None = None
    max_gpus: int | None = None
    runs_per_job: int = 1
    runs_per_gpu: int = 1
    job_timeout_min: int | None = None
    mps: bool = True
    sampler: Sampler = Sampler.grid
    samples: int | None = None
    seed: int = 0
    metric: str | None = None
    direction: Direction = Direction.minimize
    pruner: Pruner = Pruner.none
    zip: list[list[str]] = field(default_factory=list)
    points: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """The snapshot of the user's project.

    `root` null means the git checkout around the working directory, else that directory;
    `paths` are folders below it that go on PYTHONPATH; `secrets` are files and folders, or globs of
    them, that are taken although they look like secrets.
    """

    snapshot: bool = True
    root: str | None = None
    paths: list[str] = field(default_factory=lambda: [".", "src"])
    max_mb: float = 200.0
    secrets: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a launch may cost at most; beyond it nothing is submitted (null: no limit).

    `gpu_hours` counts all runs, each for its whole time limit, once.
    """

    gpu_hours: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """Everything hpckit itself reads of a composed configuration.

    A composed configuration may hold more (a user's own keys); those reach the user's code and
    nothing else. Exactly one of `entry_point` ("module:function") and `command` (a list, or one
    string that is split as a shell would split it) says what a rank runs. `chaos` are faults to
    inject, for trying out recovery. `stages` are the parts of a launch that follow each other, by
    their names (planning.stages reads them).
    """

    name: str | None = None
    output_dir: str = "outputs"
    seed: int = 0
    entry_point: str | None = None
    command: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)
    resources: Resources = field(default_factory=Resources)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    recovery: Recovery = field(default_factory=Recovery)
    runtime: Runtime = field(default_factory=Runtime)
    code: Code = field(default_factory=Code)
    sweep: Sweep = field(default_factory=Sweep)
    budget: Budget = field(default_factory=Budget)
    chaos: list[str] = field(default_factory=list)
    stages: dict[str, Any] = field(default_factory=dict)
