"""Promises of how ranks are named to people: with their place, where ranks are not all alike."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hpckit.cli.commands.look.stacks import format_stacks
from hpckit.model.diagnosis.collectives import GroupProgress, RankCollectives, RecordedCollective
from hpckit.model.failure import ExitReason, RankExit, RankStack, StacksAnswer, StalledRank
from hpckit.model.launch import Recovery
from hpckit.model.parallel.layout import Layout, describe_ranks_in_layout, format_rank, format_ranks
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.planning.diagnosis.stragglers import StragglerDetector
from hpckit.planning.recovery.collective_wait import find_collective_wait
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.hang import build_hang_failure
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.loss import NodeSilence, build_node_loss_failure
from hpckit.planning.recovery.round_view import EndAttempt, RoundView
from hpckit.report.failures import format_failure

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAYOUT = Layout(replicate=2, pipeline=4)
PLACE = "replica 1 of 2, pipeline stage 1 of 4"


@pytest.mark.parametrize("layout", [None, Layout(), Layout(replicate=8)])
def test_ranks_that_are_all_alike_have_numbers_alone(layout: Layout | None) -> None:
    """In plain data parallelism a place says nothing that the number does not."""
    assert describe_ranks_in_layout((5,), layout) == ""
    assert format_ranks((4, 5), layout, "n2") == "ranks 4-5 (n2)"
    assert format_rank(5, "") == "rank 5"


def test_ranks_are_named_by_what_they_share() -> None:
    """One rank by its whole place, several by the axes on which they agree."""
    assert format_ranks((5,), LAYOUT) == f"rank 5 ({PLACE})"
    assert format_ranks((4, 5, 6, 7), LAYOUT, "n2") == "ranks 4-7 (replica 1 of 2; n2)"
    assert format_ranks((1, 5), LAYOUT) == "ranks 1, 5 (pipeline stage 1 of 4)"
    assert format_ranks((0, 5), LAYOUT) == "ranks 0, 5"


@pytest.mark.parametrize("ranks", [(), (8,), (-1,)])
def test_rank_that_the_layout_does_not_have_has_no_place(ranks: tuple[int, ...]) -> None:
    """A record may be damaged, or of another round: no name is better than a wrong one."""
    assert describe_ranks_in_layout(ranks, LAYOUT) == ""
    assert describe_ranks_in_layout((0,), Layout(replicate=0)) == ""


def test_hang_names_the_ranks_by_their_places() -> None:
    """Who stood still, and who is to blame."""
    stall = StalledRank(rank=0, step=7, silent_s=12.5, limit_s=5.0)
    stacks = [
        RankStack(rank=0, node="n0", state="S (sleeping)", step=7, text=""),
        RankStack(rank=5, node="n1", state="T (stopped)", step=7, text=""),
    ]
    found = build_hang_failure(stall, stacks, None, LAYOUT)
    assert "on rank 0 (replica 0 of 2, pipeline stage 0 of 4) for 12.5 s" in found.message
    assert f"rank 5 ({PLACE}) on n1 is T (stopped)" in found.message
    assert found.signature == build_hang_failure(stall, stacks).signature


def test_collective_names_the_missing_by_their_places() -> None:
    """Those that wait, by what they share, and the one that never came."""
    entry = RecordedCollective(
        operation="all_reduce", sequence=3, group="0", backend="gloo", finished=False, waited_s=4.0
    )
    told = [
        RankCollectives(
            rank=rank,
            node=f"n{rank}",
            groups=(GroupProgress(group="0", backend="gloo", ranks="4-7", entered=3 - (rank == 5)),),
            entries=() if rank == 5 else (entry,),
        )
        for rank in (4, 5, 6, 7)
    ]
    found = find_collective_wait(told, 8, LAYOUT)
    assert found is not None
    assert f"rank 5 ({PLACE}; n5) never entered all_reduce #3" in found.words
    assert "ranks 4, 6-7 (replica 1 of 2) wait in it" in found.words


def test_failure_of_a_rank_has_its_place_in_the_record_and_in_words() -> None:
    """The place is that of the round in which it failed, so it is recorded with it."""
    exit_ = RankExit(rank=5, node="n1", code=1, reason=ExitReason.raised, exception="ValueError", at=NOON)
    view = RoundView(round=0, at=NOON, exits=(exit_,), layout=LAYOUT)
    action = decide_after_round(view, Recovery(), Ledger())
    assert isinstance(action, EndAttempt)
    assert action.failure is not None
    assert action.failure.place == PLACE
    assert f"rank 5 ({PLACE}) on n1" in format_failure(action.failure)


def test_lost_node_names_the_replica_that_is_lost_with_it() -> None:
    """A node of a replica takes the replica along: people read which."""
    absence = NodeSilence(
        nodes=("n1", "n2"), tasks_per_node=4, silent=(4, 5, 6, 7), lost={1: 9.0}, layout=LAYOUT
    )
    found = build_node_loss_failure(absence, ())
    assert found is not None
    assert found.message == "lost the agent of n2 (rank 4-7; replica 1 of 2)"
    assert found.signature == "node_lost n2"


def test_stacks_name_ranks_by_what_they_share() -> None:
    """Ranks that do the same are often one stage, or one replica."""
    stacks = tuple(RankStack(rank=rank, node="n1", state="S", step=1, text="") for rank in (1, 5))
    answer = StacksAnswer(request=1, at=NOON, round=0, stacks=stacks, layout=LAYOUT)
    assert "ranks 1, 5 (pipeline stage 1 of 4) on n1" in format_stacks("x.0", 1, answer)


def _named(layout: Layout | None) -> list[int]:
    """Return the stragglers of four ranks, of which the last two have more work."""
    detector = StragglerDetector()
    detector.reset_for_new_round(layout)
    work = {0: 0.05, 1: 0.05, 2: 0.08, 3: 0.08}
    named: list[int] = []
    for window in range(14):
        reports = [
            RankSteps(
                rank=rank,
                node=f"n{rank}",
                gpu=None,
                first_step=window * 50,
                steps=50,
                seconds=5.0,
                own_s=own * 50,
            )
            for rank, own in work.items()
        ]
        named = [report.rank for report in detector.add_reports(reports)]
    return named


def test_pipeline_stages_with_more_work_are_no_stragglers() -> None:
    """Ranks are compared with those of their own stage; without stages they would be named."""
    assert _named(None) != []
    assert _named(Layout(pipeline=2, shard=2)) == []
