"""What happens to the allocation when an attempt has ended: the next attempt, or nothing.

Requests the next attempt and records the answer; whether there should be one is decided in
planning.recovery.decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpckit.model import events
from hpckit.model.cluster.allocation import AttemptRequest, RequeueResult
from hpckit.model.states import RunState
from hpckit.planning.recovery.actions import EndAttempt
from hpckit.runtime.assignment import Assignment
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.attempt import Attempt
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.notices import Notices
from hpckit.runtime.threads import aside


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """The last action of an attempt."""

    assignment: Assignment
    attempt: Attempt
    journal: Journal
    notices: Notices

    async def see_to(self, end: EndAttempt, standing: tuple[str, ...]) -> None:
        """Arrange the next attempt if there should be one; otherwise make sure there is none.

        `standing` are the nodes that are there at the end.
        """
        allocation = self.assignment.allocation
        if allocation is None:
            return
        # The next attempt reads the results of this one.
        await self.journal.settle()
        lost = tuple(sorted({*self.assignment.agents.nodes} - {*standing}))
        wish = AttemptRequest(excluded=end.excluded, lost=lost)
        if allocation.drop_satellites is not None and end.state is not RunState.interrupted:
            await aside(allocation.drop_satellites)
        if allocation.drop_successor is not None and end.state is not RunState.interrupted:
            await aside(allocation.drop_successor)
        elif allocation.hand_to_successor is not None:
            if end.excluded:
                hand = allocation.hand_to_successor
                self._record(await aside(lambda: hand(wish)))
        elif end.again:
            owns = self._may_requeue
            self._record(await aside(lambda: allocation.requeue(wish, owns)))
        elif end.state is RunState.interrupted:
            await self.notices.await_preemption()

    def _may_requeue(self) -> bool:
        return self.attempt.owns_run() and not self.attempt.cancelled()

    def _record(self, answer: RequeueResult) -> None:
        self.journal.record(
            events.RequeueAsked(
                at=now(),
                outcome=answer.outcome,
                message=answer.text,
                excluded=answer.excluded,
                kept=answer.kept,
            )
        )
        if answer.text:
            self.journal.say(f"requeue {answer.outcome}: {answer.text}")
