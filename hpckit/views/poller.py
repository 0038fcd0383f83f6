"""Polls a launch: reads its record often, asks the scheduler rarely, detects when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from hpckit.context import Context
from hpckit.model.launch import ClusterKind
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, check_launch_exists
from hpckit.values import dataclass, field, replace
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import Ask, build_launch_view


@dataclass(frozen=True, slots=True, kw_only=True)
class PollBackoff:
    """The pause between scheduler queries: `first`, then doubled each time, up to `longest`.

    It starts at `first` again when a run has changed; it is `shortest` when a record shows an end.
    """

    first: timedelta
    longest: timedelta
    shortest: timedelta


POLL_BACKOFF = PollBackoff(
    first=timedelta(seconds=15), longest=timedelta(seconds=60), shortest=timedelta(seconds=5)
)


_SLOW = 10
"""Pauses are at least this many times the duration of a query: Slurm serves the whole cluster."""


@dataclass(slots=True, kw_only=True)
class Poller:
    """What is known about a launch, or about some of its runs, while waiting for it."""

    launch: Launch
    context: Context
    indices: Sequence[int] | None = None
    rhythm: PollBackoff = POLL_BACKOFF
    known: dict[int, RunView] = field(default_factory=dict, init=False)
    settled: set[int] = field(default_factory=set, init=False)
    asked_at: datetime = field(init=False)
    pause: timedelta = field(init=False)
    doubted_at: datetime | None = field(default=None, init=False)
    queue_at: datetime | None = field(default=None, init=False)
    warning: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.asked_at = self.context.now()
        self.pause = self.rhythm.first

    @property
    def views(self) -> tuple[RunView, ...]:
        """The latest view of every run."""
        return tuple(self.known[index] for index in sorted(self.known))

    @property
    def open_run_indices(self) -> tuple[int, ...]:
        """The runs that may still change."""
        every = range(len(self.launch.runs)) if self.indices is None else self.indices
        return tuple(index for index in every if index not in self.settled)

    @property
    def are_all_runs_over(self) -> bool:
        """Whether nothing more will happen."""
        return not self.open_run_indices

    def poll_once(self) -> None:
        """Read the record of the open runs, and ask the scheduler if it is time to.

        Raises NotFoundError if the launch has been removed: its runs would read as not yet begun.
        """
        check_launch_exists(self.launch.folder)
        ask = Ask.open_runs if self._is_slurm_query_due else Ask.nothing
        began = self.context.now()
        seen = build_launch_view(
            self.launch,
            self.context,
            ask=ask,
            indices=self.open_run_indices,
            # An end is final once Slurm gave an answer after it.
            freshness=Freshness(not_before=self.doubted_at),
        )
        if ask is not Ask.nothing:
            self.asked_at = self.context.now()
            spent = self.asked_at - began
            self.pause = max(min(self.pause * 2, self.rhythm.longest), spent * _SLOW)
            self.queue_at = seen.asked_at or self.queue_at
            if seen.warning and seen.warning != self.warning:
                self.context.note(f"warning: {seen.warning}")
            self.warning = seen.warning
        young = seen.asked_at is None or seen.asked_at >= (self.doubted_at or began)
        for view in seen.runs:
            self._update_view(view, final=ask is not Ask.nothing and young)
        open_views = (self.known[index] for index in self.open_run_indices)
        doubted = any(view.can_no_longer_change for view in open_views)
        self.doubted_at = (self.doubted_at or self.context.now()) if doubted else None

    @property
    def _is_on_slurm(self) -> bool:
        return self.launch.cluster.kind is ClusterKind.slurm

    @property
    def _is_slurm_query_due(self) -> bool:
        since = self.context.now() - self.asked_at
        return self._is_on_slurm and since >= (self.rhythm.shortest if self.doubted_at else self.pause)

    def _update_view(self, view: RunView, *, final: bool) -> None:
        """Take in a view; an end only in our record is final if Slurm cannot restart the run."""
        index = view.record.index
        before = self.known.get(index)
        if before is not None and before.record.state is not view.record.state:
            self.pause = self.rhythm.first
        if before is not None and view.observation is None and not final:
            view = replace(view, observation=before.observation)
        self.known[index] = view
        if view.can_no_longer_change and (
            final or not self._is_on_slurm or view.record.state is RunState.completed
        ):
            self.settled.add(index)
