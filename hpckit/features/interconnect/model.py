"""What `hpckit bench comm` is asked, what its rank 0 writes, and what is concluded from that. Pure.

Sizes are bytes as nccl-tests counts them: of the whole array of a collective, or of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum

from hpckit.errors import UsageError
from hpckit.model.environment.facts import NodeLinks
from hpckit.model.finding import Finding
from hpckit.patterns import lazy_pattern
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
    def copies_between_host_and_gpu(self) -> bool:
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
    def node_count(self) -> int:
        """How many nodes took part."""
        return len(self.hosts)

    @property
    def found_slow_nodes_and_links(self) -> SlowParts:
        """What a search found; nothing without one."""
        return self.search.found if self.search else SlowParts()

    def find_times(self, operation: CommOperation) -> tuple[SizedTime, ...]:
        """Return what was measured of an operation; empty if nothing was."""
        return next((measured.times for measured in self.operations if measured.operation is operation), ())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFit:
    """The line t = alpha + s * beta: latency in seconds, and seconds per byte.

    `*_error` is half of the interval that has the true value with 95 % confidence. `r2` is the share of the
    variance that the line explains, of relative errors; `spread` is their standard deviation. `doubt` says
    why the line is not to be trusted; empty if it is.
    """

    alpha_s: float
    beta_s_per_byte: float
    alpha_error_s: float
    beta_error_s_per_byte: float
    r2: float
    spread: float
    sizes: int
    doubt: str = ""


class LinkPath(StrEnum):
    """Between what bytes go."""

    within_node = "within a node"
    between_nodes = "between nodes"
    host_device = "between host and device"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPromise:
    """Bytes per second that a path should carry for a rank or a ring; `words` is the arithmetic.

    None: nothing is promised, and `words` says why.
    """

    path: LinkPath
    bytes_per_s: float | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationVerdict:
    """What an operation reached: the best bus bandwidth, and its share of the promise.

    `enough` was measured for its bandwidth to be judged. `earlier` is the median of the earlier measurements
    of the same shape, bytes per second, and `earlier_count` how many they are.
    """

    operation: CommOperation
    fit: LatencyFit | None
    enough: bool
    bus_bytes_per_s: float | None
    promise: PathPromise
    share: float | None = None
    earlier: float | None = None
    earlier_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InterconnectVerdict:
    """All conclusions; errors first among the findings."""

    operations: tuple[OperationVerdict, ...]
    findings: tuple[Finding, ...]


SMALLEST, LARGEST = 2**10, 2**32
LARGEST_ON_CPU = 2**26
"""Without --sizes: what two processes on one CPU exchange in a tenth of a second."""
LEAST_S, MOST_S = 1.0, 3600.0
_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "k": 2**10, "m": 2**20, "g": 2**30}
_SIZE = lazy_pattern(r"(\d{1,12})\s*([a-zA-Z]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommBenchRequest:
    """Which operations, in which sizes (bytes; None: what suits the device), and for how long.

    Sizes double from `smallest` to `largest`. `time_s` bounds all collectives together on each
    rank; the search for a slow node has half as much.
    """

    operations: tuple[CommOperation, ...] = tuple(CommOperation)
    smallest: int = SMALLEST
    largest: int | None = None
    time_s: float = 60.0
    search: SearchMode = SearchMode.auto


def list_doubling_sizes(smallest: int, largest: int) -> tuple[int, ...]:
    """Return doubling sizes; the last one is at most `largest`.

    Example: `list_doubling_sizes(1024, 5000)` is (1024, 2048, 4096).
    """
    found = [smallest]
    while found[-1] * 2 <= largest:
        found.append(found[-1] * 2)
    return tuple(found)


def parse_size_range(text: str) -> tuple[int, int]:
    """Return the bounds that `1KiB:64MiB` names; raises UsageError."""
    first, colon, last = text.partition(":")
    smallest, largest = _parse_size(first, text), _parse_size(last if colon else first, text)
    if not SMALLEST <= smallest <= largest <= LARGEST:
        raise UsageError(
            f"--sizes {text}: from 1KiB to 4GiB, and the smallest first", hint="--sizes 1KiB:64MiB"
        )
    return smallest, largest


def _parse_size(word: str, text: str) -> int:
    found = _SIZE.fullmatch(word.strip())
    unit = _UNITS.get(found[2].lower() or "b") if found else None
    if not found or unit is None:
        raise UsageError(
            f"--sizes {text}: {word!r} is not a size",
            hint="numbers with B, KiB, MiB or GiB: --sizes 1KiB:64MiB",
        )
    return int(found[1]) * unit


def parse_operations(words: Sequence[str]) -> tuple[CommOperation, ...]:
    """Return the operations of `all_reduce,broadcast`, each once; all without any word.

    Raises UsageError.
    """
    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    known = {operation.value: operation for operation in CommOperation}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            hint = f"{guess}known are {', '.join(known)}"
            raise UsageError(f"--ops {name}: there is no such operation", hint=hint)
    return tuple(dict.fromkeys(known[name] for name in names)) or tuple(CommOperation)


def check_time_bound(seconds: float) -> float:
    """Return the time bound, from 1 second to an hour; raises UsageError."""
    if not LEAST_S <= seconds <= MOST_S:
        raise UsageError(f"--time-s {seconds:g}: it is in seconds, from {LEAST_S:g} to {MOST_S:g}")
    return seconds
