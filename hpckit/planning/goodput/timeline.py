"""What a run was doing at every moment, from one pass over its record. Pure.

Each stretch of time belongs to one phase, on a clock that never goes back, so that the phases add
up whatever is in the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from hpckit.model import events
from hpckit.model.failure import Cause, Failure, RankExit
from hpckit.model.goodput import Interruption, StepProgress
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.goodput.phases import (
    ZERO,
    Phase,
    RoundTime,
    Stretch,
    assume_utc,
    clamp_recorded_duration,
)
from hpckit.values import dataclass, field, replace

_STANDSTILL = timedelta(minutes=2)
_WAITING = frozenset({Phase.queue, Phase.idle, Phase.suspended})
_UNUSUAL = 10
"""How many times its usual step nothing has to come of a round before that is remarkable."""


@dataclass(slots=True, kw_only=True)
class Timeline:
    """What a run did so far. `submissions` are sorted; `progress` is by attempt number.

    `intervals` are the training times between saves, `stalls` the standstill of each save, `writing` how long
    all saves took until their commits. `stretches` are all times in order, as they were counted.
    """

    submissions: Sequence[datetime]
    progress: Mapping[int, StepProgress]
    spent: dict[Phase, timedelta] = field(default_factory=lambda: dict.fromkeys(Phase, ZERO))
    rounds: list[RoundTime] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    interruptions: list[Interruption] = field(default_factory=list)
    stalls: list[timedelta] = field(default_factory=list)
    intervals: list[timedelta] = field(default_factory=list)
    saved_bytes: int = 0
    writing: timedelta = ZERO
    attempts: int = 0
    restarts: int = 0
    completed: bool = False
    first_wait: timedelta = ZERO
    _clock: datetime | None = None
    _phase: Phase = Phase.queue
    _attempt: int = 0
    _round: RoundTime | None = None
    _open: bool = False
    _blamed: bool = False
    _told: Cause | None = None

    def begin_attempt(self, attempt: int, at: datetime | None) -> None:
        """Begin an attempt; `at` is its first sign of life, if there was any."""
        self._end_attempt_of_dead_supervisor(at)
        if at is not None:
            self._count_idle_and_queue_time(at)
        if not self.attempts:
            self.first_wait = self.spent[Phase.queue]
        self.attempts += 1
        self._attempt, self._round, self._open = attempt, None, at is not None
        self._blamed, self._told = False, None
        self._phase = self._start_or_restart_phase() if self._open else Phase.queue

    def add_event(self, event: events.Event) -> None:
        """Take the next event of the attempt into account."""
        self._advance_clock(event.at)
        match event:
            case events.RoundStarted():
                self._start_round(event.round, event.nodes)
            case events.StepReached():
                self._record_step(event)
            case events.RankExited() if event.exit.failed:
                self._record_rank_failure(event.round, event.exit)
            case events.NodeLost():
                self._record_lost_node(event)
            case events.CheckpointSaved():
                self._record_save(event)
            case events.Suspended():
                self._mark_time_suspended(assume_utc(event.at), clamp_recorded_duration(event.seconds))
            case events.NoticeHeard():
                self._told = event.cause
            case events.RoundEnded():
                self._end_round(event)
            case events.AttemptEnded():
                self._end_attempt(event)
            case _:
                pass

    def add_remaining_time(self, until: datetime | None, *, alive: bool) -> None:
        """End the timeline: at `until` if the run continues or waits, otherwise with its record."""
        if until is not None and alive and self._open:
            self._advance_clock(until)
            return
        self._end_attempt_of_dead_supervisor(until)
        if until is not None and (self._clock is not None or self.submissions):
            self._count_idle_and_queue_time(until)

    def measure_unusual_standstill(self, until: datetime) -> timedelta | None:
        """Return how long no step of the open round has begun; None if that is usual.

        Progress is written every half a minute at most, so less than minutes says nothing.
        """
        now, said = self._round, self.progress.get(self._attempt)
        if not self._open or self._phase is not Phase.training or now is None or said is None:
            return None
        if said.round != now.number or now.first is None or said.step < now.first:
            return None
        gone = assume_utc(until) - assume_utc(said.at)
        usual = max(now.trained - gone, ZERO) / (said.step - now.first + 1)
        return gone if gone > max(_STANDSTILL, _UNUSUAL * usual) else None

    def _advance_clock(self, at: datetime) -> None:
        """Move the clock; the elapsed time belongs to the present phase."""
        at = assume_utc(at)
        if self._clock is None:
            self._clock = at
        gone = max(at - self._clock, ZERO)
        now = self._round
        self._record_time_in_phase(self._clock, self._clock + gone)
        self._clock += gone
        if self._phase is Phase.training and now is not None:
            now.trained += gone
            return
        self.spent[self._phase] += gone
        if now is not None and self._phase is Phase.trouble:
            now.troubled += gone
        elif now is not None:
            now.stepless[self._phase] = now.stepless.get(self._phase, ZERO) + gone

    def _record_time_in_phase(self, begin: datetime, end: datetime) -> None:
        if end <= begin:
            return
        same = (self._phase, self._attempt, begin)
        for last in self.stretches[-1:]:
            if last.round is self._round and (last.phase, last.attempt, last.end) == same:
                last.end = end
                return
        self.stretches.append(
            Stretch(phase=self._phase, begin=begin, end=end, attempt=self._attempt, round=self._round)
        )

    def _relabel_training_as_trouble(self, now: RoundTime, taken: timedelta) -> None:
        for place in range(len(self.stretches) - 1, -1, -1):
            one = self.stretches[place]
            if taken <= ZERO or one.round is not now:
                return
            if one.phase is not Phase.training:
                continue
            part = min(one.length, taken)
            taken -= part
            trouble = replace(one, phase=Phase.trouble, begin=one.end - part)
            one.end -= part
            self.stretches[place : place + 1] = [one, trouble] if one.length else [trouble]

    def _mark_time_suspended(self, end: datetime, lasted: timedelta) -> None:
        """Turn what passed until `end` while the attempt was alive into a suspension."""
        begin = end - lasted
        for place in range(len(self.stretches) - 1, -1, -1):
            one = self.stretches[place]
            if one.end <= begin:
                return
            low, high = max(one.begin, begin), min(one.end, end)
            if one.phase in _WAITING or high <= low:
                continue
            self._move_time_to_suspended(one, high - low)
            within = ((one.phase, one.begin, low), (Phase.suspended, low, high), (one.phase, high, one.end))
            self.stretches[place : place + 1] = [
                replace(one, phase=phase, begin=start, end=stop)
                for phase, start, stop in within
                if stop > start
            ]

    def _move_time_to_suspended(self, one: Stretch, part: timedelta) -> None:
        self.spent[Phase.suspended] += part
        now = one.round
        if one.phase is Phase.training and now is not None:
            now.trained -= part
            now.saved_at = min(now.saved_at, now.trained)
            return
        self.spent[one.phase] -= part
        if now is not None and one.phase is Phase.trouble:
            now.troubled -= part
        elif now is not None and one.phase in now.stepless:
            now.stepless[one.phase] -= part

    def _count_idle_and_queue_time(self, until: datetime) -> None:
        """Pass the time to the next attempt: idle until a new submission, if there was one."""
        until, first = assume_utc(until), next(iter(self.submissions), None)
        if self._clock is None:
            self._clock = until if first is None else min(first, until)
        if self.attempts:
            again = [at for at in self.submissions if self._clock < at <= until]
            self._phase = Phase.idle
            self._advance_clock(min(again, default=self._clock))
        self._phase = Phase.queue
        self._advance_clock(until)

    def _start_or_restart_phase(self) -> Phase:
        began = any(round_.first is not None for round_ in self.rounds)
        return Phase.restart if began else Phase.start

    def _start_round(self, number: int, nodes: tuple[str, ...] = ()) -> RoundTime:
        self._round = RoundTime(number=number, nodes=nodes)
        self._phase = self._start_or_restart_phase()
        self.rounds.append(self._round)
        return self._round

    def _record_step(self, event: events.StepReached) -> None:
        now = self._round
        if now is None or now.number != event.round:
            now = self._start_round(event.round)
        if now.first is None:
            self.restarts += self._start_or_restart_phase() is Phase.restart
            self._phase = Phase.training
        now.record_first_step(event.step)
        now.record_later_step(event.step)

    def _record_rank_failure(self, number: int, ended: RankExit) -> None:
        now = self._round
        if now is None or now.number != number or self._clock is None:
            return
        now.record_later_step(ended.step)
        self._move_time_to_trouble(ZERO if ended.at is None else self._clock - assume_utc(ended.at))

    def _record_lost_node(self, event: events.NodeLost) -> None:
        now = self._round
        if now is not None and (event.node in now.nodes or not now.nodes):
            self._move_time_to_trouble(clamp_recorded_duration(event.silent_s))

    def _move_time_to_trouble(self, since: timedelta) -> None:
        now = self._round
        if now is None or self._phase not in {Phase.training, Phase.trouble}:
            return
        taken = min(max(since - now.troubled, ZERO), now.trained)
        now.trained -= taken
        now.troubled += taken
        self.spent[Phase.trouble] += taken
        self._relabel_training_as_trouble(now, taken)
        self._phase = Phase.trouble

    def _record_save(self, event: events.CheckpointSaved) -> None:
        stall, took = (clamp_recorded_duration(event.stall_s), clamp_recorded_duration(event.duration_s))
        self.stalls.append(stall)
        self.saved_bytes += max(event.size, 0)
        self.writing += took
        now = self._round
        if now is None or now.number != event.round or self._phase is not Phase.training:
            return
        now.stalled += stall
        now.saves.append((now.trained, stall))
        began = now.trained - took
        if began > now.saved_at:
            self.intervals.append(began - now.saved_at)
        now.saved_at = max(began + stall, ZERO)

    def _end_round(self, event: events.RoundEnded) -> None:
        completed = event.failure is None and event.action is RoundAction.completed
        self._move_time_to_trouble(clamp_recorded_duration(event.silent_s))
        now = self._find_ended_round(event, completed=completed)
        if now is not None and completed:
            self._count_whole_round_as_training(now)
            return
        self._blamed = event.action is not RoundAction.new_round
        self._phase, self._round = self._start_or_restart_phase(), None
        if event.failure is not None:
            self._record_interruption(event.failure, None if now is None else now.number, event.action)

    def _find_ended_round(self, event: events.RoundEnded, *, completed: bool) -> RoundTime | None:
        """Return the round that ended; None if its ranks were never started."""
        now = self._round
        if now is None or now.number != event.round:
            if not completed and event.first_step is None:
                return None
            now = self._start_round(event.round)
        now.record_first_step(event.first_step)
        now.record_later_step(event.step)
        return now

    def _count_whole_round_as_training(self, now: RoundTime) -> None:
        """Count a completed round as work, even if it never reported steps."""
        self.completed, self._blamed = True, True
        self._phase = Phase.training
        if now.first is not None:
            return
        for phase, gone in now.stepless.items():
            self.spent[phase] -= gone
            now.trained += gone
        for stretch in self.stretches:
            if stretch.round is now and stretch.phase in now.stepless:
                stretch.phase = Phase.training
        now.stepless.clear()

    def _end_attempt(self, event: events.AttemptEnded) -> None:
        self._record_latest_progress()
        now = self._round
        if event.state is RunState.completed and now is not None:
            self._count_whole_round_as_training(now)
        elif event.failure is not None and not self._blamed:
            self._record_interruption(event.failure, None if now is None else now.number, None)
        self._open, self._round, self._phase = False, None, Phase.queue

    def _end_attempt_of_dead_supervisor(self, bound: datetime | None) -> None:
        """End an attempt without a final event, at its last sign of life."""
        if not self._open:
            return
        said = self.progress.get(self._attempt)
        if said is not None:
            at = assume_utc(said.at)
            self._advance_clock(at if bound is None else min(at, assume_utc(bound)))
        self._record_latest_progress()
        message = "its supervisor died before recording the outcome"
        failure = Failure(cause=self._told or Cause.launcher_lost, message=message)
        self._record_interruption(failure, None if self._round is None else self._round.number, None)
        self._open, self._round, self._phase = False, None, Phase.queue

    def _record_latest_progress(self) -> None:
        now, said = self._round, self.progress.get(self._attempt)
        if now is not None and said is not None and said.round == now.number:
            now.record_later_step(said.step)

    def _record_interruption(self, failure: Failure, number: int | None, action: RoundAction | None) -> None:
        assert self._clock is not None, "an interruption follows an event"  # noqa: S101
        self.interruptions.append(
            Interruption(
                at=self._clock,
                attempt=self._attempt,
                round=number,
                cause=failure.cause,
                message=failure.message,
                rank=failure.rank,
                node=failure.node,
                step=failure.step,
                action=action,
            )
        )
