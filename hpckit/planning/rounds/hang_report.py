"""What is known of a round that hangs, or in which a collective timed out; what ranks are doing.

That is the agent's finding, what all ranks were doing, and the collective in which they wait.
Hangs are detected in runtime.agent.hang_detector, and blamed in planning.recovery.hang.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta

from hpckit.model import messages
from hpckit.model.diagnosis.collectives import CollectiveWait, RankCollectives
from hpckit.model.failure import FINE, Cause, Failure, RankExit, RankStack
from hpckit.model.parallel.layout import Layout
from hpckit.patterns import lazy_pattern
from hpckit.planning.recovery.collective_wait import find_collective_wait
from hpckit.planning.recovery.ends import find_first_failure
from hpckit.planning.recovery.hang import (
    add_code_location_to_wait,
    build_hang_failure,
    prepend_collective_wait,
)
from hpckit.values import dataclass, field, replace

_REMARKABLE_S, _REMARKABLE = 10.0, 10
"""A step that lasts for so long, and so many times as long as usual, has come to a standstill."""

Told = messages.Hung | messages.StackSaved | messages.StacksSaved | messages.CollectivesTold


@dataclass(frozen=True, slots=True, kw_only=True)
class HangReport:
    """The hang of a round, if there is one. `complete` are the nodes that have sent all stacks.

    `idle` are the ranks of nodes that are silent, by node: it is a hang once all ranks are.
    """

    world_size: int = 0
    layout: Layout | None = None
    found: messages.Hung | None = None
    idle: Mapping[int, int] = field(default_factory=dict)
    complete: frozenset[int] = frozenset()
    stacks: tuple[RankStack, ...] = ()
    collectives: tuple[RankCollectives, ...] = ()

    def with_message(self, sender: int, message: Told) -> HangReport:
        """Return the report with an agent's message; the first finding counts."""
        match message:
            case messages.Hung():
                stall = message.stall
                idle = {**self.idle, sender: stall.idle if stall.silent_s else 0}
                hangs = not stall.idle or sum(idle.values()) >= self.world_size
                return replace(self, idle=idle, found=self.found or (message if hangs else None))
            case messages.StackSaved():
                return replace(self, stacks=(*self.stacks, message.stack))
            case messages.CollectivesTold():
                return replace(self, collectives=(*self.collectives, message.collectives))
            case messages.StacksSaved():
                return replace(self, complete=self.complete | {sender})

    @property
    def silent_s(self) -> float:
        """How long no step had begun."""
        return 0.0 if self.found is None else self.found.stall.silent_s

    def build_failure_if_hung(self) -> Failure | None:
        """Return the failure; None if no hang was found."""
        if self.found is None:
            return None
        return build_hang_failure(self.found.stall, self.stacks, self._find_collective_wait(), self.layout)

    def add_timed_out_collective(self, failure: Failure | None) -> Failure | None:
        """Return the failure of ranks with the collective that timed out, if it is one.

        The rank that raised is the one that waited: the failure is put down to whom it waited for.
        """
        wait = (
            add_code_location_to_wait(self._find_collective_wait(), self.stacks)
            if is_collective_timeout(failure)
            else None
        )
        if failure is None or wait is None:
            return failure
        told = replace(failure, message=prepend_collective_wait(failure.message, wait), collective=wait)
        nodes = {collective.rank: collective.node for collective in reversed(self.collectives)}
        nodes |= {stack.rank: stack.node for stack in self.stacks}
        if wait.culprit is None or wait.culprit not in nodes:
            return told
        return replace(told, rank=wait.culprit, node=nodes[wait.culprit])

    def _find_collective_wait(self) -> CollectiveWait | None:
        first: dict[int, RankCollectives] = {}
        for told in self.collectives:
            # A later statement comes from a rank that has given up since.
            first.setdefault(told.rank, told)
        return find_collective_wait(list(first.values()), self.world_size, self.layout)


_TIMED_OUT = lazy_pattern(r"tim(ed|e)[ -]?out", re.IGNORECASE)


def is_collective_timeout(failure: Failure | None) -> bool:
    """Return whether a rank gave up waiting for others."""
    if failure is None or failure.cause is not Cause.communication:
        return False
    return bool(_TIMED_OUT.search(failure.message))


def measure_standstill_s(since: float, usual: timedelta, exits: Sequence[RankExit]) -> float:
    """Return how long ranks stood still before they ended, of the seconds since their latest step.

    A collective that timed out has waited since then. So has a step that ranks were ended in after
    many times as long as usual: a hang that was cancelled before its limit is no training either.
    """
    many = max(_REMARKABLE_S, _REMARKABLE * usual.total_seconds())
    cut_off = since > many and any(exit_.reason not in FINE for exit_ in exits)
    return since if cut_off or is_collective_timeout(find_first_failure(exits)) else 0.0
