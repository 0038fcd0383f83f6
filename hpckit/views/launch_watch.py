"""A launch in a live view: its record is read often, Slurm is asked rarely."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from hpckit.context import Context
from hpckit.model.states import RunState
from hpckit.planning.eta import RunDuration, estimate_completion
from hpckit.record.launch_events import Mark, stat_events_files
from hpckit.record.launches import Launch, load_launch_of_any_owner
from hpckit.report.failures import format_short_failure_lines
from hpckit.report.live import Progress
from hpckit.report.rows import RunRow, build_run_row
from hpckit.values import dataclass, field
from hpckit.views.poller import PollBackoff, Poller

POLL_BACKOFF = PollBackoff(
    first=timedelta(seconds=30), longest=timedelta(minutes=5), shortest=timedelta(seconds=30)
)
"""A view may stay open for days: Slurm is asked at most twice a minute, then less often."""


@dataclass(slots=True, kw_only=True)
class LaunchWatch:
    """A launch in a live view, or its runs of `indices`; `rhythm` is how often Slurm is asked.

    `mark` is that of its events when it was last read in full.
    """

    launch: Launch
    context: Context
    indices: Sequence[int] | None = None
    rhythm: PollBackoff = POLL_BACKOFF
    poller: Poller = field(init=False)
    mark: Mark = field(default=(), init=False)
    looks: int = field(default=0, init=False)
    _paces: dict[int, _Pace] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.poller = Poller(
            launch=self.launch, context=self.context, indices=self.indices, rhythm=self.rhythm
        )
        self.mark = self.current_events_files_stat

    @property
    def current_events_files_stat(self) -> Mark:
        """What changes when the launch itself gets an event."""
        try:
            return stat_events_files(self.launch.paths)
        except OSError:
            return ()

    @property
    def run_rows(self) -> list[RunRow]:
        """The rows of all runs in the view."""
        return [build_run_row(view) for view in self.poller.views]

    def refresh_once(self) -> None:
        """Look once; the first look reads only the record, so that something is visible at once."""
        mark = self.current_events_files_stat
        if mark != self.mark:
            # Runs were resumed, cancelled or submitted: those that had ended may continue.
            self.mark = mark
            self.poller.launch = load_launch_of_any_owner(self.launch.folder)
            self.poller.settled.clear()
        if self.looks == 1:
            self.ask_slurm_next_time()
        self.poller.poll_once()
        self.looks += 1

    def ask_slurm_next_time(self) -> None:
        """Have the next look ask Slurm."""
        self.poller.asked_at -= self.rhythm.first

    def estimate_progress(self, rows: Sequence[RunRow]) -> Progress:
        """Return the progress of these runs."""
        now = self.context.now()
        found = estimate_completion([self._estimate_run_duration(row, now) for row in rows])
        return Progress(
            states=tuple(row.state for row in rows),
            share=found.share,
            remaining=found.remaining,
            at=now,
            queue_at=self.poller.queue_at,
            failures=format_short_failure_lines(rows),
            satellites=tuple(satellite for row in rows for satellite in row.satellites),
        )

    def _estimate_run_duration(self, row: RunRow, now: datetime) -> RunDuration:
        pace = self._paces.setdefault(row.index, _Pace())
        left = pace.estimate_time_left(row, now)
        done = None
        if row.step is not None and row.total:
            done = min((row.step + 1) / row.total, 1.0)
        return RunDuration(state=row.state, elapsed=row.elapsed(now), done=done, left=left)


@dataclass(slots=True)
class _Pace:
    """How fast the steps of a round pass: since it was first seen, at `step`."""

    place: tuple[int, int | None] = (0, None)
    at: datetime | None = None
    step: int = 0

    def estimate_time_left(self, row: RunRow, now: datetime) -> timedelta | None:
        """Return how long the other steps of a run take; None if that is not known."""
        if row.state is not RunState.running or row.step is None or not row.total:
            return None
        if self.at is None or self.place != (row.attempt, row.round) or row.step < self.step:
            self.place, self.at, self.step = (row.attempt, row.round), now, row.step
        passed, elapsed = row.step - self.step, now - self.at
        if not passed:
            # The first look: a run that never began again has done all its steps since its start.
            again = row.attempt > 1 or row.round
            passed, elapsed = row.step + 1, timedelta(0) if again else row.elapsed(now) or elapsed
        return max(row.total - 1 - row.step, 0) * elapsed / passed if elapsed else None
