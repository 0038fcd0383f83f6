"""What a diagnosis is made from: numbers about one run, and sums over its ranks and GPUs. Pure.

Whatever reads telemetry fills these in, and what knows the account and the request of a run. None
means unknown, and never leads to a verdict. Shares are from 0 to 1, durations seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.goodput import Goodput
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.layout import Layout
from hpckit.model.plan import ResourceSpec
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.patterns import lazy_pattern
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.values import dataclass, field

_NETWORK = lazy_pattern(r"NCCL INFO .*?Using network (\S+)")
_VERSION = lazy_pattern(r"NCCL version (\S+)")
_REASON = lazy_pattern(r"NCCL INFO (NET/IB : No device found\.|Failed to open libibverbs\.so[^\n]*)")
"""What NCCL's own log says of the network that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTransport:
    """How NCCL connects ranks: its `network` (`IB`, `Socket`, a plugin's name), null if not said.

    `reason` is what NCCL says of a network that it could not use.
    """

    network: str | None = None
    version: str | None = None
    reason: str = ""

    @property
    def uses_sockets(self) -> bool:
        """Whether ranks of different nodes talk over TCP."""
        return (self.network or "").lower() == "socket"


def parse_nccl_log(lines: Iterable[str]) -> NcclTransport:
    """Return what the lines say; what is missing is null."""
    network = version = None
    reason = ""
    for line in lines:
        if found := _NETWORK.search(line):
            network = found[1]
        elif found := _VERSION.search(line):
            version = found[1]
        elif found := _REASON.search(line):
            reason = found[1].rstrip(".")
    return NcclTransport(network=network, version=version, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """How one GPU was used over `seconds`, from `samples` samples.

    `utilization` is the share of time in which any kernel ran, `sm_activity` the share of
    multiprocessors that were busy, `tensor_activity` that of the tensor cores, `dram_activity` the
    share of the memory's bandwidth: means. `clock_share` is the mean SM clock over its maximum.
    `heat_share` and `power_share` are the shares of time in which clocks were lowered for heat, or
    for the power limit. `ecc_errors` (uncorrected) and `remapped_rows` are how many were added.
    Bytes per second are means of both directions together.
    """

    uuid: str
    node: str
    seconds: float
    samples: int
    utilization: float | None = None
    sm_activity: float | None = None
    tensor_activity: float | None = None
    dram_activity: float | None = None
    memory_peak_bytes: int | None = None
    memory_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_share: float | None = None
    heat_share: float | None = None
    power_share: float | None = None
    ecc_errors: int | None = None
    remapped_rows: int | None = None
    nvlink_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """How a run used its part of one node over `seconds`, from `samples` samples.

    `cores_busy` is the mean number of busy cores of `cores`. The pressures are the shares of time
    in which some task waited for a CPU, or for input and output (Linux PSI, `some`).
    `infiniband_ports` is how many were active at most.
    """

    node: str
    seconds: float
    samples: int
    cores: int | None = None
    cores_busy: float | None = None
    memory_peak_bytes: int | None = None
    cpu_pressure: float | None = None
    io_pressure: float | None = None
    infiniband_ports: int | None = None
    network_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Where the run's time on its nodes (`running_s`) went, over all attempts.

    `redone_s` are steps that were done twice. `unnoticed_s` is the part of `restart_s` in which a failure was
    there and not noticed: ranks waited in a hang, or for a time-out. `save_s` is the standstill of one save,
    `interval_s` the training time between saves, `mtbf_s` the running time per failure. `failures` are counts
    by cause, most frequent first; `planned` counts the interruptions that were announced.
    """

    running_s: float
    productive_s: float = 0.0
    checkpoint_s: float = 0.0
    start_s: float = 0.0
    restart_s: float = 0.0
    unnoticed_s: float = 0.0
    redone_s: float = 0.0
    saves: int = 0
    save_s: float | None = None
    interval_s: float | None = None
    mtbf_s: float | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    planned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAllocation:
    """What the run asked for. `time_limit_s` is for each attempt, null if it has none that counts.

    `longest_attempt_s` is how long its longest attempt took at most; null unless the run has
    completed, because only then it is known how much time it needs. `memory_bytes_per_node` is null
    if it did not ask for any.
    """

    cpus_per_node: int | None = None
    memory_bytes_per_node: int | None = None
    time_limit_s: float | None = None
    longest_attempt_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """All that is known about one run, by its id.

    `ranks` has one entry for each rank, summed over all its steps after warm-up. `nccl` is what NCCL says of
    its network. `settings` and `layout` (null if unknown) change remedies alone. `trained` is false before
    the first step: what GPUs do until then says nothing about the run's speed.
    """

    ranks: tuple[RankSteps, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    hosts: tuple[HostUse, ...] = ()
    times: TimeShares | None = None
    allocation: RunAllocation | None = None
    stragglers: tuple[Straggler, ...] = ()
    nccl: NcclTransport | None = None
    run: str = ""
    settings: LaunchConfig = field(default_factory=LaunchConfig)
    layout: Layout | None = None
    trained: bool = True


CPU_PRESSURE = 0.2
"""Share of time in which some task waited for a CPU: they are too few, or others use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """What a step of the run consists of; shares of the step, None where no rank knows.

    `data_loss` is what waiting for data costs: a GPU that computes meanwhile loses nothing. GPUs
    without a rank do not count there.
    `least_waiting_share` is that of the rank that waits least for others, None with one rank.
    """

    ranks: int
    step_s: float
    data_share: float | None
    data_loss: float
    least_waiting_share: float | None
    own_share: float | None


def list_ranks_with_enough_steps(evidence: RunEvidence, limits: Thresholds) -> list[RankSteps]:
    """Return the ranks with enough steps."""
    return [rank for rank in evidence.ranks if rank.steps >= limits.steps and rank.seconds >= limits.steps_s]


def summarize_steps(evidence: RunEvidence, limits: Thresholds) -> StepSummary | None:
    """Return the summary of the steps of all ranks; None without enough steps."""
    ranks = list_ranks_with_enough_steps(evidence, limits)
    if not ranks:
        return None
    waits = [rank.waiting_s / rank.seconds for rank in ranks if rank.waiting_s is not None]
    data_share = ratio_of_sums_where_known((rank.data_s, rank.seconds) for rank in ranks)
    gpus = list_well_sampled_gpus(evidence, limits)
    own = {rank.gpu for rank in ranks}
    used = mean_of_known(map(gpu_busy_share, [gpu for gpu in gpus if gpu.uuid in own] or gpus)) or 0.0
    return StepSummary(
        ranks=len(ranks),
        step_s=sum(rank.seconds for rank in ranks) / sum(rank.steps for rank in ranks),
        data_share=data_share,
        data_loss=min(data_share or 0.0, max(1 - used, 0.0)),
        least_waiting_share=min(waits) if len(ranks) > 1 and len(waits) == len(ranks) else None,
        own_share=ratio_of_sums_where_known((rank.computing_s, rank.seconds) for rank in ranks),
    )


def ratio_of_sums_where_known(parts: Iterable[tuple[float | None, float]]) -> float | None:
    """Return the share of known parts in their wholes, each over all; None if none is known."""
    known = [(part, whole) for part, whole in parts if part is not None]
    over = sum(whole for _, whole in known)
    return sum(part for part, _ in known) / over if over > 0 else None


def list_well_sampled_gpus(evidence: RunEvidence, limits: Thresholds) -> list[GpuUse]:
    """Return the GPUs with enough samples."""
    return [gpu for gpu in evidence.gpus if gpu.samples >= limits.samples]


def list_well_sampled_hosts(evidence: RunEvidence, limits: Thresholds) -> list[HostUse]:
    """Return the nodes with enough samples."""
    return [host for host in evidence.hosts if host.samples >= limits.samples]


def mean_cpu_pressure_if_high(evidence: RunEvidence, limits: Thresholds) -> float | None:
    """Return the mean share of time in which tasks waited for a CPU; None if that is little."""
    found = mean_of_known(host.cpu_pressure for host in list_well_sampled_hosts(evidence, limits))
    return found if found is not None and found >= CPU_PRESSURE else None


def gpu_busy_share(one: GpuUse) -> float | None:
    """Return how busy a GPU is: its utilization, or its SM activity where that is unknown."""
    return one.sm_activity if one.utilization is None else one.utilization


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


_GB = 1e9


def build_time_shares(account: Goodput) -> TimeShares:
    """Return where the time of a run went, from its account."""
    parts, measured = account.parts, account.measured
    failures = sum(account.failures.values())
    return TimeShares(
        running_s=parts.running.total_seconds(),
        productive_s=parts.productive.total_seconds(),
        checkpoint_s=parts.checkpoint.total_seconds(),
        start_s=parts.start.total_seconds(),
        restart_s=parts.restart.total_seconds(),
        unnoticed_s=failures * (_seconds_or_none(measured.detection) or 0.0),
        redone_s=parts.lost.total_seconds(),
        saves=account.saves,
        save_s=_seconds_or_none(measured.stall),
        interval_s=_seconds_or_none(measured.interval),
        mtbf_s=_seconds_or_none(measured.mtbf),
        failures={cause.value: count for cause, count in account.failures.items()},
        planned=sum(account.planned.values()),
    )


def build_run_allocation(asked: ResourceSpec, account: Goodput | None, *, completed: bool) -> RunAllocation:
    """Return what a run asked of Slurm, and how long it took if it has `completed`.

    No attempt of it can have taken longer than all of them together.
    """
    took = account.parts.running.total_seconds() if account is not None and completed else None
    return RunAllocation(
        cpus_per_node=asked.tasks_per_node * asked.cpus_per_task,
        memory_bytes_per_node=None if asked.mem_gb is None else int(asked.mem_gb * _GB),
        time_limit_s=_seconds_or_none(asked.timeout),
        longest_attempt_s=took,
    )


def _seconds_or_none(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
