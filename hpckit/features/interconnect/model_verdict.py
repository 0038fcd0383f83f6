"""What is concluded from a measurement: a line through the times, promises, a comparison."""

from __future__ import annotations

from enum import StrEnum

from hpckit.features.interconnect.model_measurement import CommOperation
from hpckit.model.finding import Finding
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFit:
    """The line t = alpha + s * beta: latency in seconds, and seconds per byte.

    `*_error` is half of the interval that has the true value with 95 % confidence. `r2` is the
    share of the variance that the line explains, of relative errors; `spread` is their standard
    deviation. `doubt` says why the line is
    not to be trusted; empty if it is.
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

    `earlier` is the median of the earlier measurements of the same shape, bytes per second, and
    `earlier_count` how many they are.
    """

    operation: CommOperation
    fit: LatencyFit | None
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
