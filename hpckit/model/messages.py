"""The messages between supervisor, agents and ranks, and their JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hpckit.errors import ChannelError
from hpckit.model.diagnosis.collectives import RankCollectives
from hpckit.model.failure import RankExit, RankStack, StalledRank
from hpckit.model.goodput import SaveCost
from hpckit.model.node_messages import (
    BringOut,
    Inspect,
    Inspected,
    MeasurePairs,
    Message,
    PairsMeasured,
    Prepare,
    Prepared,
    Refused,
    StagedOut,
)
from hpckit.model.node_setup import ContainerCheck
from hpckit.model.parallel.layout import Layout
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.profile import RankProfile
from hpckit.model.settings import ProfileTool
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.values import dataclass

__all__ = [
    "BringOut",
    "Inspect",
    "Inspected",
    "MeasurePairs",
    "Message",
    "PairsMeasured",
    "Prepare",
    "Prepared",
    "Refused",
    "StagedOut",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """Agent → supervisor: this node is here, below these switches, in this container.

    `satellite` is its job if that is not the run's, `port` where other nodes get data from it. `container` is
    what it found in its container.
    """

    node: str
    node_rank: int
    pid: int
    switches: tuple[str, ...] = ()
    satellite: str | None = None
    container: ContainerCheck | None = None
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservePort(Message):
    """Supervisor → the agent of rank 0: reserve a port for a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReserved(Message):
    """Agent → supervisor: the port that is reserved on its node."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRound(Message):
    """Supervisor → agent: start your ranks.

    `mtbf_hours` is the expected time to a failure; `save_cost` the cost of a save, if known.
    `nodes` are the round's, in the order of their ranks, as a hostlist; `address` is that by which
    they reach the agent's node, empty if it is not known.
    """

    round: int
    nodes: str
    address: str
    node_rank: int
    first_rank: int
    local_world_size: int
    world_size: int
    num_nodes: int
    master_addr: str
    master_port: int
    mtbf_hours: float
    save_cost: SaveCost | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Message):
    """Supervisor → agents → ranks: save and leave at the next step boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRound(Message):
    """Supervisor → agent: end your ranks: SIGTERM, and SIGKILL after the grace period."""

    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown(Message):
    """Supervisor → agent: there is nothing more to do; `final`: nor will the run come back."""

    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBound(Message):
    """Rank 0 → its agent → supervisor: the store listens on this port."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress(Message):
    """Supervisor → agents → ranks: where the store of this round listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegun(Message):
    """Rank → its agent → supervisor: this step has begun, of `total` if the loop has an end.

    The agent adds how long steps usually take, in seconds, without compilation and pauses.
    """

    rank: int
    step: int
    total: int | None = None
    usual_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Working(Message):
    """Rank → its agent: it works in its step loop, before its first or after (`over`) its last."""

    over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring(Message):
    """Rank 0 → its agent → supervisor: this checkpoint is being loaded.

    `others` is the number of other checkpoints that are left and that no run has died of.
    """

    checkpoint: str
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTold(Message):
    """Rank → its agent → supervisor: its layout, and the elements of parameters that it holds.

    Sent when the first step loop begins. `whole` are the elements of the same parameters before
    they were cut.
    """

    round: int
    rank: int
    layout: Layout
    held: int
    whole: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(Message):
    """Rank → its agent: from now on judge (`on`), or do not judge, how long its steps take."""

    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(Message):
    """Rank 0 → its agent → supervisor: a checkpoint was committed."""

    step: int
    size: int
    stall_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn(Message):
    """Rank 0 → its agent → supervisor: a warning for the user."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(Message):
    """Rank 0 → its agent → supervisor: the value by which an adaptive sweep judges the run."""

    step: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsTimed(Message):
    """Rank → its agent: where the time of its latest steps went."""

    steps: RankSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSteps(Message):
    """Agent → supervisor: what the ranks of a node have reported, a column for each number.

    `seconds` and `own_s` are those of the `steps` from `first_step` on. Ranks that do not know their own work
    are left out. This is all that comparing ranks needs, and small: thousands of nodes send it.
    """

    round: int
    rank: tuple[int, ...]
    first_step: tuple[int, ...]
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    own_s: tuple[float, ...]
    gpu: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune(Message):
    """Supervisor → agents → ranks: leave at the next step boundary, for good, and save nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(Message):
    """Supervisor ↔ agent: a sign of life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSilent(Message):
    """Agent → supervisor: you were silent for too long; this node ends its ranks and leaves.

    This is the agent's last message; a supervisor that was frozen finds it when it continues.
    """

    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung(Message):
    """Agent → supervisor: a rank has stood still for longer than its limit.

    Idle ranks hang if those of all nodes are idle; after 0 seconds they no longer are.
    """

    round: int
    stall: StalledRank


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStacks(Message):
    """Supervisor → agent: save what your ranks are doing.

    `request` is the number of a user's request; 0 if the round hangs. It comes back in the answers.
    """

    request: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSaved(Message):
    """Agent → supervisor: what one of its ranks was doing."""

    round: int
    stack: RankStack
    request: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksSaved(Message):
    """Agent → supervisor: the stacks of all of its ranks have been sent."""

    round: int
    request: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProfile(Message):
    """Supervisor → agents → these ranks: profile this many steps, from your next boundary on.

    `id` names the profile: its traces, and its answer.
    """

    id: str
    round: int
    steps: int
    ranks: tuple[int, ...]
    tool: ProfileTool = ProfileTool.torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled(Message):
    """Rank → its agent → supervisor: the profile `id` is written, or will not be."""

    id: str
    round: int
    profile: RankProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesTold(Message):
    """Agent → supervisor: what one of its ranks says of its collectives."""

    round: int
    collectives: RankCollectives


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnded(Message):
    """Agent → supervisor: a rank's exit, and how long it ran if its node's ranks met no others."""

    round: int
    exit: RankExit
    alone_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Message):
    """Agent → supervisor: this process did not run for this long, until just now."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed(Message):
    """Agent → supervisor: this node was notified that the attempt will be stopped."""

    signal: str


_TYPES: Mapping[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}


def encode_message(message: Message) -> bytes:
    """Return the message as one line of JSON, without a newline."""
    body = {"type": type(message).__name__, **to_plain(message)}
    return json.dumps(body, separators=(",", ":")).encode()


_BEAT = encode_message(Beat())


def decode_message(line: bytes) -> Message:
    """Return the message of a line; raises ChannelError for anything else."""
    if line == _BEAT:  # most of what a supervisor receives
        return Beat()
    try:
        record = json.loads(line)
        return from_plain(_TYPES[record["type"]], record)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ChannelError(f"the control channel carried {line[:80]!r}, not a message") from None
