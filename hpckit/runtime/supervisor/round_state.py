"""What is known of one round, as the messages of its agents tell. Sends and awaits nothing."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from hpckit.model import events
from hpckit.model.counted import ranges
from hpckit.model.failure import ExitReason, Failure, RankExit
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.layout import Layout, RankLayout, layout_report
from hpckit.planning.fallback import layout_of_world
from hpckit.planning.recovery.ends import first_failure, guilty_rank
from hpckit.planning.recovery.loss import NodeSilence, given_up, loss
from hpckit.planning.recovery.round_view import CheckpointLoad, RoundView
from hpckit.runtime.channel import messages
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.agents import AgentLost
from hpckit.runtime.supervisor.hang_report import HangReport, StackCollection, Told, standstill_s
from hpckit.runtime.supervisor.journal import Journal
from hpckit.values import dataclass, field

TOLD_SINGLY = 32
"""Number of rank ends of a round that get their own event.

If one of 8000 ranks fails, the other events would say the same 8000 times, a kilobyte each, and
every reader of the record reads all of it.
"""

_ALONE = (
    "did not connect to each other: if they train one model, each trained it alone and wrote the "
    "same files. To train together, they form a group (torch.distributed.init_process_group(), "
    "hpckit.attach(), the trainer's strategy); for one process: resources.nodes=1 "
    "resources.tasks_per_node=1; if each does its own part, by RANK, nothing is wrong"
)

_Alike = tuple[ExitReason, int | None, str | None, str | None, bool]


@dataclass(slots=True, kw_only=True)
class RankExits:
    """The exit records of a round with `world_size` ranks. `failed` is whether any rank failed."""

    round: int
    world_size: int
    tasks_per_node: int
    record: Callable[[events.Event], None]
    failed: bool = field(default=False, init=False)
    _exits: dict[int, RankExit] = field(default_factory=dict, init=False)
    _owed: set[int] = field(init=False)
    _alone_s: list[float] = field(default_factory=list, init=False)
    _untold: dict[int, RankExit] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._owed = set(range(self.world_size))

    def __len__(self) -> int:
        return len(self._exits)

    def __contains__(self, rank: int) -> bool:
        return rank in self._exits

    def take(self, exit_: RankExit, alone_s: float = 0.0) -> None:
        """Add the record of a rank that has ended, and for how long it met no other, if so."""
        self._alone_s.append(alone_s)
        self._exits[exit_.rank] = exit_
        self._owed.discard(exit_.rank)
        self.failed = self.failed or exit_.failed
        if len(self._exits) <= TOLD_SINGLY:
            self._tell(exit_)
        else:
            self._untold[exit_.rank] = exit_

    def lose(self, place: int) -> None:
        """Expect no more records from the node at this place of the round."""
        first = place * self.tasks_per_node
        self._owed.difference_update(range(first, first + self.tasks_per_node))

    @property
    def complete(self) -> bool:
        """Whether every rank has ended."""
        return len(self._exits) == self.world_size

    @property
    def accounted(self) -> bool:
        """Whether every rank has ended, or its node is lost."""
        return not self._owed

    def missing(self) -> Sequence[int]:
        """Return the ranks without a record, in order."""
        return [rank for rank in range(self.world_size) if rank not in self._exits]

    def in_order(self) -> tuple[RankExit, ...]:
        """Return all records, by rank."""
        return tuple(self._exits[rank] for rank in sorted(self._exits))

    def settle(self) -> None:
        """Record the remaining ends: the rank that failed first alone, the others in groups."""
        guilty = guilty_rank(self.in_order()) if self._untold else None
        if guilty is not None and self._untold.pop(guilty.rank, None) is not None:
            self._tell(guilty)
        alike: dict[_Alike, list[int]] = defaultdict(list)
        for rank, exit_ in self._untold.items():
            how = (exit_.reason, exit_.code, exit_.signal, exit_.exception, exit_.stopped)
            alike[how].append(rank)
        for (reason, code, signal, exception, stopped), ranks in alike.items():
            self.record(
                events.RanksExited(
                    at=now(),
                    round=self.round,
                    ranks=ranges(ranks),
                    count=len(ranks),
                    reason=reason,
                    code=code,
                    signal=signal,
                    exception=exception,
                    stopped=stopped,
                )
            )
        self._untold.clear()
        # Ranks of which one runs for less than half as long as another do different things.
        if self.complete and not self.failed and 2 * min(self._alone_s) > max(self._alone_s):
            self.record(events.Warned(at=now(), message=f"its {self.world_size} ranks {_ALONE}"))

    def _tell(self, exit_: RankExit) -> None:
        self.record(events.RankExited(at=now(), round=self.round, exit=exit_))


@dataclass(slots=True, kw_only=True)
class RoundState:
    """The state of a round on the nodes of `members`, by node rank, in the order of their ranks.

    `noticed` is set when the attempt will be stopped; `asked` is whether the ranks were asked to
    leave without that, `watching` whether they are being watched. Time is a parameter, in seconds
    of the monotonic clock.
    """

    number: int
    members: Mapping[int, str]
    settings: LaunchConfig
    journal: Journal
    noticed: asyncio.Event
    began_at: float = field(default_factory=time.monotonic)
    layout: Layout = field(init=False)
    asked: bool = field(default=False, init=False)
    watching: bool = field(default=False, init=False)
    first_step: int | None = field(default=None, init=False)
    step: int | None = field(default=None, init=False)
    total: int | None = field(default=None, init=False)
    usual_step: timedelta = field(default=timedelta(), init=False)
    start_up: timedelta = field(default=timedelta(), init=False)
    """How long it took from the beginning of the round to its first step."""
    exits: RankExits = field(init=False)
    lost: dict[int, float] = field(default_factory=dict, init=False)
    """By the place of a lost member: the time since which nothing had come from it."""
    hang: HangReport = field(init=False)
    stacks_asked: StackCollection | None = field(default=None, init=False)
    _stepped_at: float = field(init=False)
    _failed_at: float = field(default=math.inf, init=False)
    _silent_s: float = field(default=0.0, init=False)
    _load: CheckpointLoad | None = field(default=None, init=False)
    _layouts: dict[int, RankLayout] = field(default_factory=dict, init=False)
    _cut_short: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._stepped_at = self.began_at
        self.layout = layout_of_world(self.settings, self.world_size)
        self.hang = HangReport(world_size=self.world_size, layout=self.layout)
        self.exits = RankExits(
            round=self.number,
            world_size=self.world_size,
            tasks_per_node=self.settings.resources.tasks_per_node,
            record=self.journal.record,
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the members."""
        return tuple(self.members.values())

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.settings.resources.tasks_per_node * len(self.members)

    @property
    def leaving(self) -> bool:
        """Whether the ranks were asked to leave."""
        return self.asked or self.noticed.is_set()

    @property
    def stepping(self) -> bool:
        """Whether ranks loop over steps, and nothing is known that would end the round."""
        return self.watching and self.step is not None and not self.noticed.is_set()

    @property
    def remaining(self) -> timedelta | None:
        """How long the steps that are left take in this size; None if that is not known."""
        if self.total is None or self.step is None or not self.usual_step:
            return None
        return (self.total - self.step) * self.usual_step

    @property
    def troubled(self) -> bool:
        """Whether a rank has failed, or a node is lost."""
        return bool(self.lost) or self.exits.failed

    @property
    def over(self) -> bool:
        """Whether there is nothing left to watch."""
        return self.exits.complete or self.troubled or self.hang.found is not None

    def take(self, sender: int, message: messages.Message, at: float) -> None:
        """Take in what the agent with this node rank tells of the round."""
        match message:
            case messages.StepBegun():
                self.usual_step, self._stepped_at = timedelta(seconds=message.usual_s), at
                self._begin(message.step, at)
                self._advance(message.step, message.total)
            case messages.Restoring():
                self._load = CheckpointLoad(checkpoint=message.checkpoint, others=message.others)
            case AgentLost() if sender in self.members:  # spare nodes do not matter
                place = list(self.members).index(sender)
                self.exits.lose(place)
                self.lost[place] = at - message.silent_s
                self._silent_s = max(self._silent_s, message.silent_s)
            case messages.RankEnded(round=self.number):
                self.exits.take(message.exit, message.alone_s)
                self._end_rank(message.exit, at)
            case messages.LayoutTold(round=self.number):
                self._take_layout(message)
            case _ if isinstance(message, Told) and message.round == self.number:
                self.hang.take(sender, message)
                if self.stacks_asked is not None:
                    self.stacks_asked.take(sender, message)

    def _begin(self, step: int | None, at: float) -> None:
        if step is not None and self.first_step is None:
            self.first_step = step
            self.start_up = timedelta(seconds=at - self.began_at)
            self.journal.record(events.StepReached(at=now(), round=self.number, step=step))

    def _advance(self, step: int, total: int | None) -> None:
        self.total = total or self.total
        if self.step is None or step > self.step:
            self.step = step
        self.journal.note_step(self.number, self.step, self.total)

    def _end_rank(self, exit_: RankExit, at: float) -> None:
        if exit_.failed:
            self._failed_at = min(self._failed_at, at)
            self._begin(exit_.step, at)
        self._cut_short = self._cut_short or self.leaving
        if exit_.step is not None:  # which an earlier round may have done
            self._advance(exit_.step, exit_.total)

    def _take_layout(self, message: messages.LayoutTold) -> None:
        """Take a rank's layout: all layouts are recorded at once."""
        told = RankLayout(layout=message.layout, held=message.held, whole=message.whole)
        self._layouts[message.rank] = told
        if len(self._layouts) < self.world_size:
            return
        try:
            report = layout_report(self._layouts)
        except ValueError as error:
            self.journal.warn(f"the ranks disagree: {error}")
        else:
            self.journal.record(events.LayoutReported(at=now(), round=self.number, report=report))

    def view(self, standing: tuple[str, ...], given_up_s: float, at: float) -> RoundView:
        """Return the state for decisions.

        `standing` are the nodes that are there; `given_up_s` is for how long agents that left had
        received nothing from this process.
        """
        exits = self.exits.in_order()
        still = standstill_s(at - self._stepped_at, self.usual_step, exits)
        silent_s = max(self._silent_s, self.hang.silent_s, still)
        return RoundView(
            round=self.number,
            at=now(),
            exits=exits,
            first_step=self.first_step,
            load=self._load,
            step=self.step,
            cut_short=self._cut_short,
            failure=None if self.watching else self._failure(given_up_s),
            members=self.nodes,
            standing=standing,
            silent=timedelta(seconds=silent_s),
            layout=self.layout,
            ran=timedelta(seconds=at - self.began_at),
        )

    def _failure(self, given_up_s: float) -> Failure | None:
        """Return the failure, unless the ends of the ranks say all of it."""
        missing, exits = self.exits.missing(), self.exits.in_order()
        if given_up_s and missing:
            return given_up(given_up_s, self.step)
        absence = NodeSilence(
            nodes=self.nodes,
            tasks_per_node=self.settings.resources.tasks_per_node,
            silent=missing,
            lost=self.lost,
            failed_at=self._failed_at,
            step=self.step,
            layout=self.layout,
        )
        found = loss(absence, exits) or self.hang.failure()
        if found is not None:
            return found
        first = first_failure(exits)
        explained = self.hang.explained(first)
        return None if explained == first else explained
