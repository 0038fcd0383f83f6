"""What a run used: its nodes' telemetry over all attempts, and the numbers that most ask for."""

from __future__ import annotations

from collections.abc import Mapping

from hpckit.model.telemetry.vocabulary import GpuDevice, TelemetryRow
from hpckit.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    """What a run used of one node in `seconds`, all attempts together.

    `row` has all its rows as one, with counters as increases. `devices` are the node's GPUs.
    `gpu_seconds` is how long each GPU was measured, by UUID: attempts may have had different ones.
    """

    node: str
    seconds: float
    row: TelemetryRow
    devices: tuple[GpuDevice, ...] = ()
    gpu_seconds: Mapping[str, float] = field(default_factory=dict)

    def seconds_of(self, uuid: str) -> float:
        """Return how long a GPU was measured, in seconds."""
        return self.gpu_seconds.get(uuid, self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUsage:
    """What a run used of its nodes; in `seconds` at least one of them was measured.

    `attempts` has the same for each attempt by itself, by number.
    """

    nodes: tuple[NodeUsage, ...] = ()
    attempts: Mapping[int, tuple[NodeUsage, ...]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTelemetry:
    """The few numbers of a run that `hpckit status` has; null if unknown.

    `gpu_utilization` is the mean over GPUs and time (0 to 1), `gpu_memory_bytes` the most that one
    GPU used, `power_w` the mean power of all GPUs together, `energy_j` what they used in all
    attempts, `data_wait_share` the share of step time in which ranks waited for data.
    """

    gpu_utilization: float | None = None
    gpu_memory_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    data_wait_share: float | None = None
