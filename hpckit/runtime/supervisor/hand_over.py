"""What happens to the allocation when an attempt has ended: the next attempt, or nothing.

Requests the next attempt and records the answer; whether there should be one is decided in
planning.recovery.decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hpckit.model import events
from hpckit.model.cluster.allocation import AttemptRequest, RequeueResult
from hpckit.model.failure import Cause
from hpckit.model.states import RequeueOutcome, RunState
from hpckit.planning.recovery.round_view import EndAttempt
from hpckit.runtime.assignment import Assignment
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.attempt import Attempt
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.notices import Notices
from hpckit.runtime.threads import aside
from hpckit.values import dataclass, field


@dataclass(slots=True, kw_only=True)
class HandOver:
    """The last action of an attempt."""

    assignment: Assignment
    attempt: Attempt
    journal: Journal
    notices: Notices
    _again: bool = field(default=False, init=False)
    """Whether there is a next attempt, whoever asked for it."""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def ask_before_kill(self, end: Callable[[], EndAttempt]) -> None:
        """Ask for the next attempt of a preempted run while it saves, if only KillWait is left.

        A save may take longer than that. `end` returns how the attempt would end now.
        """
        await self.notices.terminated.wait()
        await self.notices.learn_cause()
        notice = self.notices.notice
        if notice is not None and notice.cause is Cause.preempted and end().again:
            await self._ask(AttemptRequest(excluded=end().excluded))

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
            await self._ask(wish)
        elif end.state is RunState.interrupted:
            await self.notices.await_preemption()

    async def _ask(self, wish: AttemptRequest) -> None:
        """Ask for the next attempt, once."""
        allocation, owns = self.assignment.allocation, self._may_requeue
        async with self._asking:
            # A successor that is queued already is the next attempt.
            if self._again or allocation is None or allocation.hand_to_successor is not None:
                return
            answer = await aside(lambda: allocation.requeue(wish, owns))
            self._again = answer.outcome is RequeueOutcome.requeued
            self._record(answer)

    def _may_requeue(self) -> bool:
        return self.attempt.owns_run() and not self.attempt.cancelled()

    def _record(self, answer: RequeueResult) -> None:
        self.journal.record(
            events.RequeueAsked(
                at=now(),
                outcome=answer.outcome,
                message=answer.text,
                excluded=answer.excluded,
                added=answer.added,
                kept=answer.kept,
            )
        )
        if answer.text:
            self.journal.say(f"requeue {answer.outcome}: {answer.text}")
