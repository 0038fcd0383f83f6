"""Decides what happens to a run in a shared job when its attempt has ended: over, or given back.

Writes the final event of supervisors that were killed, and gives claims back; the executor starts the runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hpckit.model import events
from hpckit.model.failure import Cause
from hpckit.model.plan import JobSpec
from hpckit.model.run import (
    build_end_event_of_lost_round,
    failure_of_unended_attempt,
    last_round_number,
    supervisor_lost_failure,
)
from hpckit.model.states import RequeueOutcome, RunState
from hpckit.planning.jobs.shared_jobs import EndedAttempt, does_run_wait_for_slot_again
from hpckit.planning.recovery.ledger import build_ledger_from_events, explain_exhausted_restart_budget
from hpckit.record.attempts import latest_attempt_number, read_step_and_total_steps
from hpckit.record.claims import release_run_claim
from hpckit.record.counted_events import read_events_for_restart_budget
from hpckit.record.launches import Launch, load_run_settings
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import append_event, read_events
from hpckit.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedJobEnds:
    """Settles the runs of one job whose attempts have ended."""

    launch: Launch
    job: JobSpec
    claims: Path

    def finish_or_release_exited_run(self, run: int, *, before: int, code: int, stopped: bool) -> bool:
        """Settle a run whose supervisor has exited with this code; return whether the run is fine.

        It had `before` attempts when it was started; `stopped` is whether the job is about to end.
        """
        number = latest_attempt_number(self.launch.paths.run(run).attempts)
        if number > before:
            return self._finish_or_release_run(run, number, code=code, stopped=stopped)
        if stopped:
            release_run_claim(self.claims, run)
        # Otherwise nothing was started, and the supervisor has printed why; or the run had
        # completed before.
        return stopped or code == 0

    def finish_or_release_claimed_run(self, run: int) -> None:
        """Settle a run that an earlier start of this job had claimed."""
        number = latest_attempt_number(self.launch.paths.run(run).attempts)
        if number:
            self._finish_or_release_run(run, number, code=1, stopped=True)
        else:
            release_run_claim(self.claims, run)

    def _finish_or_release_run(self, run: int, number: int, *, code: int, stopped: bool) -> bool:
        told = tuple(read_events(self._attempt_paths(run, number).events))
        ends = [event for event in told if isinstance(event, events.AttemptEnded)]
        end = ends[-1] if ends else self._write_final_event(run, number, told, code=code)
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
            and does_run_wait_for_slot_again(ended, self.job.shared_job)
        ):
            release_run_claim(self.claims, run)
            return True
        return end.state is RunState.completed

    def _write_final_event(
        self, run: int, number: int, told: Sequence[events.Event], *, code: int
    ) -> events.AttemptEnded:
        """Write how the attempt of a killed supervisor ended, within the run's budgets."""
        paths, at = self._attempt_paths(run, number), datetime.now(UTC)
        failure = failure_of_unended_attempt(told) or supervisor_lost_failure(Cause.launcher_lost)
        if code < 0:
            failure = replace(failure, message=f"its supervisor was killed by signal {-code}")
        ended = build_end_event_of_lost_round(
            failure, at=at, number=last_round_number(told), step=read_step_and_total_steps(paths)[0]
        )
        earlier = read_events_for_restart_budget(self.launch, run, before=number)
        ledger = build_ledger_from_events((*earlier, *told)).after_round(ended, number)
        spent = explain_exhausted_restart_budget(
            ledger, failure, load_run_settings(self.launch, run)[0].recovery
        )
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

    def _attempt_paths(self, run: int, number: int) -> AttemptPaths:
        return self.launch.paths.run(run).attempt(number)
