"""Promises of hpckit.model.run: what a history means, and what it means beside Slurm's word."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.model.failure import Cause, Failure, RankExit
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.states import BaseState, RunState, parse_slurm_state

START = datetime(2026, 1, 1, tzinfo=UTC)
FRESH = RunRecord(id="demo.0", index=0, overrides=(), folder="/demo/runs/00000")


def moment(seconds: float) -> datetime:
    """Return a moment after the start."""
    return START + timedelta(seconds=seconds)


def began(attempt: int = 1, *, restarts: int = 0, at: float = 0) -> events.AttemptStarted:
    """Return the beginning of an attempt."""
    return events.AttemptStarted(
        at=moment(at), attempt=attempt, job="7", restart_count=restarts, host="n1", pid=42, started="99"
    )


def ended(state: RunState, cause: Cause | None = None, *, at: float = 60) -> events.AttemptEnded:
    """Return the end of an attempt."""
    failure = None if cause is None else Failure(cause=cause, message="words")
    code = int(state is not RunState.completed)
    return events.AttemptEnded(at=moment(at), state=state, exit_code=code, failure=failure)


HISTORY = (
    began(),
    events.AgentJoined(at=moment(1), node="n1", node_rank=0, pid=43),
    events.RoundStarted(at=moment(2), round=0, world_size=2, nodes=("n1", "n2")),
    events.StepReached(at=moment(3), round=0, step=0),
    events.RankExited(at=moment(4), round=0, exit=RankExit(rank=1, node="n2", code=1)),
    events.NoticeHeard(at=moment(5), signal="SIGTERM"),
    ended(RunState.failed, Cause.exception),
)


def test_fold_of_a_history_tells_the_latest_attempt() -> None:
    """Attempt, round, nodes, end and failure come from the events."""
    record = FRESH.apply_events(HISTORY)
    assert (record.state, record.attempt, record.round, record.step) == (RunState.failed, 1, 0, 0)
    assert (record.nodes, record.exit_code, record.job) == (("n1", "n2"), 1, "7")
    assert record.failure is not None
    assert record.failure.cause is Cause.exception
    assert (record.started_at, record.ended_at) == (moment(0), moment(60))


def test_fold_of_a_new_attempt_forgets_the_end_of_the_one_before() -> None:
    """A requeued run runs: the old failure is no longer its own, its latest step still is."""
    record = FRESH.apply_events((*HISTORY, began(2, restarts=1, at=90)))
    assert (record.state, record.attempt, record.restart_count) == (RunState.running, 2, 1)
    assert (record.failure, record.exit_code, record.ended_at, record.round) == (None,) * 4
    assert record.step == 0


@pytest.mark.parametrize("length", range(len(HISTORY) + 1))
def test_fold_accepts_every_prefix(length: int) -> None:
    """However early a history was cut, there is a record and a state."""
    record = FRESH.apply_events(HISTORY[:length])
    assert isinstance(RunView(record=record).state, RunState)


def test_fold_accepts_every_order() -> None:
    """Lines that came in another order (a lagging file system) make no error."""
    few = (HISTORY[0], HISTORY[2], HISTORY[3], HISTORY[6])
    assert all(isinstance(FRESH.apply_events(order), RunRecord) for order in permutations(few))


def test_fold_is_the_same_in_one_go_and_in_pieces() -> None:
    """Folding what is new onto what was known gives the same record."""
    for cut in range(len(HISTORY)):
        assert FRESH.apply_events(HISTORY[:cut]).apply_events(HISTORY[cut:]) == FRESH.apply_events(HISTORY)


def observation(text: str, *, restarts: int = 0, at: float = 100, code: int = 0) -> Observation:
    """Return what Slurm says of job 7."""
    return Observation(
        job="7", state=parse_slurm_state(text), seen_at=moment(at), restarts=restarts, exit_code=code
    )


PENDING = replace(FRESH, job="7")
RUNNING = PENDING.apply_events([began()])
COMPLETED = RUNNING.apply_events([ended(RunState.completed)])
RAISED = RUNNING.apply_events([ended(RunState.failed, Cause.exception)])
KILLED = RUNNING.apply_events([ended(RunState.failed, Cause.signal)])
STOPPED = RUNNING.apply_events([ended(RunState.interrupted, Cause.notice)])
CANCELLED = RUNNING.apply_events([ended(RunState.cancelled)])

WITH_SLURM = [
    # never begun by our record: Slurm alone knows
    (PENDING, "PENDING", RunState.pending),
    (PENDING, "CONFIGURING", RunState.running),
    (PENDING, "RUNNING", RunState.running),
    (PENDING, "COMPLETED", RunState.unknown),
    (PENDING, "FAILED", RunState.failed),
    (PENDING, "OUT_OF_MEMORY", RunState.failed),
    (PENDING, "CANCELLED by 0", RunState.cancelled),
    (PENDING, "NODE_FAIL", RunState.interrupted),
    (PENDING, "BOOT_FAIL", RunState.interrupted),
    (PENDING, "WHATEVER", RunState.unknown),
    # running by our record: Slurm knows ends that nobody could write down
    (RUNNING, "RUNNING", RunState.running),
    (RUNNING, "SUSPENDED", RunState.running),
    (RUNNING, "COMPLETING", RunState.running),
    (RUNNING, "FAILED,COMPLETING", RunState.running),
    (RUNNING, "WHATEVER", RunState.running),
    (RUNNING, "COMPLETED", RunState.unknown),
    (RUNNING, "FAILED", RunState.failed),
    (RUNNING, "OUT_OF_MEMORY", RunState.failed),
    (RUNNING, "CANCELLED+", RunState.cancelled),
    (RUNNING, "TIMEOUT", RunState.interrupted),
    (RUNNING, "NODE_FAIL", RunState.interrupted),
    (RUNNING, "PREEMPTED", RunState.interrupted),
    (RUNNING, "DEADLINE", RunState.interrupted),
    # ended by our record: it knows why
    (COMPLETED, "COMPLETING", RunState.completed),
    (COMPLETED, "FAILED", RunState.completed),
    (COMPLETED, "PENDING", RunState.completed),
    (RAISED, "FAILED", RunState.failed),
    (RAISED, "COMPLETED", RunState.failed),
    (RAISED, "TIMEOUT", RunState.failed),
    (RAISED, "CANCELLED", RunState.failed),
    (RAISED, "RUNNING", RunState.failed),
    (CANCELLED, "CANCELLED", RunState.cancelled),
    (CANCELLED, "PREEMPTED", RunState.cancelled),
    # ended from outside: Slurm knows what stood behind it
    (KILLED, "FAILED", RunState.failed),
    (KILLED, "PREEMPTED", RunState.interrupted),
    (KILLED, "TIMEOUT", RunState.interrupted),
    (KILLED, "CANCELLED", RunState.cancelled),
    (KILLED, "OUT_OF_MEMORY", RunState.failed),
    (STOPPED, "CANCELLED by 1000", RunState.cancelled),
    (STOPPED, "PREEMPTED", RunState.interrupted),
    (STOPPED, "FAILED", RunState.interrupted),
    (STOPPED, "COMPLETING", RunState.interrupted),
]


@pytest.mark.parametrize(("record", "slurm", "expected"), WITH_SLURM)
def test_state_beside_slurms_word(record: RunRecord, slurm: str, expected: RunState) -> None:
    """Each pair of our record and Slurm's word has one meaning."""
    assert RunView(record=record, observation=observation(slurm), asked=True).state is expected


@pytest.mark.parametrize("record", [RUNNING, RAISED, KILLED, STOPPED])
@pytest.mark.parametrize(
    ("slurm", "expected"),
    [
        ("PENDING", RunState.pending),
        ("RUNNING", RunState.running),
        ("NODE_FAIL", RunState.interrupted),
        ("COMPLETED", RunState.unknown),
    ],
)
def test_state_after_a_requeue_is_slurms(record: RunRecord, slurm: str, expected: RunState) -> None:
    """Once Slurm has restarted the job, our record of the attempt before is history."""
    view = RunView(record=record, observation=observation(slurm, restarts=1), asked=True)
    assert view.requeued_since_last_attempt
    assert view.state is expected


def test_state_of_a_requeued_run_with_a_new_attempt_is_our_records() -> None:
    """The attempt that belongs to Slurm's restart count is the current one again."""
    record = STOPPED.apply_events([began(2, restarts=1, at=80), ended(RunState.completed, at=90)])
    view = RunView(record=record, observation=observation("COMPLETED", restarts=1), asked=True)
    assert (view.requeued_since_last_attempt, view.state) == (False, RunState.completed)


def test_state_waits_where_slurm_does_not_count_restarts() -> None:
    """PENDING seen after an attempt began can only be a requeue, without any count."""
    view = RunView(record=STOPPED, observation=observation("PENDING", at=100), asked=True)
    assert view.state is RunState.pending


def test_state_does_not_believe_an_older_pending() -> None:
    """PENDING seen before the attempt began says nothing of it."""
    view = RunView(record=RUNNING, observation=observation("PENDING", at=-1), asked=True)
    assert view.state is RunState.running


NO_SLURM = [
    # record, asked, alive, expected
    (FRESH, False, None, RunState.pending),  # rendered, never submitted
    (FRESH, False, True, RunState.pending),  # waits for the local executor
    (FRESH, False, False, RunState.interrupted),  # the local executor is gone
    (PENDING, False, None, RunState.pending),  # Slurm is away
    (PENDING, True, None, RunState.unknown),  # Slurm does not know it any more
    (RUNNING, False, None, RunState.running),  # Slurm is away
    (RUNNING, False, True, RunState.running),
    (RUNNING, False, False, RunState.interrupted),  # the supervisor is gone
    (RUNNING, True, None, RunState.unknown),  # aged out of Slurm, no end written
    (RUNNING, True, True, RunState.running),
    (RUNNING, True, False, RunState.interrupted),
    (COMPLETED, True, None, RunState.completed),
    (RAISED, True, None, RunState.failed),
    (STOPPED, False, None, RunState.interrupted),
    (CANCELLED, True, None, RunState.cancelled),
]


@pytest.mark.parametrize(("record", "asked", "alive", "expected"), NO_SLURM)
def test_state_without_slurms_word(
    record: RunRecord,
    asked: bool,  # noqa: FBT001
    alive: bool | None,  # noqa: FBT001
    expected: RunState,
) -> None:
    """What our record and this host's processes say, where Slurm says nothing."""
    assert RunView(record=record, asked=asked, alive=alive).state is expected


AFTER_CANCEL = [
    (FRESH, False, None, RunState.cancelled),  # never submitted
    (FRESH, False, True, RunState.cancelled),  # the executor will skip it
    (PENDING, True, None, RunState.cancelled),  # cancelled elements vanish from Slurm
    (PENDING, False, None, RunState.pending),  # Slurm is away: scancel did not reach it
    (RUNNING, False, True, RunState.running),  # being stopped
    (RUNNING, False, None, RunState.running),
    (RUNNING, False, False, RunState.cancelled),  # stopped without a final event
    (RUNNING, True, None, RunState.cancelled),
    (STOPPED, False, None, RunState.cancelled),  # its supervisor heard a signal only
    (KILLED, False, None, RunState.cancelled),
    (RAISED, False, None, RunState.failed),  # failed by itself before
    (COMPLETED, False, None, RunState.completed),
]


@pytest.mark.parametrize(("record", "asked", "alive", "expected"), AFTER_CANCEL)
def test_state_after_a_cancellation_was_asked_for(
    record: RunRecord,
    asked: bool,  # noqa: FBT001
    alive: bool | None,  # noqa: FBT001
    expected: RunState,
) -> None:
    """A wish to cancel explains a stop; it does not hide a run's own end."""
    record = replace(record, cancel_requested=True)
    assert RunView(record=record, asked=asked, alive=alive).state is expected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (RunView(record=RUNNING), False),
        (RunView(record=COMPLETED), True),
        (RunView(record=RUNNING, asked=True), True),
        (RunView(record=RUNNING, observation=observation("COMPLETED"), asked=True), True),
        (RunView(record=PENDING, observation=observation("WHATEVER"), asked=True), False),
        (RunView(record=STOPPED, observation=observation("COMPLETING"), asked=True), False),
        (RunView(record=STOPPED, observation=observation("PREEMPTED"), asked=True), True),
        (RunView(record=STOPPED), True),
    ],
)
def test_settled_means_that_nothing_more_will_be_heard(view: RunView, expected: bool) -> None:  # noqa: FBT001
    """Waiting ends also where the end is unknown, and not while Slurm may requeue."""
    assert view.can_no_longer_change is expected


def test_exit_code_is_our_records_else_slurms() -> None:
    """Slurm's exit code fills in where no supervisor wrote one."""
    failed = observation("FAILED", code=66)
    assert RunView(record=RAISED, observation=failed).exit_code == 1
    assert RunView(record=PENDING, observation=failed).exit_code == 66
    assert RunView(record=PENDING, observation=observation("RUNNING")).exit_code is None


RECORDS = st.sampled_from([FRESH, PENDING, RUNNING, COMPLETED, RAISED, KILLED, STOPPED, CANCELLED])
OBSERVATIONS = st.none() | st.builds(
    observation,
    st.sampled_from([state.value for state in BaseState]) | st.text(),
    restarts=st.integers(0, 2),
    at=st.integers(-10, 200),
)


@given(RECORDS, OBSERVATIONS, st.booleans(), st.none() | st.booleans(), st.booleans())
def test_state_is_total(
    record: RunRecord,
    seen: Observation | None,
    asked: bool,  # noqa: FBT001
    alive: bool | None,  # noqa: FBT001
    cancelled: bool,  # noqa: FBT001
) -> None:
    """Any combination has a state; what completed stays completed."""
    record = replace(record, cancel_requested=cancelled)
    view = RunView(record=record, observation=seen, asked=asked, alive=alive)
    assert isinstance(view.state, RunState)
    assert (view.state is RunState.completed) == (record.state is RunState.completed)


def test_record_keeps_the_latest_warnings() -> None:
    """What a run warned of is kept in order, the latest few."""
    said = [events.Warned(at=moment(number), message=str(number)) for number in range(9)]
    assert FRESH.apply_events([began(), *said]).warnings == ("4", "5", "6", "7", "8")
