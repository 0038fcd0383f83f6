"""Decides what happens to a run in a shared job when its attempt has ended: over, or given back.

Writes the final event of supervisors that were killed, and gives claims back; the executor starts
the runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hpckit.model import events
from hpckit.model.failure import Cause
from hpckit.model.plan import JobSpec
from hpckit.model.run import last_round, lost, missing_final_event, round_lost
from hpckit.model.states import RequeueOutcome, RunState
from hpckit.planning.jobs.shared_jobs import EndedAttempt, comes_back
from hpckit.planning.recovery.ledger import exhausted, read_ledger
from hpckit.record.attempts import latest_attempt, progress_of
from hpckit.record.claims import give_back
from hpckit.record.counted_events import counted_events
from hpckit.record.launches import Launch, load_settings
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import append_event, read_events
from hpckit.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedJobEnds:
    """Settles the runs of one job whose attempts have ended."""

    launch: Launch
    job: JobSpec
    claims: Path

    def settle(self, run: int, *, before: int, code: int, stopped: bool) -> bool:
        """Settle a run whose supervisor has exited with this code; return whether the run is fine.

        It had `before` attempts when it was started; `stopped` is whether the job is about to end.
        """
        number = latest_attempt(self.launch.paths.run(run).attempts)
        if number > before:
            return self._settle(run, number, code=code, stopped=stopped)
        if stopped:
            give_back(self.claims, run)
        # Otherwise nothing was started, and the supervisor has printed why; or the run had
        # completed before.
        return stopped or code == 0

    def take_over(self, run: int) -> None:
        """Settle a run that an earlier start of this job had claimed."""
        number = latest_attempt(self.launch.paths.run(run).attempts)
        if number:
            self._settle(run, number, code=1, stopped=True)
        else:
            give_back(self.claims, run)

    def _settle(self, run: int, number: int, *, code: int, stopped: bool) -> bool:
        told = tuple(read_events(self._paths(run, number).events))
        ends = [event for event in told if isinstance(event, events.AttemptEnded)]
        end = ends[-1] if ends else self._final_event(run, number, told, code=code)
        answers = [event.outcome for event in told if isinstance(event, events.RequeueAsked)]
        began = [event.at for event in told if isinstance(event, events.AttemptStarted)]
        ended = EndedAttempt(
            state=end.state,
            cause=None if end.failure is None else end.failure.cause,
            again=RequeueOutcome.requeued in answers,
            took=end.at - began[0] if began else timedelta(),
            stopped=stopped,
        )
        if (
            self.job.requeue
            and self.job.shared_job is not None
            and comes_back(ended, self.job.shared_job)
        ):
            give_back(self.claims, run)
            return True
        return end.state is RunState.completed

    def _final_event(
        self, run: int, number: int, told: Sequence[events.Event], *, code: int
    ) -> events.AttemptEnded:
        """Write how the attempt of a killed supervisor ended, within the run's budgets."""
        paths, at = self._paths(run, number), datetime.now(UTC)
        failure = missing_final_event(told) or lost(Cause.launcher_lost)
        if code < 0:
            failure = replace(failure, message=f"its supervisor was killed by signal {-code}")
        ended = round_lost(failure, at=at, number=last_round(told), step=progress_of(paths)[0])
        earlier = counted_events(self.launch, run, before=number)
        ledger = read_ledger((*earlier, *told)).after(ended, number)
        spent = exhausted(ledger, failure, load_settings(self.launch, run)[0].recovery)
        end = events.AttemptEnded(
            at=at,
            state=RunState.interrupted if spent is None else RunState.failed,
            exit_code=128 - code if code < 0 else 1,
            failure=replace(failure, message=f"{failure.message}; {spent}") if spent else failure,
        )
        with contextlib.suppress(OSError):
            append_event(paths.events, ended)
            append_event(paths.events, end)
        return end

    def _paths(self, run: int, number: int) -> AttemptPaths:
        return self.launch.paths.run(run).attempt(number)
