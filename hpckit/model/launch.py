"""What a user may configure, with types and defaults; also Hydra's schema.

Responsible for the names of configuration; it must not read files or know about Hydra. Numbers
carry their unit in the name; `resources` uses submitit's names. `scripts/config_reference.py`
makes docs/reference/configuration.md from the docstrings below the fields.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from hpckit.model.node_setup import Container, ContainerRuntime
from hpckit.model.parallel.settings import Parallel
from hpckit.model.search import Sweep
from hpckit.model.settings import Budget, Code, GpuOption, Notify, Observe, Preflight, Tracker
from hpckit.values import dataclass, field

MISSING: Any = "???"
"""OmegaConf's mark for a mandatory value; spelt out here so that the model stays pure."""


class ClusterKind(StrEnum):
    """Where runs go."""

    auto = "auto"
    """`slurm` if `sbatch` is on PATH or in `bin_dir`, else `local`"""
    local = "local"
    """this machine, without a scheduler (the local executor)"""
    slurm = "slurm"
    """the Slurm cluster of this machine"""


class DeviceKind(StrEnum):
    """Which device ranks train on."""

    auto = "auto"
    """a GPU if the rank sees one, else the CPU"""
    cpu = "cpu"
    """the CPU"""
    cuda = "cuda"
    """a GPU; without one the run fails"""


class WorkingFolder(StrEnum):
    """Where the ranks of a run start, and what relative paths are relative to."""

    run = "run"
    """a folder of the run itself, which shows the frozen code"""
    code = "code"
    """the frozen code: read-only, shared by all runs"""
    project = "project"
    """the folder that the launch was started from"""


class NumaBinding(StrEnum):
    """On which CPUs ranks run."""

    auto = "auto"
    """those of the job next to their GPU, with one GPU for each rank; else `off`"""
    off = "off"
    """all CPUs of the job"""


class DrainPolicy(StrEnum):
    """What a run does when a node it runs on is being drained."""

    move = "move"
    """start a new round with a spare node; stay if there is none"""
    leave = "leave"
    """like `move`; without a spare node, save and ask for a new attempt"""
    ignore = "ignore"
    """don't ask Slurm about drains"""


class StragglerPolicy(StrEnum):
    """What a run does when a rank is slower than its peers."""

    warn = "warn"
    """say so in `hpckit status` and among its warnings"""
    move = "move"
    """also start a new round with a spare node, if there is one, instead of the slow one"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Facts about the cluster, the same for every user."""

    kind: ClusterKind = ClusterKind.auto
    """Where runs go."""
    partition: str | None = None
    """Partition of runs without `resources.partition`, or a list of them. Null: Slurm's default."""
    partitions: list[str] = field(default_factory=list)
    """Partitions that exist; others are refused before submission. Empty: not checked."""
    account: str | None = None
    """Account of runs without `resources.account`. Null: Slurm's default."""
    qos: str | None = None
    """QOS of runs without `resources.qos`, or a list of them. Null: Slurm's default."""
    gpus_per_node: int = 0
    """GPUs of a node. Runs that ask for more are refused. 0 on Slurm: not stated; hpckit asks what
    its nodes have."""
    gpu_types: dict[str, dict[str, int]] = field(default_factory=dict)
    """By partition, the GPUs of a node by Slurm's type: `{gpu: {a100: 4}}`; those without a type as
    `gpu`. Empty: not stated."""
    gpu_option: GpuOption = GpuOption.gpus_per_node
    """Which option of sbatch asks for GPUs."""
    time_limits_min: dict[str, int] = field(default_factory=dict)
    """By partition, its longest time limit. `check` warns if Slurm's is lower by now."""
    nvlink_nodes: int = 1
    """Nodes in one NVLink domain. `parallel.tensor` and `parallel.context` stay within it. 1: each
    node is one."""
    cpus_per_node: int | None = None
    """CPUs of a node for ranks. Runs that ask for more are refused. Null: not checked."""
    modules: list[str] = field(default_factory=list)
    """Environment modules that the batch script loads, like `[cuda/12.4]`."""
    setup: list[str] = field(default_factory=list)
    """Shell lines that the batch script runs before hpckit. One that fails ends the job."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of the batch script, `setup` and all ranks. Only ranks get secrets."""
    python: str | None = None
    """Python that runs hpckit on the nodes. Null: the one that launches."""
    bin_dir: str | None = None
    """Folder of sbatch, squeue and the others, if they aren't on PATH."""
    service_partition: str | None = None
    """Partition of hpckit's own jobs, which resume and submit runs: one CPU, no GPU. Null: the
    runs' partition."""
    service_qos: str | None = None
    """QOS of hpckit's own jobs. Null: the runs' QOS, or Slurm's default with `service_partition`.
    """
    gpu: str | None = None
    """GPU of this cluster, for `hpckit plan`: a name of its catalogue, also with what differs, like
    `A100-80 network_gb_per_s=12.5`. Null: unknown."""
    power_cap_w: float | None = None
    """Most power of a GPU, in watts. Preflight warns of GPUs that may take more. Null: the GPU's
    own limit."""
    power_cap_option: str | None = None
    """The site's sbatch option for `power_cap_w`, without `--`, like `gpu-power`. Null: Slurm isn't asked."""
    price_per_gpu_hour: float | None = None
    """Price of a GPU hour in the site's currency. Null: unknown."""
    carbon_g_per_kwh: float | None = None
    """Grams of carbon dioxide per kilowatt-hour at the site. Null: unknown."""
    pue: float | None = None
    """Energy of the site over that of its computers, at least 1. Null: unknown; accounts of runs
    count only the computers, plans assume 1.1."""
    template: str = "job.sbatch.j2"
    """Template of the batch script: a file in a `slurm_templates` folder, or an absolute path."""
    srun_args: list[str] = field(default_factory=list)
    """More arguments for the srun that starts agents, like `[--mpi=none]`."""
    container_runtime: ContainerRuntime = ContainerRuntime.none
    """What `container=auto` takes. None: the first that is found."""
    container_bin: str | None = None
    """The program that starts containers, if it isn't on the nodes' PATH."""
    container_mounts: list[str] = field(default_factory=list)
    """What every container needs at this site, `SRC[:DST[:ro|rw]]`, like fabric libraries."""
    image_dir: str | None = None
    """Folder of pulled images, which all nodes see. Null: `images` in `output_dir`."""
    node_scratch: list[str] = field(default_factory=list)
    """Folders for data on a node, best first, like `[$SLURM_TMPDIR, /local/$USER]`."""
    fabric: str | None = None
    """Network between nodes: infiniband, slingshot, efa or ethernet. Null: what the node shows."""
    max_parallel: int = 1
    """Runs that the local executor has at a time; Slurm ignores it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What one run needs, in submitit's words."""

    nodes: int = 1
    """Nodes of a run; locally 1."""
    min_nodes: int | None = None
    """A run that loses nodes may shrink to this many before it needs a new allocation. Null: it
    can't shrink."""
    spare_nodes: int = 0
    """Nodes beyond `nodes`, to replace lost ones; locally 0."""
    tasks_per_node: int = 1
    """Ranks on each node."""
    cpus_per_task: int = 1
    """CPUs of each rank; also `OMP_NUM_THREADS`, unless `env` sets it."""
    gpus_per_node: int | None = None
    """GPUs on each node, for all its ranks together; they see no others. 0: none. Null: none on
    Slurm, locally all."""
    gpu_type: str | None = None
    """Type of these GPUs, like `a100`, or a MIG slice like `1g.10gb`. Null: any."""
    mem_gb: float | None = None
    """Memory of each node. Null: Slurm's default."""
    timeout_min: int | None = None
    """Time limit; a day is 1440. Null: the partition's default."""
    partition: str | None = None
    """Partition, or a list of which Slurm takes the one that starts first. Null: `cluster.partition`."""
    account: str | None = None
    """Account. Null: `cluster.account`."""
    qos: str | None = None
    """QOS, or a list (from Slurm 24.11). Null: `cluster.qos`."""
    constraint: str | None = None
    """Features that nodes must have, like `a100` or `'a100|h100'`."""
    nodelist: str | None = None
    """Nodes that the allocation must have."""
    exclude: str | None = None
    """Nodes that it must not have, like `node[07,12]`."""
    reservation: str | None = None
    """Slurm reservation."""
    switches: str | None = None
    """Most switches between the nodes (tree topology), and how long to wait for that: `1`, `1@60`
    (an hour), `1@0:30:00`. Null: any."""
    segment: int | None = None
    """Nodes of a segment, which lie in one block (block topology, from Slurm 24.05). It divides all
    requested nodes, spares included; best take a replica's nodes."""
    gres: str | None = None
    """Generic resources of each node, like `gpu:a100:4`."""
    exclusive: bool = False
    """Share the nodes with no other job."""
    dependency: str | None = None
    """What the jobs wait for, in sbatch's form, like `afterok:1234`."""
    comment: str | None = None
    """Comment of the jobs in squeue and sacct."""
    mail_type: str | None = None
    """When Slurm sends mail, like `END,FAIL`."""
    mail_user: str | None = None
    """Where Slurm sends mail."""
    array_parallelism: int = 256
    """Most runs of a job array at a time (`%N` of `--array`)."""
    additional_parameters: dict[str, Any] = field(default_factory=dict)
    """sbatch options without a key here: `{licenses: 'fs:1', contiguous: true}`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Where state is kept, and how often it is saved.

    The interval is `interval_steps`, else `interval_min`; without both it follows from the measured
    cost of a save and from `mtbf_hours`.
    """

    dir: str | None = None
    """Folder with a folder for each run's checkpoints. Null: the run's own folder."""
    keep: int = 3
    """Complete checkpoints that stay, at least 2."""
    interval_steps: int | None = None
    """Steps between two saves."""
    interval_min: float | None = None
    """Minutes between two saves, without `interval_steps`."""
    mtbf_hours: float = 24.0
    """Expected hours between failures. Fewer: more frequent saves."""
    patience_s: float = 60.0
    """How long the last save is tried again before the run fails."""
    weights: str | None = None
    """File or folder of weights for a run without a checkpoint ([formats](../guides/weights.md)).
    Absolute, or from `~`. Null: the model stays as built."""
    weights_strict: bool = True
    """Refuse `weights` with other names or shapes than the model's. False: load what fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """What happens after a failure."""

    requeue: bool = False
    """Let Slurm start the run again after a preemption, a node failure or the time limit."""
    queue_successor: bool = False
    """Queue the next attempt ahead of time instead of a requeue; that saves Slurm's delay."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts after each cause without getting further; none for causes that aren't named. A step beyond all
    earlier ones refills every count. After `time_limit` the job starts a run again only if it has saved its
    state, or gets more time; `watch` and `--auto-resume` start others again, too."""
    max_identical_failures: int = 3
    """Failures with the same signature, without progress, that end the run."""
    node_failures: int = 2
    """Failures after which the node that caused them is left out."""
    backoff_s: float = 1.0
    """Pause before the second restart without progress, doubled each time. The first restart is immediate."""
    max_backoff_s: float = 60.0
    """Longest pause before a restart."""
    nan_patience: int = 100
    """A loss that is logged as NaN or infinite this many times in a row is a failure. 0: never."""
    command_silent_min: float | None = None
    """A command hangs if its ranks neither write nor compute for this many minutes. Null: isn't looked for.
    Runs with steps are judged by these (`runtime.hang_min_s`)."""
    grow_on_oom: float | None = None
    """After `host_oom` the next attempt asks for this factor times `resources.mem_gb`. Null: for the same."""
    grow_on_timeout: float | None = None
    """After a time limit before which no further step was saved, the next attempt asks for this factor times
    `resources.timeout_min`. Null: for the same."""
    grow_max: float = 4.0
    """Both grow at most by this factor in all, and to what the cluster allows."""
    on_drain: DrainPolicy = DrainPolicy.move
    """What a run does when one of its nodes is being drained."""
    on_straggler: StragglerPolicy = StragglerPolicy.warn
    """What a run does when a rank is slower than its peers."""
    regrow: bool = False
    """Submit a satellite job for each lost replica, if that is worth a restart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """How ranks are started, watched and ended.

    A rank hangs if no step of it begins for `hang_factor` times its usual step, and for
    `hang_min_s` at least.
    """

    device: DeviceKind = DeviceKind.auto
    """Which device ranks train on."""
    cwd: WorkingFolder = WorkingFolder.run
    """Where ranks start."""
    numa_binding: NumaBinding = NumaBinding.auto
    """CPUs of ranks and of their data-loader workers."""
    preload_torch: bool = True
    """Fork ranks of functions from a process that has imported torch: one per node, or one for all
    runs on this machine or in a shared job. False: each rank imports it."""
    agent_timeout_s: float = 120.0
    """Seconds until every node must have reported."""
    rendezvous_timeout_s: float = 120.0
    """Seconds until every rank must have joined the process group."""
    notice_grace_s: float = 15.0
    """Time for ranks to save and leave after a notice. Slurm kills after its own `KillWait`, 30 s
    by default."""
    stop_grace_s: float = 10.0
    """Time between SIGTERM and SIGKILL for a rank that has to end."""
    node_timeout_s: float = 6.0
    """A node whose agent is silent for so long is lost; at least 2. Five times as long if eight or
    more are silent at once and their kernels still answer."""
    save_before_timeout_s: float = 60.0
    """Ranks save and leave so long before the time limit, until a save has been measured. 0: only
    when Slurm says so."""
    drain_poll_interval_s: float = 300.0
    """Approximate time between two questions to Slurm about drains. 0: never."""
    hang_min_s: float = 300.0
    """Least time without a new step that counts as a hang. 0: hangs aren't looked for."""
    hang_factor: float = 10.0
    """How many times its usual step a rank may take."""
    hang_first_s: float = 1800.0
    """Limit before the usual step is known (20 steps of a rank after its first), for the first
    step, and after the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """Everything hpckit itself reads of a composed configuration.

    Other keys are the user's own: they reach the user's code and nothing else.
    """

    name: str | None = None
    """Name of the launch, part of its id. Null: from the entry point or command."""
    output_dir: str = "outputs"
    """Folder for launch folders. All nodes have to see it."""
    seed: int = 0
    """Seed of a run, 0 to 4294967295: of Python, NumPy and torch before a function starts."""
    entry_point: str | None = None
    """Function that each rank calls, `module:function`. Set this or `command`, not both."""
    command: Any = None
    """Command that each rank runs: a list, or a string that is split like a shell's. No shell runs.
    """
    imports: list[str] = field(default_factory=list)
    """Modules to import before composing, for structured configs and resolvers."""
    params: dict[str, Any] = field(default_factory=dict)
    """Your own values for a command, which takes them as `${params.NAME}`."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of every rank."""
    cluster: Cluster = field(default_factory=Cluster)
    resources: Resources = field(default_factory=Resources)
    container: Container = field(default_factory=Container)
    parallel: Parallel = field(default_factory=Parallel)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    recovery: Recovery = field(default_factory=Recovery)
    preflight: Preflight = field(default_factory=Preflight)
    runtime: Runtime = field(default_factory=Runtime)
    observe: Observe = field(default_factory=Observe)
    tracker: Tracker = field(default_factory=Tracker)
    notify: Notify = field(default_factory=Notify)
    code: Code = field(default_factory=Code)
    sweep: Sweep = field(default_factory=Sweep)
    budget: Budget = field(default_factory=Budget)
    chaos: list[str] = field(default_factory=list)
    """Faults to inject, to try out recovery, like `['kill step=20 rank=1']`."""
    stages: dict[str, Any] = field(default_factory=dict)
    """Parts of a launch that follow each other, by their names."""
