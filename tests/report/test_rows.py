"""Promises of hpckit.report.rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hpckit.model.failure import Cause, Failure
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.states import BaseState, RunState, parse_slurm_state
from hpckit.planning.recovery.budget import build_ledger_of_ended_run
from hpckit.report.rows import build_run_row, count_runs_by_state, format_run_note

START = datetime(2026, 1, 1, tzinfo=UTC)
WAITING = RunRecord(id="demo.0", index=0, overrides=("lr=1",), folder="/demo", job="7")
RUNNING = replace(WAITING, state=RunState.running, attempt=1, nodes=("n1", "n2"), started_at=START, step=5)
RAISED = replace(
    RUNNING,
    state=RunState.failed,
    exit_code=1,
    failure=Failure(cause=Cause.exception, message="ValueError: boom", rank=1),
    ended_at=START + timedelta(minutes=2),
)

UNHEALTHY = replace(
    RAISED,
    state=RunState.interrupted,
    failure=Failure(cause=Cause.unhealthy, message="preflight: bad memory on n1", node="n1"),
    excluded=("n1",),
)


def seen(text: str, **fields: object) -> Observation:
    """Return what Slurm says of job 7, after the start."""
    base = Observation(job="7", state=parse_slurm_state(text), seen_at=START + timedelta(hours=1))
    return replace(base, **fields)  # type: ignore[arg-type]


def test_row_takes_nodes_from_slurm_until_our_record_knows_them() -> None:
    """A run whose supervisor has not begun is shown on the nodes Slurm gave it."""
    view = RunView(record=WAITING, observation=seen("RUNNING", nodes="n[3-4]"))
    assert build_run_row(view).nodes == ("n3", "n4")
    assert build_run_row(replace(view, record=RUNNING)).nodes == ("n1", "n2")


@pytest.mark.parametrize("nodes", ["None assigned", "", "n[1"])
def test_row_has_a_list_of_nodes_whatever_slurm_writes_there(nodes: str) -> None:
    """Words that are no hostlist do not become an error."""
    row = build_run_row(RunView(record=WAITING, observation=seen("PENDING", nodes=nodes)))
    assert all("[" not in node for node in row.nodes)


def test_row_keeps_our_own_account_of_a_failure() -> None:
    """Our record's classification is shown where there is one."""
    row = build_run_row(RunView(record=RAISED, observation=seen("FAILED", exit_code=1)))
    assert row.failure == RAISED.failure
    assert row.note == ""


@pytest.mark.parametrize(
    ("slurm", "cause"),
    [
        ("NODE_FAIL", Cause.node_lost),
        ("BOOT_FAIL", Cause.node_lost),
        ("TIMEOUT", Cause.time_limit),
        ("DEADLINE", Cause.time_limit),
        ("PREEMPTED", Cause.preempted),
        ("OUT_OF_MEMORY", Cause.host_oom),
        ("FAILED", Cause.launcher_lost),
    ],
)
def test_row_words_a_failure_only_slurm_knows_of(slurm: str, cause: Cause) -> None:
    """Where no supervisor could write an end, the failure is Slurm's word, as it is for `watch`."""
    view = RunView(record=RUNNING, observation=seen(slurm, nodes="n1"))
    failure = build_run_row(view).failure
    assert failure is not None
    assert (failure.cause, failure.node, failure.step) == (cause, "n1", 5)
    assert build_ledger_of_ended_run(view, [])[1].cause is cause
    assert f"Slurm says {slurm}" in failure.message


@pytest.mark.parametrize("state", [RunState.completed, RunState.cancelled, RunState.running])
def test_row_has_no_failure_where_nothing_failed(state: RunState) -> None:
    """Only failed and interrupted runs have a failure."""
    assert build_run_row(RunView(record=replace(RAISED, state=state))).failure is None


@pytest.mark.parametrize("base", list(BaseState))
@pytest.mark.parametrize("state", list(RunState))
def test_note_is_total(state: RunState, base: BaseState) -> None:
    """Every pair of states has a note, or none, and never an error."""
    for attempt in (0, 1):
        record = replace(RUNNING, state=state, attempt=attempt)
        assert isinstance(format_run_note(RunView(record=record, observation=seen(base.value))), str)


@pytest.mark.parametrize(
    ("view", "part"),
    [
        (RunView(record=RUNNING, observation=seen("NODE_FAIL")), "recorded no end, Slurm says N"),
        (RunView(record=WAITING, observation=seen("FAILED")), "no start, Slurm says FAILED"),
        (RunView(record=RAISED, observation=seen("COMPLETED")), "as failed, Slurm says COMPLETED"),
        (RunView(record=RUNNING, asked=True), "Slurm no longer knows job 7"),
        (RunView(record=RUNNING, observation=seen("SUSPENDED")), "Slurm has suspended its job"),
        (RunView(record=RUNNING, observation=seen("PENDING", restarts=1)), "requeued by Slurm"),
        (
            RunView(record=replace(RAISED, state=RunState.interrupted), observation=seen("RUNNING")),
            "a new attempt is being asked for, or the job is ending",
        ),
        (
            RunView(record=UNHEALTHY, observation=seen("PENDING", restarts=1)),
            "preflight: bad memory on n1; requeued without n1: tell the administrators",
        ),
        (
            RunView(record=replace(UNHEALTHY, excluded=()), observation=seen("PENDING", restarts=1)),
            "bad memory on n1; requeued and may get the same nodes again: tell",
        ),
        (
            RunView(
                record=replace(RAISED, excluded=("n1", "n2"), excluded_by_us=("n1", "n2")),
                observation=seen("PENDING", reason="BadConstraints", restarts=1),
            ),
            "n[1-2], where the run failed. To allow them again: scontrol update JobId=7 ExcNode",
        ),
        (  # what the user excludes is not blamed, and stays excluded
            RunView(
                record=replace(RAISED, excluded=("n1", "n3", "n4"), excluded_by_us=("n4",)),
                observation=seen("PENDING", reason="BadConstraints", restarts=1),
            ),
            "it leaves out n4, where the run failed. To allow them again: scontrol update",
        ),
        (
            RunView(
                record=replace(RAISED, excluded=("n1", "n3", "n4"), excluded_by_us=("n4",)),
                observation=seen("PENDING", reason="ReqNodeNotAvail", restarts=1),
            ),
            "scontrol update JobId=7 ExcNodeList=n[1,3]",
        ),
        (
            RunView(
                record=replace(RAISED, state=RunState.interrupted),
                observation=seen("PENDING", reason="job requeued in held state", restarts=1),
            ),
            "it is held. Let it start: scontrol release 7",
        ),
        (RunView(record=RUNNING, alive=False), "died before recording the outcome"),
        (RunView(record=replace(WAITING, job=None), alive=False), "nothing will start it"),
    ],
)
def test_note_says_where_slurm_and_our_record_differ(view: RunView, part: str) -> None:
    """Each disagreement is worded with both sides."""
    assert part in format_run_note(view)


@pytest.mark.parametrize(
    "view",
    [
        RunView(record=RUNNING, observation=seen("RUNNING")),
        RunView(record=RUNNING, observation=seen("COMPLETING")),
        RunView(record=RAISED, observation=seen("FAILED")),
        RunView(record=WAITING, observation=seen("PENDING")),
        RunView(record=WAITING),
        RunView(record=RAISED, asked=True),
    ],
)
def test_note_is_empty_where_both_agree(view: RunView) -> None:
    """What is as it should be is not remarked upon."""
    assert format_run_note(view) == ""


def test_elapsed_counts_to_the_end_or_to_now() -> None:
    """A running run's time grows; an ended one's stands; a lost end has none."""
    now = START + timedelta(minutes=10)
    assert build_run_row(RunView(record=RUNNING)).elapsed(now) == timedelta(minutes=10)
    assert build_run_row(RunView(record=RAISED)).elapsed(now) == timedelta(minutes=2)
    assert build_run_row(RunView(record=WAITING)).elapsed(now) is None
    assert build_run_row(RunView(record=RUNNING, alive=False)).elapsed(now) is None


def test_elapsed_is_never_negative() -> None:
    """Clocks that differ between hosts do not run time backwards."""
    assert build_run_row(RunView(record=RUNNING)).elapsed(START - timedelta(1)) == timedelta(0)


def test_counts_stand_in_the_order_of_the_states() -> None:
    """Counts leave zeros out and keep one order."""
    counts = count_runs_by_state([RunState.failed, RunState.running, RunState.failed])
    assert list(counts.items()) == [(RunState.running, 1), (RunState.failed, 2)]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("DependencyNeverSatisfied", "never starts"),
        ("JobHeldUser", "scontrol release 7"),
        ("launch failed requeued held", "scontrol release 7"),
        ("JobHeldAdmin", "administrator"),
        ("BadConstraints", "no node has"),
        ("PartitionTimeLimit", "more than one job may have"),
        ("QOSMaxWallDurationPerJobLimit", "more than one job may have"),
        ("AssocMaxCpuPerJobLimit", "more than one job may have"),
        ("MaxNodePerJob", "more than one job may have"),
        ("QOSMaxJobsPerUserLimit", "your other jobs"),
        ("MaxGRESPerAccount", "your other jobs"),
        ("AssocGrpCPUMinutesLimit", "used up"),
        ("QOSGrpGRES", "uses all"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "sinfo -R"),
        ("Priority", "higher priority"),
        ("(Resources)", "for free resources"),
    ],
)
def test_waiting_job_says_in_words_why_it_waits_and_what_to_do(reason: str, words: str) -> None:
    """Slurm's reason is named, too; what a job that runs has as its reason is none."""
    said = format_run_note(RunView(record=WAITING, observation=seen("PENDING", reason=reason)))
    assert words in said
    assert reason.strip("()").partition(",")[0] in said
    assert not format_run_note(RunView(record=RUNNING, observation=seen("RUNNING", reason=reason)))


def test_reason_that_nobody_knows_is_no_note() -> None:
    """It still stands beside the state."""
    assert not format_run_note(RunView(record=WAITING, observation=seen("PENDING", reason="SiteReason")))
