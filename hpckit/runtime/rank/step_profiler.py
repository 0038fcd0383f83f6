"""Profiles of this rank's steps: begun and ended at step boundaries, when asked to or planned.

Nothing in it may stop training: what goes wrong is told to the supervisor, and written to the log.
Without a profile it costs a comparison a step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from hpckit.model import messages
from hpckit.model.profile import RankProfile, planned_profile_id
from hpckit.model.settings import Profile, ProfileTool
from hpckit.record.layout import RoundPaths
from hpckit.runtime.rank.profile_tools import ProfileRecorder, make_recorder
from hpckit.values import dataclass, field

_log = logging.getLogger("hpckit.rank")
_OVER = "its step loop was over before"
_LEFT = "it was asked to leave before"


@dataclass(slots=True)
class _Running:
    """A profile under way. `first` is the first step that counts, None while it warms up."""

    order: messages.StartProfile
    recorder: ProfileRecorder
    first: int | None = None
    done: int = 0
    held: bool = False


@dataclass(slots=True, kw_only=True)
class StepProfiler:
    """The profiles of one rank. `paths` is None if there is no folder for traces.

    `nsys` is what the agent says about it (`NSYS_VARIABLE`). `apart` is a context for
    work that is no part of a step.
    """

    rank: int = 0
    round: int = 0
    paths: RoundPaths | None = None
    planned: Profile = field(default_factory=Profile)
    nsys: str | None = None
    tell: Callable[[messages.Message], None] = lambda _message: None
    apart: Callable[[], AbstractContextManager[None]] = nullcontext
    _asked: messages.StartProfile | None = field(default=None, init=False)
    _running: _Running | None = field(default=None, init=False)
    _planned_at: int = field(default=-1, init=False)
    _windows: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.planned.at_step is not None and self.rank in self.planned.ranks:
            self._planned_at = self.planned.at_step

    def accept_profile_request(self, order: messages.StartProfile) -> None:
        """Note a request; it begins at the next boundary."""
        if self._running is not None or self._asked is not None:
            self._report_profile(order, problem="another profile is under way on it")
        else:
            self._asked = order

    def begin_due_profile(self, step: int) -> None:
        """Begin what is due before this step."""
        # One step before is the warm-up; a loop that begins at that step warms up in it.
        if 0 <= self._planned_at <= step + 1:
            self._request_planned_profile(step)
        if self._running is not None:
            self._run_ending_profile_on_error(self._record_next_step, step)
        elif self._asked is not None:
            self._run_ending_profile_on_error(self._start_profile, step)

    def end_due_profile(self, step: int) -> None:
        """End what has lasted long enough, after this step."""
        running = self._running
        if running is None or running.first is None:
            return
        running.done = step - running.first + 1
        if running.done >= running.order.steps:
            self._run_ending_profile_on_error(self._write_profile, step)

    def stop_recording(self) -> None:
        """Stop recording, as the step loop was left: by `break`, or by an exception.

        What was recorded is written by `finish_profiles`, which does not come after an exception.
        """
        running = self._running
        if running is not None and not running.held:
            running.held = True
            self._run_ending_profile_on_error(lambda _step: running.recorder.stop_and_keep(), 0)

    def finish_profiles(self) -> None:
        """Write what was recorded, as the step loop is over; no step will come."""
        self._refuse_request(_OVER)
        if self._running is not None:
            if self._running.done:
                self._run_ending_profile_on_error(self._write_profile, self._running.done)
            else:
                self._drop_profile(_OVER)

    def drop_profiles(self) -> None:
        """Drop what was recorded: the rank was asked to leave, and has no time to write it."""
        self._refuse_request(_LEFT)
        self._drop_profile(_LEFT)

    def _refuse_request(self, why: str) -> None:
        order, self._asked = self._asked, None
        if order is not None:
            self._report_profile(order, problem=why)

    def _request_planned_profile(self, step: int) -> None:
        planned_at, self._planned_at = self._planned_at, -1
        if step > planned_at:
            return
        if self._running is not None or self._asked is not None:
            self._report_profile(self._planned_request(), problem="another profile was under way on it")
        else:
            self._asked = self._planned_request()

    def _planned_request(self) -> messages.StartProfile:
        return messages.StartProfile(
            id=planned_profile_id(self.round),
            round=self.round,
            steps=self.planned.steps,
            ranks=tuple(self.planned.ranks),
            tool=self.planned.tool,
        )

    def _start_profile(self, step: int) -> None:
        order, self._asked = self._asked, None
        assert order is not None, "called for an order"  # noqa: S101
        try:
            tool = self._make_recorder(order)
        except ValueError as error:
            self._report_profile(order, problem=str(error))
            return
        self._windows += order.tool is ProfileTool.nsys
        self._running = _Running(order, tool)
        _log.info("profiling %d steps after step=%d", order.steps, step)
        tool.begin_profile()

    def _make_recorder(self, order: messages.StartProfile) -> ProfileRecorder:
        if self.paths is None:
            raise ValueError("the run has no folder for traces")
        if order.tool is ProfileTool.nsys and self._windows:
            raise ValueError("nsys records one window for each start of a rank, and already did")
        return make_recorder(order.tool, self.paths.profile_trace(order.id, self.rank), self.nsys)

    def _record_next_step(self, step: int) -> None:
        running = self._running
        if running is None:
            return
        if running.first is None:
            running.first = step
        running.recorder.record_next_step()

    def _write_profile(self, _step: int) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        try:
            size = running.recorder.stop_and_write()
        except Exception as error:  # noqa: BLE001  # as in `_run_ending_profile_on_error`
            self._report_error(running.order, error)
            return
        short = running.done < running.order.steps
        _log.info("profiled steps=%d from step=%d", running.done, running.first)
        self._report_profile(
            running.order,
            first_step=running.first,
            steps=running.done,
            size=size,
            problem="its step loop was over after these steps" if short else None,
        )

    def _drop_profile(self, why: str) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._stop_recorder(running)
            self._report_profile(running.order, problem=why)

    def _run_ending_profile_on_error(self, work: Callable[[int], None], step: int) -> None:
        """Do work that is no part of a step; whatever a profiler raises ends the profile alone."""
        order = self._running.order if self._running is not None else self._asked
        try:
            with self.apart():
                work(step)
        except Exception as error:  # noqa: BLE001  # torch, CUDA, the disk: training continues
            running, self._running, self._asked = self._running, None, None
            if running is not None:
                self._stop_recorder(running)
            if order is not None:
                self._report_error(order, error)

    def _stop_recorder(self, running: _Running) -> None:
        try:
            running.recorder.stop_and_drop()
        except Exception as error:  # noqa: BLE001  # it had not even begun, perhaps
            _log.info("the profiler did not stop: %s", error)

    def _report_error(self, order: messages.StartProfile, error: Exception) -> None:
        text = " ".join(str(error).split()) or "no reason given"
        self._report_profile(order, problem=f"{type(error).__name__}: {text[:300]}")

    def _report_profile(
        self,
        order: messages.StartProfile,
        *,
        first_step: int | None = None,
        steps: int = 0,
        size: int = 0,
        problem: str | None = None,
    ) -> None:
        if problem is not None:
            _log.info("profile: %s", problem)
        told = RankProfile(rank=self.rank, first_step=first_step, steps=steps, size=size, problem=problem)
        self.tell(messages.Profiled(id=order.id, round=order.round, profile=told))
