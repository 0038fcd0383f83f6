"""What a diagnosis is made from: numbers about one run, however they were measured. Pure.

Whatever reads telemetry fills these in. None means unknown, and never leads to a verdict. Shares
are from 0 to 1, durations seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.parallel.layout import Layout
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.planning.diagnosis.nccl_log import NcclTransport
from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """How one GPU was used over `seconds`, from `samples` samples.

    `utilization` is the share of time in which any kernel ran, `sm_activity` the share of
    multiprocessors that were busy, `tensor_activity` that of the tensor cores, `dram_activity` the
    share of the memory's bandwidth: means, with `utilization_peak`. `clock_share` is the mean SM
    clock over its maximum. `heat_share` and `power_share` are the shares of time in which clocks
    were lowered for heat, or for the power limit. `ecc_errors` (uncorrected) and `remapped_rows`
    are how many were added. Bytes per second are means of both directions together.
    """

    uuid: str
    node: str
    seconds: float
    samples: int
    utilization: float | None = None
    utilization_peak: float | None = None
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
    pcie_width: int | None = None
    pcie_width_max: int | None = None
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
    memory_bytes: int | None = None
    cpu_pressure: float | None = None
    io_pressure: float | None = None
    infiniband_ports: int | None = None
    network_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Where the run's time on its nodes (`running_s`) went, over all attempts.

    `redone_s` are steps that were done twice. `unnoticed_s` is the part of `restart_s` in which a
    failure was there and not noticed: ranks waited in a hang, or for a time-out. `save_s` is the
    standstill of one save, `interval_s` the training time between saves, `mtbf_s` the running time
    per failure. `failures` are counts by cause, most frequent first; `planned` counts the
    interruptions that were announced.
    """

    running_s: float
    productive_s: float = 0.0
    checkpoint_s: float = 0.0
    start_s: float = 0.0
    restart_s: float = 0.0
    unnoticed_s: float = 0.0
    redone_s: float = 0.0
    queue_s: float = 0.0
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
    if it did not ask for any. `gpus` counts all nodes.
    """

    nodes: int = 1
    gpus: int = 0
    cpus_per_node: int | None = None
    memory_bytes_per_node: int | None = None
    time_limit_s: float | None = None
    longest_attempt_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What remedies depend on; `local`: the run had no Slurm. `layout` is null if unknown.

    `run` is its id.
    """

    run: str = ""
    interval_steps: int | None = None
    interval_min: float | None = None
    spare_nodes: int = 0
    local: bool = False
    layout: Layout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """All that is known about one run.

    `ranks` has one entry for each rank, summed over all its steps after warm-up. `nccl` is what
    NCCL says of its network. `settings` change remedies alone. `trained` is false before the first
    step: what GPUs do until then says nothing about the run's speed.
    """

    ranks: tuple[RankSteps, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    hosts: tuple[HostUse, ...] = ()
    times: TimeShares | None = None
    allocation: RunAllocation | None = None
    stragglers: tuple[Straggler, ...] = ()
    nccl: NcclTransport | None = None
    settings: RunSettings = RunSettings()
    trained: bool = True
