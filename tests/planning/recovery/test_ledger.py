"""Promises of the ledger: what counts against a run's budgets, across rounds and attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.goodput import SaveCost
from hpckit.model.launch import Recovery
from hpckit.model.states import RequeueOutcome, RoundAction
from hpckit.planning.recovery.ledger import Ledger, build_ledger_from_events

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Recovery(node_failures=2)


def started(attempt: int, *, minutes: float = 0) -> events.AttemptStarted:
    """Return the beginning of an attempt."""
    return events.AttemptStarted(
        at=NOON + timedelta(minutes=minutes),
        attempt=attempt,
        job="7",
        restart_count=attempt - 1,
        host="n1",
        pid=1,
        started="",
    )


def ended(cause: Cause = Cause.signal, **about: Any) -> events.RoundEnded:
    """Return a round that failed; `minutes` after noon."""
    at = NOON + timedelta(minutes=about.pop("minutes", 0))
    failure = Failure(
        cause=cause, message="", node=about.pop("node", None), signature=about.pop("signature", "s")
    )
    given = {"round": 0, "first_step": 0, "step": None, "action": RoundAction.new_round, **about}
    return events.RoundEnded(at=at, failure=failure, **given)


def over(attempt: int) -> list[events.Event]:
    """Return the final event on an attempt."""
    assert attempt
    return [events.AttemptEnded(at=NOON, state="interrupted", exit_code=143)]  # type: ignore[arg-type]


def test_ledger_counts_failures_since_the_run_last_got_further() -> None:
    """Failures before a step further than ever are forgiven, across attempts."""
    history = [started(1), ended(step=5), ended(step=5), *over(1), started(2), ended(step=9)]
    ledger = build_ledger_from_events(history)
    assert ledger.count_failures_against_budget(Cause.signal) == 1
    assert ledger.best_step == 9
    again = ledger.after_round(ended(step=9), 2)
    assert (again.count_failures_against_budget(Cause.signal), again.count_repeats_of_latest_failure()) == (
        2,
        2,
    )


def test_ledger_counts_classes_and_signatures_apart() -> None:
    """Another kind of failure has a budget of its own, and another signature its own row."""
    ledger = build_ledger_from_events([started(1), ended(step=5), ended(Cause.hang, step=5, signature="h")])
    assert ledger.count_failures_against_budget(Cause.hang) == 1
    assert ledger.count_failures_against_budget(Cause.signal) == 1
    assert ledger.count_repeats_of_latest_failure() == 1


def test_ledger_counts_a_crash_loop_across_notices() -> None:
    """A preemption or requeue in between does not make the same failure a new one."""
    told = ended(Cause.preempted, step=3, signature="preempted")
    history = [started(1), ended(step=5), ended(step=5), told, *over(1), started(2), ended(step=5)]
    assert build_ledger_from_events(history).count_repeats_of_latest_failure() == 3


def test_ledger_counts_an_exit_code_again_whatever_was_printed_last() -> None:
    """What a program prints as it ends may differ by chance, and does not hide a crash loop."""
    told = [
        ended(Cause.exit_code, step=5, signature=signature)
        for signature in ("exit_code-1-ab", "exit_code-1-cd", "exit_code-1", "exit_code-3-ab")
    ]
    assert (
        build_ledger_from_events([started(1), ended(step=5), *told[:3]]).count_repeats_of_latest_failure()
        == 3
    )
    assert build_ledger_from_events([started(1), ended(step=5), *told]).count_repeats_of_latest_failure() == 1


def test_ledger_excludes_a_node_after_two_failures_or_one_loss() -> None:
    """Two failures of a node's own exclude it; being lost does so at once; both expire."""
    twice = build_ledger_from_events([started(1), ended(node="n1"), ended(node="n1"), ended(node="n2")])
    assert twice.list_nodes_failing_too_often(POLICY) == {"n1"}
    lost = build_ledger_from_events([started(1), ended(Cause.node_lost, node="n2, n3")])
    assert lost.list_nodes_failing_too_often(POLICY) == {"n2", "n3"}
    later = lost.after_round(ended(Cause.exception, minutes=24 * 60), 1)
    assert later.list_nodes_failing_too_often(POLICY) == frozenset()


def test_ledger_charges_what_a_bad_node_did_only_once() -> None:
    """One bad node cannot spend the whole budget, once it is left out."""
    ledger = build_ledger_from_events([started(1), *(ended(node="n1", step=5) for _ in range(5))])
    assert ledger.count_failures_against_budget(Cause.signal, frozenset({"n1"})) == 1
    assert ledger.count_failures_against_budget(Cause.signal) == 5


def test_ledger_charges_one_failure_once_however_many_nodes_it_took() -> None:
    """A switch that takes three nodes is one failure, also where all of them are left out."""
    bad = frozenset({"n1", "n2", "n3"})
    once = build_ledger_from_events([started(1), ended(Cause.node_lost, node="n1, n2, n3", step=5)])
    assert once.count_failures_against_budget(Cause.node_lost, bad) == 1
    again = once.after_round(ended(Cause.node_lost, node="n3, n4", step=5), 1)
    assert again.count_failures_against_budget(Cause.node_lost, bad | {"n4"}) == 2


@given(
    nodes=st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=8),
    bad=st.sets(st.sampled_from("abcdef")),
)
def test_ledger_never_charges_more_than_there_were_failures(nodes: list[set[str]], bad: set[str]) -> None:
    """Whichever nodes are left out, so many failures are charged at most, and the first always."""
    history = [ended(Cause.node_lost, node=", ".join(sorted(some)), step=5) for some in nodes]
    ledger = build_ledger_from_events([started(1), *history])
    assert 1 <= ledger.count_failures_against_budget(Cause.node_lost, frozenset(bad)) <= len(nodes)


def test_ledger_learns_the_time_between_failures() -> None:
    """The expectation weighs as much as one failure; being told to stop is none."""
    ledger = Ledger()
    day = timedelta(hours=24)
    assert ledger.mean_time_between_failures(day) == day
    for minutes in range(3):
        ledger = ledger.after_round(ended(step=minutes), 1, ran=timedelta(hours=2))
    assert ledger.mean_time_between_failures(day) == timedelta(hours=30) / 4
    told = ledger.after_round(ended(Cause.preempted), 1)
    assert told.mean_time_between_failures(day) == timedelta(hours=30) / 4


def test_ledger_knows_what_the_latest_save_cost() -> None:
    """A restart need not find out anew how often to save."""
    saved = [
        events.CheckpointSaved(at=NOON, round=0, step=step, size=1, stall_s=stall_s, duration_s=10 * stall_s)
        for step, stall_s in ((1, 9.0), (2, 0.5))
    ]
    ledger = build_ledger_from_events([started(1), *saved, ended(step=3)])
    latest = SaveCost(stall=timedelta(seconds=0.5), duration=timedelta(seconds=5))
    assert ledger.save_cost == ledger.after_round(ended(step=4), 1).save_cost == latest


def test_ledger_knows_which_nodes_could_not_be_left_out() -> None:
    """Until Slurm leaves them out after all; other answers in between change nothing."""

    def asked(kept: tuple[str, ...] = (), excluded: tuple[str, ...] = ()) -> events.RequeueAsked:
        return events.RequeueAsked(at=NOON, outcome=RequeueOutcome.requeued, kept=kept, excluded=excluded)

    history: list[events.Event] = [started(1), asked(kept=("n1", "n2")), started(2), asked()]
    assert build_ledger_from_events(history).kept == {"n1", "n2"}
    assert build_ledger_from_events([*history, asked(excluded=("n2",))]).kept == {"n1"}


def test_ledger_counts_each_round_that_unhealthy_nodes_kept_from_starting() -> None:
    """Also on one node: nothing else bounds how often a run is started there."""
    history = [started(1), *(ended(Cause.unhealthy, node="n1") for _ in range(4))]
    assert (
        build_ledger_from_events(history).count_failures_against_budget(Cause.unhealthy, frozenset({"n1"}))
        == 4
    )


def joined(node: str, satellite: str | None) -> events.AgentJoined:
    """Return the arrival of a node; with `satellite` this job brings it."""
    return events.AgentJoined(at=NOON, node=node, node_rank=0, pid=1, satellite=satellite)


def test_lost_node_that_a_satellite_brings_back_is_excluded_no_more() -> None:
    """Slurm gives it out again, so it is up; what else it did still counts, and the next loss."""
    lost = ended(Cause.node_lost, node="n4")
    slow = ended(Cause.straggler, node="n3")
    begun = [started(1), lost, slow]
    assert build_ledger_from_events(begun).list_nodes_failing_too_often(POLICY) == {"n3", "n4"}
    own = build_ledger_from_events([*begun, joined("n4", None)])
    assert own.list_nodes_failing_too_often(POLICY) == {"n3", "n4"}, (
        "an agent of the run's own job proves nothing"
    )
    back = [*begun, joined("n4", "12"), joined("n3", "12")]
    assert build_ledger_from_events(back).list_nodes_failing_too_often(POLICY) == {"n3"}
    assert build_ledger_from_events(back).count_failures_against_budget(Cause.node_lost) == 1, (
        "the run's budget is another matter"
    )
    assert build_ledger_from_events([*back, lost]).list_nodes_failing_too_often(POLICY) == {"n3", "n4"}
