"""What is known of one round, as a value. planning.rounds.round_turns says how it changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import IntEnum, auto

from hpckit.model import messages
from hpckit.model.failure import Failure
from hpckit.model.launch import LaunchConfig
from hpckit.model.parallel.layout import Layout, RankLayout
from hpckit.planning.fallback import find_layout_for_ranks
from hpckit.planning.recovery.ends import find_first_failure
from hpckit.planning.recovery.loss import (
    NodeSilence,
    build_node_loss_failure,
    build_silent_supervisor_failure,
)
from hpckit.planning.recovery.round_view import CheckpointLoad, RoundView
from hpckit.planning.rounds.hang_report import HangReport, measure_standstill_s
from hpckit.planning.rounds.rank_exits import ByRank, RankExits
from hpckit.values import dataclass, field


class Phase(IntEnum):
    """How far a round has come; each may be followed by any later one."""

    starting = auto()
    """The first node is to reserve a port."""
    watching = auto()
    """Until all ranks have ended, one fails or hangs, or a notice comes."""
    saving_stacks = auto()
    """Every member saves what its ranks are doing, before they are ended."""
    leaving = auto()
    """Ranks in a step loop have the time to act on a notice."""
    stopping = auto()
    """What is left is ended, and its exit records are taken in for as long as they come."""
    awaiting_loss = auto()
    """Ranks lost their connection, maybe to a node that has fallen silent."""
    awaiting_notice = auto()
    """A signal ended ranks, or asked them to leave: maybe there is a notice."""
    over = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """The state of a round on the nodes of `members`, by node rank, in the order of their ranks.

    `orders` are the orders to start, by node rank, without the port. `noticed` is whether the attempt will be
    stopped, `asked` whether the ranks were asked to leave without that. The phase lasts `until` that time, if
    it does not end before; `no_longer` bounds the stopping. Times are in seconds of the monotonic clock.
    """

    number: int
    members: Mapping[int, str]
    settings: LaunchConfig
    layout: Layout
    began_at: float
    orders: Mapping[int, messages.StartRound] = field(default_factory=dict)
    phase: Phase = Phase.starting
    until: float = math.inf
    no_longer: float = math.inf
    noticed: bool = False
    asked: bool = False
    first_step: int | None = None
    step: int | None = None
    total: int | None = None
    usual_step: timedelta = timedelta()
    start_up: timedelta = timedelta()
    """How long it took from the beginning of the round to its first step."""
    stepped_at: float
    exits: RankExits
    failed_at: float = math.inf
    cut_short: bool = False
    lost: Mapping[int, float] = field(default_factory=dict)
    """By the place of a lost member: the time since which nothing had come from it."""
    silent_s: float = 0.0
    hang: HangReport
    load: CheckpointLoad | None = None
    layouts: ByRank[RankLayout] = field(default_factory=ByRank)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the members."""
        return tuple(self.members.values())

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.exits.world_size

    @property
    def ranks(self) -> range:
        """The ranks."""
        return range(self.world_size)

    @property
    def is_watching(self) -> bool:
        """Whether the ranks are being watched."""
        return self.phase is Phase.watching

    @property
    def asked_to_leave(self) -> bool:
        """Whether the ranks were asked to leave."""
        return self.asked or self.noticed

    @property
    def is_stepping(self) -> bool:
        """Whether ranks loop over steps, and nothing is known that would end the round."""
        return self.is_watching and self.step is not None and not self.noticed

    @property
    def remaining_time(self) -> timedelta | None:
        """How long the steps that are left take in this size; None if that is not known."""
        if self.total is None or self.step is None or not self.usual_step:
            return None
        return (self.total - self.step) * self.usual_step

    @property
    def has_failed_rank_or_lost_node(self) -> bool:
        """Whether a rank has failed, or a node is lost."""
        return bool(self.lost) or self.failed_at < math.inf

    @property
    def is_hung(self) -> bool:
        """Whether a rank has stood still for too long."""
        return self.hang.found is not None

    def is_running(self, rank: int) -> bool:
        """Return whether this rank was started in this round and has not ended."""
        going_on = Phase.starting < self.phase < Phase.over
        return going_on and rank in self.ranks and rank not in self.exits

    @property
    def is_every_rank_accounted_for(self) -> bool:
        """Whether every rank has ended, or its node is lost."""
        tasks = self.settings.resources.tasks_per_node
        if len(self.exits) + tasks * len(self.lost) < self.world_size:
            return False
        return all(rank // tasks in self.lost for rank in self.exits.list_missing_ranks())

    def build_view_for_decisions(
        self, standing: tuple[str, ...], given_up_s: float, clock: float, at: datetime
    ) -> RoundView:
        """Return the state for decisions.

        `standing` are the nodes that are there; `given_up_s` is for how long agents that left had
        received nothing from this process.
        """
        exits = self.exits.list_by_rank()
        still = measure_standstill_s(clock - self.stepped_at, self.usual_step, exits)
        silent_s = max(self.silent_s, self.hang.silent_s, still)
        return RoundView(
            round=self.number,
            at=at,
            exits=exits,
            first_step=self.first_step,
            load=self.load,
            step=self.step,
            cut_short=self.cut_short,
            failure=None if self.is_watching else self._find_failure(given_up_s),
            members=self.nodes,
            standing=standing,
            silent=timedelta(seconds=silent_s),
            layout=self.layout,
            ran=timedelta(seconds=clock - self.began_at),
        )

    def _find_failure(self, given_up_s: float) -> Failure | None:
        """Return the failure, unless the ends of the ranks say all of it."""
        missing, exits = self.exits.list_missing_ranks(), self.exits.list_by_rank()
        if given_up_s and missing:
            return build_silent_supervisor_failure(given_up_s, self.step)
        absence = NodeSilence(
            nodes=self.nodes,
            tasks_per_node=self.settings.resources.tasks_per_node,
            silent=missing,
            lost=self.lost,
            failed_at=self.failed_at,
            step=self.step,
            layout=self.layout,
        )
        found = build_node_loss_failure(absence, exits) or self.hang.build_failure_if_hung()
        if found is not None:
            return found
        first = find_first_failure(exits)
        explained = self.hang.add_timed_out_collective(first)
        return None if explained == first else explained


def create_round_state(
    number: int,
    members: Mapping[int, str],
    settings: LaunchConfig,
    clock: float,
    orders: Mapping[int, messages.StartRound] | None = None,
) -> RoundState:
    """Return the state of a round that has yet to start."""
    world_size = settings.resources.tasks_per_node * len(members)
    layout = find_layout_for_ranks(settings, world_size)
    return RoundState(
        number=number,
        members=members,
        settings=settings,
        layout=layout,
        began_at=clock,
        stepped_at=clock,
        orders=orders or {},
        exits=RankExits(world_size=world_size),
        hang=HangReport(world_size=world_size, layout=layout),
    )
