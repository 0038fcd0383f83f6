"""Messages about a node itself: its inspection, its data. With the base of all messages."""

from __future__ import annotations

from datetime import datetime

from hpckit.model.environment.health import NodeHealth, PairRate, XidSeen
from hpckit.model.failure import Cause
from hpckit.model.node_setup import StagedData
from hpckit.model.settings import PreflightLevel
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Base of all messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Message):
    """Doorway → supervisor, instead of an agent's Hello: no agent can start on its node, and why.

    `satellite` is its job if that is not the run's.
    """

    node: str
    cause: Cause
    problem: str
    satellite: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(Message):
    """Supervisor → agent: prepare your node for ranks.

    `providers` are addresses (`host:port`) of nodes to get data from, the nearest first; the source comes
    last. `stop`: the run goes on without this node.
    """

    providers: tuple[str, ...] = ()
    stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(Message):
    """Agent → supervisor: what has been brought to its node since, and whether ranks can start there.

    With a `cause` they cannot, for this problem.
    """

    staged: tuple[StagedData, ...] = ()
    complete: bool = False
    cause: Cause | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BringOut(Message):
    """Supervisor → agent: bring out what is left of results; `final`: answer with a last StagedOut."""

    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOut(Message):
    """Agent → supervisor: results of its node were brought out; `last`: that is all."""

    name: str
    bytes: int
    seconds: float
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect(Message):
    """Supervisor → agent: inspect your node, within `limit_s` seconds.

    `inspection` counts them. `names` are hosts that the node has to know. `again`: what does not
    change while a job runs is left out.
    """

    inspection: int
    level: PreflightLevel
    limit_s: float
    names: tuple[str, ...] = ()
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected(Message):
    """Agent → supervisor: the health of its node; null if its inspection failed, with the problem.

    `began_at` is this node's clock when the order came, `took_s` how long the inspection lasted.
    """

    inspection: int
    began_at: datetime
    took_s: float
    health: NodeHealth | None
    xids: tuple[XidSeen, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePairs(Message):
    """Supervisor → agent: add with these nodes, one after the other, within `limit_s` seconds.

    `devices` are the node's (UUIDs, or `cpu`), as many as the others have: `everyone` in all.
    `pairs` has a number of each pair, its other node, and whether this node is its first one. The
    store for all of them listens at `host` and `port`; this node serves it if `serves`, until as
    many processes as `everyone` are done.
    """

    inspection: int
    limit_s: float
    devices: tuple[str, ...]
    pairs: tuple[tuple[int, str, bool], ...]
    host: str
    port: int
    serves: bool
    everyone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsMeasured(Message):
    """Agent → supervisor: how fast its node added with the others that were named."""

    inspection: int
    pairs: tuple[PairRate, ...]
