"""Promises on time that is no training: ranks stood still before they were ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hpckit.model.failure import ExitReason, RankExit
from hpckit.planning.rounds.hang_report import measure_standstill_s


def ended(reason: ExitReason) -> list[RankExit]:
    """Return the ends of two ranks, of which one returned or left."""
    return [
        RankExit(rank=0, node="n1", code=1, reason=ExitReason.left),
        RankExit(rank=1, node="n1", code=1, reason=reason),
    ]


@pytest.mark.parametrize(
    ("since", "usual", "reason", "still"),
    [
        (660.0, 0.15, ExitReason.killed, 660.0),
        (40.0, 0.15, ExitReason.exited, 40.0),
        (660.0, 90.0, ExitReason.killed, 0.0),  # such steps take minutes
        (9.0, 0.15, ExitReason.killed, 0.0),
        (660.0, 0.15, ExitReason.left, 0.0),  # the last save took that long
        (660.0, 0.15, ExitReason.returned, 0.0),
    ],
)
def test_step_in_which_ranks_were_ended_is_a_standstill_if_it_took_unusually_long(
    since: float, usual: float, reason: ExitReason, still: float
) -> None:
    """As after a hang that somebody cancelled before its limit."""
    assert measure_standstill_s(since, timedelta(seconds=usual), ended(reason)) == still
