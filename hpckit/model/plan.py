"""The plan of a launch: everything that will be frozen and submitted, resolved.

Equal plans are the same launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from hpckit.model.elastic import SatelliteSpec
from hpckit.model.ids import build_run_id
from hpckit.model.launch import Cluster, LaunchConfig
from hpckit.model.node_setup import FrozenContainer
from hpckit.model.search import Search
from hpckit.model.stages import Stage, StageDependency
from hpckit.values import dataclass, field

_CHECKED_RUNS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariables:
    """The variables of `env` and of `cluster.env` whose values must not be shown.

    They are in no configuration, and the repr of this object omits their values.
    """

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        return bool(self.env or self.cluster)

    @property
    def secret_values(self) -> frozenset[str]:
        """The values."""
        return frozenset((*self.env.values(), *self.cluster.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One composed configuration: `config` complete and resolved, `settings` the part hpckit reads.

    `stage` names the stage of the point, if the launch has stages. With a `search`, the searched
    keys hold arbitrary values: a run asks for its own when it begins. What looks like a secret is
    in `secrets`, and masked everywhere else. `lost` has what `config` of any point of the sweep
    only holds the text of, by its key.
    """

    overrides: tuple[str, ...]
    config: Mapping[str, Any]
    settings: LaunchConfig
    stage: str | None = None
    search: Search | None = None
    secrets: SecretVariables = field(default_factory=SecretVariables)
    lost: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run of a launch. `overrides` include its own and those that all runs share."""

    launch: str
    index: int
    overrides: tuple[str, ...]
    signature: str
    config: Mapping[str, Any]
    settings: LaunchConfig
    stage: str | None = None
    secrets: SecretVariables = field(default_factory=SecretVariables)

    @property
    def id(self) -> str:
        """The run's id: `LAUNCH.INDEX`."""
        return build_run_id(self.launch, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSpec:
    """What sbatch is asked for, for each run of one job, in Slurm's terms; null means not given.

    `nodes` is how many nodes a run trains on, `spare_nodes` how many are allocated in addition.
    `min_nodes` is how far the run may shrink inside an allocation (null: not at all).
    """

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int
    mem_gb: float | None
    timeout: timedelta | None
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    nodelist: str | None
    exclude: str | None
    reservation: str | None
    gres: str | None
    exclusive: bool
    dependency: str | None
    comment: str | None
    mail_type: str | None
    mail_user: str | None
    array_parallelism: int
    additional_parameters: tuple[tuple[str, str | bool | None], ...]
    spare_nodes: int = 0
    min_nodes: int | None = None
    switches: str | None = None
    segment: int | None = None
    gpu_type: str | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks of one run when it has all its nodes."""
        return self.nodes * self.tasks_per_node

    @property
    def allocated_nodes(self) -> int:
        """Number of nodes that Slurm is asked for, the spare ones included."""
        return self.nodes + self.spare_nodes

    @property
    def survives_node_loss(self) -> bool:
        """Whether a run can continue in its allocation when one of its nodes is lost."""
        fewest = self.nodes if self.min_nodes is None else self.min_nodes
        return self.allocated_nodes > fewest


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedJobSpec:
    """How runs share jobs: `jobs` of them, each with `slots` for one run at a time.

    `runs_per_job`, `runs_per_gpu` and `at_a_time` (over all jobs) are the requested values.
    `most_jobs` is what the cluster allows; null means no bound. `each` is what one run needs.
    `timeout` is the time limit of a job if it does not follow from that.
    """

    runs_per_job: int
    runs_per_gpu: int
    slots: int
    jobs: int
    each: ResourceSpec
    at_a_time: int | None = None
    most_jobs: int | None = None
    timeout: timedelta | None = None
    mps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One sbatch: a job of one run, or an array whose element i is run `runs[i]`.

    With `shared_job`, its elements work through the runs together, in their order, and `resources`
    are those of an element. `after` are the jobs of the previous stage that it waits for.
    `satellite` is set if the job has no run of its own, and brings nodes to a running one.
    """

    index: int
    name: str
    runs: tuple[int, ...]
    resources: ResourceSpec
    requeue: bool
    shared_job: SharedJobSpec | None = None
    after: tuple[StageDependency, ...] = ()
    satellite: SatelliteSpec | None = None

    @property
    def array_element_count(self) -> int:
        """How many jobs Slurm sees."""
        return len(self.runs) if self.shared_job is None else self.shared_job.jobs

    @property
    def is_array(self) -> bool:
        """Whether this is submitted as a job array."""
        return self.array_element_count > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A whole launch: what is frozen on disk, rendered, and submitted.

    `folder` is absolute. `arguments` are the words that the user typed. `search` is the source of
    the values that the runs of an adaptive sweep ask for. `swept` are the keys in which all that
    was asked for differs, of which some runs may be known from other launches.
    """

    id: str
    name: str
    created_at: datetime
    folder: str
    arguments: tuple[str, ...]
    cluster: Cluster
    python: str
    runs: tuple[RunSpec, ...]
    jobs: tuple[JobSpec, ...]
    stages: tuple[Stage, ...] = ()
    search: Search | None = None
    swept: tuple[str, ...] = ()
    containers: tuple[FrozenContainer, ...] = ()

    @property
    def runs_to_check(self) -> tuple[RunSpec, ...]:
        """The runs that checks look at one by one: of a large sweep, the others hardly differ."""
        return self.runs[:_CHECKED_RUNS]
