"""Promises of planning.goodput and planning.ettr: where the time of a run went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.model.failure import Cause, Failure, RankExit
from hpckit.model.goodput import Goodput, MeasuredTimes, StepProgress, TimePart, TimeParts, TimeSpan
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.goodput.account import (
    MOST_SAVES,
    compute_expected_ettr,
    compute_goodput,
    list_submission_times,
    list_time_spans,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
KILLED = Failure(cause=Cause.signal, message="rank 1 was killed by SIGKILL", rank=1, step=19)
PREEMPTED = Failure(cause=Cause.preempted, message="preempted", step=19)


def at(seconds: float) -> datetime:
    """Return a moment after the start."""
    return START + timedelta(seconds=seconds)


def began(when: float, attempt: int = 1) -> events.AttemptStarted:
    """Return the beginning of an attempt."""
    return events.AttemptStarted(
        at=at(when), attempt=attempt, job="7", restart_count=0, host="n1", pid=1, started="1"
    )


def round_began(when: float, number: int = 0) -> events.RoundStarted:
    """Return the beginning of a round on two nodes."""
    return events.RoundStarted(at=at(when), round=number, world_size=2, nodes=("n1", "n2"))


def stepped(when: float, step: int, number: int = 0) -> events.StepReached:
    """Return the first step of a round."""
    return events.StepReached(at=at(when), round=number, step=step)


def saved(when: float, step: int, number: int = 0, *, stall: float = 0.5) -> events.CheckpointSaved:
    """Return a save of 2 s."""
    return events.CheckpointSaved(
        at=at(when), round=number, step=step, size=1000, stall_s=stall, duration_s=2
    )


def round_over(
    when: float, steps: tuple[int, int], number: int = 0, *, failure: Failure | None = KILLED
) -> events.RoundEnded:
    """Return the end of a round."""
    follows = RoundAction.end if failure is PREEMPTED else RoundAction.new_round
    action = RoundAction.completed if failure is None else follows
    return events.RoundEnded(
        at=at(when), round=number, first_step=steps[0], step=steps[1], action=action, failure=failure
    )


def over(
    when: float, state: RunState = RunState.completed, failure: Failure | None = None
) -> events.AttemptEnded:
    """Return the end of an attempt."""
    return events.AttemptEnded(at=at(when), state=state, exit_code=0, failure=failure)


def seconds(parts: TimeParts) -> dict[str, float]:
    """Return the parts that are not zero."""
    spans = {field.name: getattr(parts, field.name).total_seconds() for field in fields(parts)}
    return {name: span for name, span in spans.items() if span}


PLAIN = (began(10), round_began(12), stepped(15, 0), round_over(115, (0, 99), failure=None))
RESTARTED = (
    *(began(10), round_began(12), stepped(15, 0)),
    saved(27, 10),
    events.RankExited(
        at=at(36), round=0, exit=RankExit(rank=1, node="n2", code=None, signal="SIGKILL", at=at(35))
    ),
    *(round_over(37, (0, 19)), round_began(38, 1), stepped(40, 10, 1)),
    *(round_over(60, (10, 29), 1, failure=None), over(61)),
)


def test_account_of_a_plain_run_is_wait_start_and_work() -> None:
    """Without trouble the time is split into queue, start-up and steps."""
    told = compute_goodput([(1, (*PLAIN, over(116)))], submissions=[START])
    assert seconds(told.parts) == {"queue": 10, "start": 5, "productive": 101}
    assert told.parts.wall == timedelta(seconds=116)
    assert told.goodput == pytest.approx(101 / 106)
    assert told.ettr == pytest.approx(101 / 116)
    assert told.ettr_since_first_step == 1
    assert (told.attempts, told.rounds, told.interruptions) == (1, 1, ())
    assert told.measured.mtbf is None


def test_account_of_a_restart_has_its_lost_steps_and_its_standstill() -> None:
    """Steps done again cost their round's mean step time; trouble begins when the rank died."""
    told = compute_goodput([(1, RESTARTED)], submissions=[START])
    # Round 0 trained 15..35, 0.5 s of it stalled; half of its 20 steps were done again.
    assert seconds(told.parts) == {
        "queue": 10,
        "start": 5,
        "checkpoint": 0.5,
        "lost": 9.75,
        "restart": 5,
        "productive": 9.75 + 21,
    }
    assert (told.lost_steps, told.saves, told.saved_bytes, told.rounds) == (10, 1, 1000, 2)
    assert told.writing_share == timedelta(seconds=2) / told.parts.running
    assert told.failures == {Cause.signal: 1}
    assert told.measured == MeasuredTimes(
        mtbf=timedelta(seconds=51),
        stall=timedelta(seconds=0.5),
        interval=timedelta(seconds=10),
        restart=timedelta(seconds=3),
        queue=timedelta(0),
        detection=timedelta(seconds=2),
    )
    assert told.ettr_expected == compute_expected_ettr(told.measured)


def test_account_leaves_suspensions_out_of_every_other_part() -> None:
    """A suspension in the middle of steps, told late, and one during the start: neither is work."""
    history = [
        *(began(10), round_began(12)),
        events.Suspended(at=at(20), seconds=6),
        stepped(25, 0),
        saved(40, 10),
        events.Suspended(at=at(90), seconds=40),
        *(round_over(115, (0, 99), failure=None), over(116)),
    ]
    told = compute_goodput([(1, history)], submissions=[START])
    expected = {"queue": 10, "start": 9, "productive": 50.5, "checkpoint": 0.5, "suspended": 46}
    assert seconds(told.parts) == expected
    assert told.parts.running == timedelta(seconds=60)
    assert told.goodput == pytest.approx(50.5 / 60)
    spans = list_time_spans([(1, history)], submissions=[START])
    suspended = [span for span in spans if span.part is TimePart.suspended]
    assert [(one.begin, one.end) for one in suspended] == [(at(14), at(20)), (at(50), at(90))]
    assert _sums(spans) == told.parts


def test_spans_draw_saves_where_they_were_and_lost_steps_last() -> None:
    """A standstill ends with its save; what is done again later is the end of its round."""
    history = [
        began(0),
        round_began(0),
        stepped(10, 0),
        saved(20, 4, stall=2),
        round_over(30, (0, 9)),
        round_began(30, 1),
        stepped(40, 5, 1),
        round_over(50, (5, 9), 1, failure=None),
        over(50),
    ]
    spans = list_time_spans([(1, history)])
    assert [
        (span.part.value, (span.begin - START).total_seconds(), (span.end - START).total_seconds())
        for span in spans
    ] == [
        ("start", 0, 10),
        ("productive", 10, 18),
        ("checkpoint", 18, 20),
        ("productive", 20, 21),
        ("lost", 21, 30),
        ("restart", 30, 40),
        ("productive", 40, 50),
    ]
    assert _sums(spans) == compute_goodput([(1, history)]).parts


def test_spans_of_many_saves_stay_few_and_add_up() -> None:
    """Ten thousand saves are drawn together, as long as all of them took."""
    saves = [saved(10 + 2 * number, number, stall=1) for number in range(1, 10_000)]
    history = [began(0), round_began(0), stepped(10, 0), *saves, over(30_000)]
    spans = list_time_spans([(1, history)])
    assert len(spans) <= 2 * MOST_SAVES + 2
    assert _sums(spans) == compute_goodput([(1, history)]).parts


def test_account_loses_nothing_where_the_next_round_goes_on_behind() -> None:
    """A notice that was heeded costs a restart and a wait, no step; it is no failure."""
    told_to_stop = round_over(35, (0, 19), failure=PREEMPTED)
    first = (*PLAIN[:3], told_to_stop, over(36, RunState.interrupted, PREEMPTED))
    second = (began(50, 2), round_began(51), stepped(54, 20), round_over(64, (20, 29), failure=None))
    told = compute_goodput([(1, first), (2, (*second, over(64)))], submissions=[START])
    assert seconds(told.parts) == {"queue": 24, "start": 5, "restart": 5, "productive": 30}
    assert (told.failures, told.planned) == ({}, {Cause.preempted: 1})
    assert told.measured.mtbf is None
    assert told.measured.queue == timedelta(seconds=14)
    assert told.measured.between_planned == timedelta(seconds=40)
    assert told.first_wait == timedelta(seconds=10)


def test_account_counts_steps_lost_over_several_rounds() -> None:
    """A round that falls back behind an earlier beginning loses that earlier work as well."""
    history = [
        *(began(0), round_began(0), stepped(0, 0), round_over(10, (0, 9))),
        *(round_began(10, 1), stepped(10, 8, 1), round_over(20, (8, 17), 1)),
        *(round_began(20, 2), stepped(20, 4, 2), round_over(40, (4, 23), 2, failure=None)),
    ]
    told = compute_goodput([(1, (*history, over(40)))])
    assert told.lost_steps == 6 + 10
    assert seconds(told.parts) == {"lost": 16, "productive": 24}


def test_account_begins_trouble_when_a_node_fell_silent() -> None:
    """What passed between a node's final event and its loss was no work; a spare's loss is none."""
    lost = events.NodeLost(at=at(30), node="n2", silent_s=4)
    spare = events.NodeLost(at=at(20), node="n9", silent_s=4)
    history = (*PLAIN[:3], spare, lost, round_over(31, (0, 9)), stepped(36, 10, 1))
    told = compute_goodput([(1, history)], until=at(46), alive=True)
    assert seconds(told.parts) == {"start": 5, "restart": 10, "productive": 11 + 10}
    assert told.measured.detection == timedelta(seconds=5)


def test_account_of_a_lost_supervisor_ends_with_its_last_sign_of_life() -> None:
    """Without a final event the record and progress.json say how far an attempt got."""
    second = (began(60, 2), round_began(61), stepped(65, 5), round_over(70, (5, 9), failure=None))
    told = compute_goodput(
        [(1, PLAIN[:3]), (2, (*second, over(70)))], progress={1: StepProgress(round=0, step=9, at=at(25))}
    )
    assert seconds(told.parts) == {"start": 5, "queue": 35, "restart": 5, "lost": 5, "productive": 10}
    assert told.failures == {Cause.launcher_lost: 1}
    assert told.interruptions[0].at == at(25)


def test_account_of_a_run_that_goes_on_counts_to_now() -> None:
    """A living attempt trains until now; a waiting run queues until now."""
    alive = compute_goodput([(1, PLAIN[:3])], until=at(40), alive=True)
    assert seconds(alive.parts) == {"start": 5, "productive": 25}
    ended = (*PLAIN[:3], over(20, RunState.interrupted, PREEMPTED))
    waiting = compute_goodput([(1, ended)], until=at(40))
    assert seconds(waiting.parts) == {"start": 5, "productive": 5, "queue": 20}
    fresh = compute_goodput([], submissions=[START], until=at(40))
    assert seconds(fresh.parts) == {"queue": 40}
    assert (fresh.goodput, fresh.ettr, fresh.first_wait) == (None, None, timedelta(seconds=40))


def test_account_of_what_never_began_is_empty() -> None:
    """A run that was only rendered has no time."""
    assert compute_goodput([], until=START).parts == TimeParts()
    assert compute_goodput([(1, ())], until=START).ettr is None


def test_account_tells_waiting_for_a_person_from_waiting_for_nodes() -> None:
    """Between an end and the next submission a run is idle, not queued."""
    failed = (*PLAIN[:3], over(20, RunState.failed, KILLED))
    resumed = (began(100, 2), round_began(100), stepped(101, 0), over(111))
    told = compute_goodput([(1, failed), (2, resumed)], submissions=[at(5), at(90)])
    parts = seconds(told.parts)
    assert (parts["idle"], parts["queue"]) == (70, 5 + 10)


def test_account_of_a_command_without_steps_knows_its_work_once_it_completed() -> None:
    """A program that reports no step is unknown while it runs, and productive when it completes."""
    begun = (began(0), round_began(2))
    assert compute_goodput([(1, begun)], until=at(50), alive=True).goodput is None
    failed = compute_goodput([(1, (*begun, over(50, RunState.failed, KILLED)))])
    assert (failed.goodput, seconds(failed.parts)) == (None, {"start": 50})
    done = compute_goodput([(1, (*begun, over(50)))])
    assert seconds(done.parts) == {"start": 2, "productive": 48}
    assert done.goodput == pytest.approx(48 / 50)
    killed = replace(round_over(20, (0, 0)), first_step=None, step=None)
    restarted = compute_goodput([(1, (*begun, killed, round_began(21, 1), over(50)))])
    assert (restarted.goodput, restarted.lost_steps) == (None, None)  # what it repeated is unknown
    assert done.lost_steps == 0


def test_account_names_every_interruption_once() -> None:
    """The end of an attempt does not repeat what the end of its round said."""
    again = events.RoundEnded(
        at=at(40), round=0, first_step=0, step=9, action=RoundAction.new_attempt, failure=KILLED
    )
    missing = Failure(cause=Cause.agents_missing, message="n2 did not come")
    no_round = events.RoundEnded(
        at=at(59), round=0, first_step=None, step=None, action=RoundAction.end, failure=missing
    )
    told = compute_goodput(
        [
            (1, (*PLAIN[:3], again, over(41, RunState.interrupted, KILLED))),
            (2, (began(50, 2), no_round, over(60, RunState.failed, missing))),
        ]
    )
    assert told.rounds == 1
    assert [
        (interruption.attempt, interruption.round, interruption.cause, interruption.action)
        for interruption in told.interruptions
    ] == [(1, 0, Cause.signal, RoundAction.new_attempt), (2, None, Cause.agents_missing, "end")]


def test_submissions_are_those_of_the_runs_own_jobs(plan_of_one_job: Any) -> None:
    """Jobs submitted, added and taken up by a local executor count for the runs they carry."""
    (array,) = plan_of_one_job("/x", runs=2).jobs
    jobs = [array, replace(array, index=1, runs=(1,))]
    local = events.LocalStarted(at=at(9), host="h", pid=1, started="1", jobs=(1,))
    history = [
        events.Submitted(at=at(1), job_index=0, job="7"),
        events.Submitted(at=at(2), job_index=5, job="8"),
        events.JobAdded(at=at(3), job=jobs[1], after=(1,)),
        local,
    ]
    assert list_submission_times(jobs, history) == {0: (at(1),), 1: (at(1), at(3), at(9))}


MOMENTS = st.integers(min_value=-50, max_value=300).map(at)
NUMBERS = st.integers(min_value=0, max_value=2)
STEPS = st.one_of(st.none(), st.integers(min_value=-3, max_value=40), st.just(10**30))
SPANS = st.one_of(
    st.floats(min_value=-5, max_value=100), st.sampled_from([float("nan"), float("inf"), 1e300])
)
FAILURES = st.one_of(st.none(), st.builds(Failure, cause=st.sampled_from(Cause), message=st.just("words")))
EXITS = st.builds(
    RankExit,
    rank=NUMBERS,
    node=st.just("n1"),
    code=st.sampled_from([0, 1, None]),
    step=STEPS,
    stopped=st.booleans(),
    at=st.one_of(st.none(), MOMENTS, st.just(datetime(1, 1, 1))),  # noqa: DTZ001
)
EVENTS = st.one_of(
    st.builds(events.RoundStarted, at=MOMENTS, round=NUMBERS, world_size=NUMBERS, nodes=st.just(("n1",))),
    st.builds(events.StepReached, at=MOMENTS, round=NUMBERS, step=st.integers(min_value=0, max_value=40)),
    st.builds(events.RankExited, at=MOMENTS, round=NUMBERS, exit=EXITS),
    st.builds(events.NodeLost, at=MOMENTS, node=st.sampled_from(["n1", "n2"]), silent_s=SPANS),
    st.builds(
        events.CheckpointSaved,
        at=MOMENTS,
        round=NUMBERS,
        step=st.integers(),
        size=st.integers(),
        stall_s=SPANS,
        duration_s=SPANS,
    ),
    st.builds(
        events.RoundEnded,
        at=MOMENTS,
        round=NUMBERS,
        first_step=STEPS,
        step=STEPS,
        action=st.sampled_from(RoundAction),
        failure=FAILURES,
    ),
    st.builds(events.Suspended, at=MOMENTS, seconds=SPANS),
    st.builds(events.NoticeHeard, at=MOMENTS, signal=st.just("SIGTERM"), cause=st.sampled_from(Cause)),
    st.builds(
        events.AttemptEnded, at=MOMENTS, state=st.sampled_from(RunState), exit_code=NUMBERS, failure=FAILURES
    ),
    st.builds(began, st.integers(min_value=0, max_value=300)),
)
HISTORIES = st.lists(st.lists(EVENTS, max_size=12), max_size=4)


@settings(max_examples=400, deadline=None)
@given(
    histories=HISTORIES,
    given_at=st.lists(MOMENTS, max_size=3),
    progress=st.dictionaries(NUMBERS, st.builds(StepProgress, round=NUMBERS, step=st.integers(), at=MOMENTS)),
    until=st.one_of(st.none(), MOMENTS),
    alive=st.booleans(),
)
def test_parts_add_up_whatever_the_record_says(
    *,
    histories: list[list[events.Event]],
    given_at: list[datetime],
    progress: dict[int, StepProgress],
    until: datetime | None,
    alive: bool,
) -> None:
    """No part is negative, and together they are the time from the first moment to the last."""
    told = compute_goodput(
        list(enumerate(histories)), submissions=given_at, progress=progress, until=until, alive=alive
    )
    assert min(getattr(told.parts, field.name) for field in fields(TimeParts)) >= timedelta(0)
    assert told.parts.wall == _span(told, histories, given_at, until, progress)
    spans = list_time_spans(
        list(enumerate(histories)), submissions=given_at, progress=progress, until=until, alive=alive
    )
    assert _sums(spans) == told.parts
    assert all(one.end == other.begin for one, other in pairwise(spans))
    assert (told.lost_steps is not None) is told.stepped
    assert (told.lost_steps or 0) >= 0
    for share in (told.goodput, told.ettr, told.ettr_since_first_step):
        assert share is None or 0 <= share <= 1
    assert told.ettr_expected is None or 0 <= told.ettr_expected <= 1


def _sums(spans: Sequence[TimeSpan]) -> TimeParts:
    """Return the lengths of spans by part."""
    lengths = {part.value: timedelta(0) for part in TimePart}
    for span in spans:
        lengths[span.part] += span.end - span.begin
    return TimeParts(**lengths)


def _span(
    told: Goodput,
    histories: Sequence[Sequence[events.Event]],
    given_at: Sequence[datetime],
    until: datetime | None,
    progress: dict[int, StepProgress],
) -> timedelta:
    """Return the time a clock shows that is started once and never goes back."""
    firsts = [history[0].at for history in histories if history]
    if not firsts and (until is None or not given_at):
        return timedelta(0)
    first = firsts[0] if firsts else until
    assert first is not None
    begin = min([*given_at, first])
    seen = [event.at for history in histories for event in history]
    lost = [
        interruption.at
        for interruption in told.interruptions
        if interruption.message.startswith("its supervisor")
    ]
    known = [one.at for one in progress.values() if one.at in lost]
    return max([begin, *seen, *known, *([] if until is None else [until])]) - begin


@pytest.mark.parametrize(
    ("mtbf_h", "interval_s", "stall", "restart", "waits", "share"),
    [
        (24, 3600, 30, 120, 753, 0.961),
        (7.9, 3600, 30, 120, 753, 0.902),
        (1.8, 3600, 30, 120, 753, 0.651),
        (0.5, 3600, 30, 120, 753, 0.203),
        (1.8, 113, 1, 60, 128, 0.955),
        (0.5, 59, 1, 60, 128, 0.873),
    ],
)
def test_expected_ettr_is_the_formulas(
    mtbf_h: float, interval_s: float, stall: float, restart: float, waits: float, share: float
) -> None:
    """Known settings give the known shares."""
    measured = MeasuredTimes(
        mtbf=timedelta(hours=mtbf_h),
        stall=timedelta(seconds=stall),
        interval=timedelta(seconds=interval_s),
        restart=timedelta(seconds=restart),
        queue=timedelta(seconds=waits),
    )
    assert compute_expected_ettr(measured) == pytest.approx(share, abs=1e-3)


def test_expected_ettr_has_a_limit_at_either_end() -> None:
    """Without failures only saves cost; with failures all the time nothing is left."""
    calm = MeasuredTimes(interval=timedelta(seconds=99), stall=timedelta(seconds=1))
    assert compute_expected_ettr(calm) == pytest.approx(0.99)
    wild = MeasuredTimes(interval=timedelta(hours=9), stall=timedelta(0), mtbf=timedelta(microseconds=1))
    assert compute_expected_ettr(wild) == 0
    assert compute_expected_ettr(MeasuredTimes()) is None


@pytest.mark.parametrize(("until", "expected"), [(200, None), (215, 121), (1000, 906)])
def test_run_that_stands_still_is_told_from_one_that_is_slow(until: float, expected: float | None) -> None:
    """Sixty steps in two seconds, then none for two minutes; steps of a minute are just slow."""
    history = [began(90), round_began(91), stepped(92, 0)]
    said = {1: StepProgress(round=0, step=59, at=at(94))}
    found = compute_goodput([(1, history)], progress=said, until=at(until), alive=True)
    gone = None if expected is None else timedelta(seconds=expected)
    assert found.standstill == gone
    slow = {1: StepProgress(round=0, step=1, at=at(212))}
    assert compute_goodput([(1, history)], progress=slow, until=at(500), alive=True).standstill is None


def test_run_that_is_over_or_waits_does_not_stand_still() -> None:
    """Nothing is awaited of it."""
    history = [began(90), round_began(91), stepped(92, 0)]
    said = {1: StepProgress(round=0, step=59, at=at(94))}
    for until in (None, at(10_000)):
        assert compute_goodput([(1, history)], progress=said, until=until).standstill is None
    ended = [*history, round_over(95, (0, 59))]
    found = compute_goodput([(1, ended)], progress=said, until=at(10_000), alive=True)
    assert found.standstill is None
