"""Promises of what the ranks of a round report of their layout."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.model.parallel.layout import (
    Layout,
    LayoutReport,
    RankLayout,
    encode_run_lengths,
    merge_rank_layouts,
)
from hpckit.model.run import RunRecord

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def event(layout: Layout, *pairs: tuple[int, int]) -> events.LayoutReported:
    """Return the event of a round."""
    report = LayoutReport(layout=layout, parameters=pairs, model_parameters=10)
    return events.LayoutReported(at=NOON, round=0, report=report)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_run_lengths_lose_nothing(values: list[int]) -> None:
    """What is short on disk comes back rank by rank."""
    pairs = encode_run_lengths(values)
    report = LayoutReport(layout=Layout(replicate=len(values)), parameters=pairs, model_parameters=1)
    assert list(report.per_rank) == values
    assert all(one != other for (_, one), (_, other) in pairwise(pairs))


def test_report_of_a_thousand_ranks_is_short_on_disk() -> None:
    """Every reader of the record reads it: two hundred bytes, not a number for each rank."""
    layout = Layout(replicate=125, shard=8)
    told = {rank: RankLayout(layout=layout, held=10**9, whole=8 * 10**9) for rank in range(1000)}
    reported = events.LayoutReported(at=NOON, round=0, report=merge_rank_layouts(told))
    plain = events.encode_event(reported)
    assert len(json.dumps(plain)) < 300
    assert events.decode_event(plain) == reported


def test_whole_model_is_the_sum_of_its_pipeline_stages() -> None:
    """Replicas, shards and slices of matrices are the same parameters; stages are others."""
    layout = Layout(replicate=2, pipeline=2, shard=2)
    told = {rank: RankLayout(layout=layout, held=5, whole=10 if rank % 4 < 2 else 30) for rank in range(8)}
    assert merge_rank_layouts(told).model_parameters == 40


def test_ranks_that_disagree_are_named() -> None:
    """Ranks of one round have one layout: another one is an error in somebody's code."""
    told = {
        0: RankLayout(layout=Layout(replicate=2), held=1, whole=1),
        1: RankLayout(layout=Layout(shard=2), held=1, whole=1),
    }
    with pytest.raises(ValueError, match="rank 1 has the layout shard 2, rank 0 has replicate 2"):
        merge_rank_layouts(told)


@pytest.mark.parametrize(
    "change",
    [
        {"layout": {"replicate": 0}},
        {"layout": {"replicate": -2, "shard": -1}},
        {"layout": {"replicate": 10**12}, "parameters": [[10**12, 1]]},
        {"parameters": [[10**15, 1]]},
        {"parameters": [[1, 1]]},
        {"parameters": [[3, 1], [-1, 1]]},
        {"parameters": [[2, -5]]},
        {"parameters": [["2", 5]]},
    ],
)
def test_report_that_nobody_can_have_made_is_not_read(change: dict[str, Any]) -> None:
    """Folders of other users are shown, too: a forged count must not fill the memory."""
    plain = events.encode_event(event(Layout(replicate=2), (2, 5)))
    assert events.decode_event(plain) is not None
    layout = {**plain["report"]["layout"], **change.get("layout", {})}
    plain["report"] = {**plain["report"], **change, "layout": layout}
    assert events.decode_event(plain) is None


def test_latest_report_stays_after_the_end_and_into_the_next_attempt() -> None:
    """What was reported holds until ranks report something else."""
    first, second = event(Layout(replicate=2), (2, 5)), event(Layout(shard=2), (2, 3))
    started = events.AttemptStarted(
        at=NOON, attempt=2, job=None, restart_count=0, host="n1", pid=1, started=""
    )
    record = RunRecord(id="x.0", index=0, overrides=(), folder="/x")
    assert record.layout is None
    assert record.apply_events([first, started]).layout == first.report
    assert record.apply_events([first, started, second]).reset_to_pending().layout == second.report
