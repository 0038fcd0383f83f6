"""What is known of a running attempt beyond its round, and what would follow from it now.

Completes the view of a round and asks planning.recovery what follows; doing that is for others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from hpckit.model import events
from hpckit.model.failure import Cause
from hpckit.model.launch import Recovery, StragglerPolicy
from hpckit.planning.recovery.decide import decide_after_round, decide_end_after_notice
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.node_choice import choose_first_round_nodes, sort_nodes_by_switches
from hpckit.planning.recovery.round_view import (
    Action,
    EndAttempt,
    RoundView,
    StopNotice,
    build_round_event_for_action,
)
from hpckit.runtime.assignment import Assignment
from hpckit.runtime.clock import now
from hpckit.runtime.environ import TERMINAL
from hpckit.runtime.foreground import find_keyboard_signal
from hpckit.runtime.supervisor.attempt import Attempt
from hpckit.runtime.supervisor.callers import Peer
from hpckit.runtime.supervisor.node_inspections import NodeInspections
from hpckit.runtime.supervisor.notices import Notices
from hpckit.runtime.supervisor.round import Round
from hpckit.runtime.supervisor.wanted_size import WantedSize
from hpckit.values import dataclass, field, replace

Judged = TypeVar("Judged")
Rule = Callable[[RoundView, Recovery, Ledger], Judged]
"""A rule of planning.recovery about a round."""


@dataclass(slots=True)
class Outlook:
    """The outlook of one attempt.

    `round` is its latest round, if any, `past` what happened before. `draining` and `slow`
    are the nodes that a round may leave, with the reasons. `growth` is that of a RoundView.
    """

    assignment: Assignment
    attempt: Attempt
    notices: Notices
    inspections: NodeInspections
    wanted_size: WantedSize
    past: Ledger = field(init=False)
    round: Round | None = field(default=None, init=False)
    draining: Mapping[str, str] = field(default_factory=dict, init=False)
    slow: Mapping[str, str] = field(default_factory=dict, init=False)
    growth: Mapping[Cause, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.past = self.attempt.read_past_failures()

    @property
    def policy(self) -> Recovery:
        """The policy of the run."""
        return self.assignment.settings.recovery

    @property
    def stepping_round(self) -> Round | None:
        """The round, if its ranks loop over steps and nothing is known that would end it."""
        return self.round if self.round is not None and self.round.state.is_stepping else None

    @property
    def can_save(self) -> bool:
        """Whether ranks that are asked to save do so, and continue."""
        return self.stepping_round is not None and self.notices.deadline.has_measured_a_save

    @property
    def usual_step(self) -> timedelta | None:
        """How long a step takes; None without a step loop, which alone can save and leave.

        A command is left alone until the limit itself.
        """
        state = None if self.round is None else self.round.state
        return None if state is None or state.step is None else state.usual_step

    def complete_round_view(self, view: RoundView) -> RoundView:
        """Add to a round's view what is known outside the round."""
        notices, sizes = self.notices, self.wanted_size.round_sizes
        ended = filter(None, map(find_keyboard_signal, view.exits))
        by_keyboard = next(ended, None) if TERMINAL in self.assignment.environ else None
        notice = notices.notice or (by_keyboard and StopNotice(signal=by_keyboard)) or None
        return replace(
            view,
            attempt=self.attempt.number,
            saved=notices.deadline.has_measured_a_save,
            notice=notice,
            dismissed=notices.dismissed or notices.find_unmet_save_request(view.ran),
            cancelled=bool(notice and (by_keyboard or notices.cancelled)),
            draining=self.draining,
            slow=self.slow if self.policy.on_straggler is StragglerPolicy.move else {},
            unhealthy=self.inspections.unhealthy,
            wanted=sizes.wanted,
            fewest=sizes.fewest,
            replica_nodes=sizes.replica_nodes,
            fallback_nodes=sizes.fallback,
            resizing=self.wanted_size.is_round_losing_satellites,
            grown_from=self.wanted_size.grown_from,
            requeues=self.assignment.allocation is not None and self.policy.requeue,
            growth=self.growth,
        )

    def choose_nodes_of_first_round(self, peers: Sequence[Peer]) -> tuple[str, ...]:
        """Return the nodes of the first round, out of these."""
        sizes = self.wanted_size.round_sizes
        ordered = sort_nodes_by_switches(
            tuple(peer.node for peer in peers),
            {peer.node: peer.switches for peer in peers},
            replica_nodes=sizes.replica_nodes,
            domain_nodes=self.assignment.settings.cluster.nvlink_nodes,
        )
        unhealthy = self.inspections.unhealthy
        return choose_first_round_nodes(ordered, self.past, self.policy, sizes, unhealthy, now())

    def decide_what_follows_round(self, view: RoundView) -> tuple[Action, events.RoundEnded]:
        """Return what follows an ended round, and its record, which is part of the past now."""
        view = self.complete_round_view(view)
        action = decide_after_round(view, self.policy, self.past)
        ended = build_round_event_for_action(view, action)
        self.past = self.past.after_round(ended, self.attempt.number, ran=view.ran)
        return action, ended

    def decide_end_if_stopped_now(self) -> EndAttempt:
        """Return how the attempt would end if its ranks left now because of a notice."""
        view = RoundView(round=0, at=now(), exits=())
        known = self.complete_round_view(view if self.round is None else self.round.view_now())
        notice = known.notice or StopNotice(signal="")
        return decide_end_after_notice(known, notice, self.policy, self.past)

    def judge_round(self, rule: Rule[Judged], view: RoundView) -> Judged:
        """Return what a rule of planning.recovery says of a round, with all that is known."""
        return rule(self.complete_round_view(view), self.policy, self.past)
