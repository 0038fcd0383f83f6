"""What a node tells of its health. None is always unknown: nothing may be concluded from it."""

from __future__ import annotations

from hpckit.model.environment.facts import EnvironmentFacts
from hpckit.model.telemetry.vocabulary import GpuTrouble
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth:
    """One GPU of the job. Widths of PCIe in lanes; `nvlinks` counts those that are active.

    `memory_used_bytes` is without what the driver reserves. `processes` are the ids of processes
    that compute on it. `ecc_uncorrected` counts memory errors since the driver was loaded.
    `power_limit_w` is what the driver lets it take now.
    """

    uuid: str
    index: int
    name: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    processes: tuple[int, ...] | None = None
    ecc_uncorrected: int | None = None
    troubles: tuple[GpuTrouble, ...] = ()
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: int | None = None
    power_limit_w: float | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class XidSeen:
    """An XID error of a GPU that the sampler of this attempt has seen."""

    uuid: str | None
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """The PCIe link of a GPU during a transfer: its generation, its lanes, and the most of each.

    The most is what GPU and host are both able to.
    """

    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """What a device computed: a GPU by its UUID, or `cpu`.

    `matmul_flops` in floating point operations per second, `copy_bytes_s` and the rates between
    host and device in bytes per second. `checksum` is a digest of the exact result of a product of
    matrices of whole numbers, `repeats` whether a second one gave the same. `all_reduce_bytes_s` is
    the bus bandwidth of a sum over all GPUs of the node. `pcie` is the link while data went to the
    device. `problem` says what went wrong, if
    something did.
    """

    device: str
    name: str
    matmul_flops: float | None = None
    checksum: str | None = None
    repeats: bool | None = None
    copy_bytes_s: float | None = None
    to_device_bytes_s: float | None = None
    to_host_bytes_s: float | None = None
    all_reduce_bytes_s: float | None = None
    pcie: PcieLink | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """All that a node tells at an inspection.

    `unresolved` are the names of other hosts that it does not know. `write_s` is how long a small
    file in the run's folder took to be written, `write_problem` why it was not. `available_bytes`
    is the memory that is free for a run. `far_gpus` are the GPUs, as the job numbers them, next to
    which it has no CPU.
    """

    environment: EnvironmentFacts
    gpus: tuple[GpuHealth, ...] | None = None
    unresolved: tuple[str, ...] = ()
    write_s: float | None = None
    write_problem: str = ""
    available_bytes: int | None = None
    xids: tuple[XidSeen, ...] = ()
    speeds: tuple[DeviceSpeed, ...] = ()
    far_gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRate:
    """The bus bandwidth of sums over all devices of a node and of another one, in bytes per second.

    Null if they could not add, with the problem.
    """

    partner: str
    bytes_s: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """The answer of a node, as its supervisor received it.

    Its clock is ahead of the supervisor's by `ahead_least_s` to `ahead_most_s` seconds. `problem`
    says why there is no `health`. `pairs` is what it measured with its neighbours.
    """

    node: str
    health: NodeHealth | None = None
    ahead_least_s: float = 0.0
    ahead_most_s: float = 0.0
    problem: str = ""
    pairs: tuple[PairRate, ...] = ()
