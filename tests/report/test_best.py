"""The best run of an adaptive sweep."""

from __future__ import annotations

import math
import random
from typing import Any

from hpckit.model.search import Direction, Pruner, Search
from hpckit.model.states import RunState
from hpckit.report.best import best_row_to_json, find_best_row, format_best_run_line, sort_best_first
from hpckit.report.results import ResultRow, Results


def _search(direction: Direction = Direction.minimize) -> Search:
    return Search(axes=(), followers=(), metric="loss", direction=direction, pruner=Pruner.none, seed=0)


def _row(index: int, loss: Any, state: RunState = RunState.completed, reason: str = "") -> ResultRow:
    return ResultRow(
        run=f"demo.{index}",
        index=index,
        overrides={"lr": f"0.{index}"},
        state=state,
        step=None,
        wall_s=None,
        metrics={} if loss is None else {"loss": loss},
        reason=reason,
    )


ROWS = (
    _row(0, 0.5),
    _row(1, 0.1, RunState.running),
    _row(2, 0.25),
    _row(3, 0.2, reason="pruned"),
    _row(4, None),
    _row(5, "nan"),
    _row(6, 0.75),
    _row(7, math.nan),
    _row(8, -math.inf),
    _row(9, math.inf),
    _row(10, loss=True),
)


def _order(direction: Direction) -> list[int]:
    results = Results(overrides=("lr",), metrics=("loss",), rows=ROWS)
    return [row.index for row in sort_best_first(results, _search(direction)).rows]


def test_best_run_comes_first_and_what_does_not_count_last() -> None:
    """What runs, was pruned or has no finite number is below every result."""
    assert _order(Direction.minimize) == [2, 0, 6, 1, 3, 4, 5, 7, 8, 9, 10]
    assert _order(Direction.maximize)[:3] == [6, 0, 2]


def test_best_run_is_a_completed_one() -> None:
    """A lower loss of a run that goes on, or was pruned, is no result yet."""
    for seed in range(9):
        shuffled = random.Random(seed).sample(ROWS, len(ROWS))  # noqa: S311  # an order, no secret
        leader = find_best_row(shuffled, _search())
        assert leader is not None
        assert leader.index == 2
    assert format_best_run_line(leader, "loss") == "best so far: demo.2  loss 0.25  lr=0.2"
    document = best_row_to_json(leader, _search())
    assert document is not None
    assert (document["run"], document["value"]) == ("demo.2", 0.25)


def test_best_of_nothing_says_so() -> None:
    """Before the first run has completed there is none."""
    assert find_best_row(ROWS[3:6], _search()) is None
    assert best_row_to_json(None, _search()) is None
    assert format_best_run_line(None, "loss") == "best so far: no run has completed with a loss"
