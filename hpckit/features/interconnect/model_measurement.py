"""What a run of `hpckit bench comm` measured, as its rank 0 writes it.

Sizes are bytes as nccl-tests counts them: of the whole array of a collective, or of a message.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from hpckit.model.nodes.links import NodeLinks
from hpckit.values import dataclass, field


class CommOperation(StrEnum):
    """An operation, by the name that torch and NCCL use."""

    all_reduce = "all_reduce"
    all_gather = "all_gather"
    reduce_scatter = "reduce_scatter"
    all_to_all = "all_to_all"
    broadcast = "broadcast"
    point_to_point = "point_to_point"
    host_to_device = "host_to_device"
    device_to_host = "device_to_host"

    @property
    def needs_device(self) -> bool:
        """Whether it copies between the host's memory and a GPU's; all others join ranks."""
        return self in {CommOperation.host_to_device, CommOperation.device_to_host}


class SearchMode(StrEnum):
    """How a slow node or link is searched for."""

    auto = "auto"
    """if more than two nodes do not reach what their networks promise, or promise nothing known"""
    pairs = "pairs"
    """every pair of nodes once, in the rounds of a tournament"""
    bisect = "bisect"
    """halves of the nodes, then the slow half's: few rounds for many nodes"""
    never = "never"


VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedTime:
    """Seconds of an operation of one size: each rank's median over repeats, of these the longest.

    `slowest_rank` has that longest one; `fastest_s` is the shortest.
    """

    size: int
    seconds: float
    fastest_s: float
    slowest_rank: int
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTimes:
    """An operation in growing sizes.

    `missing` says why the backend does not have it. `wrong_ranks` received another result than the
    right one. `ended` says why larger sizes were not measured; empty if all were.
    """

    operation: CommOperation
    times: tuple[SizedTime, ...] = ()
    missing: str = ""
    wrong_ranks: tuple[int, ...] = ()
    ended: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupTime:
    """Seconds in which the nodes of a group, by their numbers, exchanged a message with each other.

    A group of two is a pair. `seconds` is the median of several repeats, in each of which the
    slowest rank counts; `spread` is how much longer it is than the best one, as a share.
    """

    nodes: tuple[int, ...]
    seconds: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A link between two nodes that is slow although both are fast with others."""

    first: int
    second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowParts:
    """Nodes and links that are slow; `usual_s` is what a pair of healthy nodes takes.

    `factor` is how many times longer the slow pairs take, in the median; 1 if there are none.
    """

    nodes: tuple[int, ...] = ()
    links: tuple[SlowLink, ...] = ()
    usual_s: float | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSearch:
    """A search for slow nodes and links: how, with messages of `size` bytes, what it found.

    `rounds` were measured one after the other, each of several groups at once. `why_not` says why
    there was none, or why it ended early.
    """

    mode: SearchMode
    size: int = 0
    rounds: int = 0
    groups: tuple[NodeGroupTime, ...] = ()
    found: SlowParts = field(default_factory=SlowParts)
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterconnectMeasurement:
    """Everything that was measured, and on what.

    `hosts` are the nodes by their numbers. `device` is `cuda` or `cpu`; `network` is what NCCL says
    that it uses (`IB`, `Socket`, a plugin), None if it does not say.
    """

    at: datetime
    backend: str
    device: str
    ranks: int
    hosts: tuple[str, ...]
    ranks_per_node: int
    torch: str
    nccl: str | None = None
    network: str | None = None
    operations: tuple[OperationTimes, ...] = ()
    links: tuple[NodeLinks, ...] = ()
    search: SlowSearch | None = None
    seconds: float = 0.0
    v: int = VERSION

    @property
    def nodes(self) -> int:
        """How many nodes took part."""
        return len(self.hosts)

    def times(self, operation: CommOperation) -> tuple[SizedTime, ...]:
        """Return what was measured of an operation; empty if nothing was."""
        return next((one.times for one in self.operations if one.operation is operation), ())


VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShape:
    """What measurements must have in common to be compared."""

    cluster: str
    nodes: int
    ranks: int
    device: str
    backend: str
    gpu: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMeasurement:
    """A measurement as it is kept: its time, shape, and bytes per second of each operation."""

    at: str
    shape: MeasuredShape
    bus_bytes_per_s: dict[str, float]
    v: int = VERSION
