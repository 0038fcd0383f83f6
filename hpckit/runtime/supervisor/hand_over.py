"""What happens to the allocation when an attempt has ended: the next attempt, or nothing.

Requests the next attempt and records the answer; whether there should be one is decided in
planning.recovery.decide.
"""

from __future__ import annotations

import asyncio

from hpckit.model import events
from hpckit.model.cluster.allocation import AttemptRequest, RequeueResult
from hpckit.model.failure import Cause
from hpckit.model.states import RequeueOutcome, RunState
from hpckit.planning.recovery.round_view import EndAttempt
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.outlook import Outlook
from hpckit.runtime.threads import run_in_thread
from hpckit.values import dataclass, field


@dataclass(slots=True)
class HandOver:
    """The last action of an attempt."""

    outlook: Outlook
    journal: Journal
    _again: bool = field(default=False, init=False)
    """Whether there is a next attempt, whoever asked for it."""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def request_attempt_when_terminated(self) -> None:
        """Ask for the next attempt while the run saves, if only KillWait is left.

        A save may take longer than that. So may the end of a command at its time limit, of which it is not
        told before.
        """
        await self.outlook.notices.terminated.wait()
        await self.outlook.notices.learn_why_attempt_ends()
        notice = self.outlook.notices.notice
        if notice is not None and notice.cause in {Cause.preempted, Cause.time_limit}:
            end = self.outlook.decide_end_if_stopped_now()
            if end.again and (end.grow or notice.cause is Cause.preempted):
                wish = AttemptRequest(excluded=end.excluded, grow=end.grow)
                # The attempt may end meanwhile: then it waits for the answer, and asks for nothing again.
                await asyncio.shield(self._request_attempt_once(wish))

    async def arrange_next_attempt(self, end: EndAttempt, standing: tuple[str, ...]) -> None:
        """Arrange the next attempt if there should be one; otherwise make sure there is none.

        `standing` are the nodes that are there at the end.
        """
        allocation = self.outlook.assignment.allocation
        if allocation is None:
            return
        # The next attempt reads the results of this one.
        await self.journal.await_writes()
        lost = tuple(sorted({*self.outlook.assignment.agents.nodes} - {*standing}))
        wish = AttemptRequest(excluded=end.excluded, lost=lost, grow=end.grow)
        if allocation.drop_satellites is not None and end.state is not RunState.interrupted:
            await run_in_thread(allocation.drop_satellites)
        if allocation.drop_successor is not None and end.state is not RunState.interrupted:
            await run_in_thread(allocation.drop_successor)
        elif allocation.hand_to_successor is not None:
            if end.excluded or end.grow:
                hand = allocation.hand_to_successor
                self._record_requeue_result(await run_in_thread(lambda: hand(wish)))
        elif end.again:
            await self._request_attempt_once(wish)
        elif end.state is RunState.interrupted:
            await self.outlook.notices.hold_allocation_for_preemption()

    async def _request_attempt_once(self, wish: AttemptRequest) -> None:
        allocation, owns = self.outlook.assignment.allocation, self._may_requeue
        async with self._asking:
            # A successor that is queued already is the next attempt.
            if self._again or allocation is None or allocation.hand_to_successor is not None:
                return
            answer = await run_in_thread(lambda: allocation.requeue(wish, owns))
            self._again = answer.outcome is RequeueOutcome.requeued
            self._record_requeue_result(answer)

    def _may_requeue(self) -> bool:
        return self.outlook.attempt.is_still_latest_attempt() and not self.outlook.attempt.is_cancelled()

    def _record_requeue_result(self, answer: RequeueResult) -> None:
        self.journal.record_event(
            events.RequeueAsked(
                at=now(),
                outcome=answer.outcome,
                message=answer.message_with_warning,
                excluded=answer.excluded,
                added=answer.added,
                kept=answer.kept,
            )
        )
        if answer.message_with_warning:
            self.journal.print_to_batch_log(f"requeue {answer.outcome}: {answer.message_with_warning}")
