"""Promises of hpckit.report.spread."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import UsageError
from hpckit.model.plain import to_plain
from hpckit.model.run import PRUNED
from hpckit.model.states import RunState
from hpckit.report.results import ResultRow, Results
from hpckit.report.selection import SortKey
from hpckit.report.spread import (
    Spread,
    average_results_over_keys,
    compute_mean_and_deviation,
    format_mean_deviation_and_count,
    list_spread_csv_columns,
    list_spread_csv_rows,
    parse_keys_to_average_over,
    sort_spread_rows,
)
from hpckit.report.text import render_plain_text, render_spread_page


def row(index: int, lr: str, *, seed: int = 0, **more: Any) -> ResultRow:
    """Return a completed run of a sweep over lr and seed; `loss` is its metric."""
    fields = {
        "state": RunState.completed,
        "metrics": {"loss": more.pop("loss")} if "loss" in more else {},
        **more,
    }
    overrides = {"lr": lr, "seed": str(seed)}
    return ResultRow(run=f"demo.{index}", index=index, overrides=overrides, step=None, wall_s=None, **fields)


def results(*rows: ResultRow) -> Results:
    """Return the results of these runs."""
    metrics = tuple(dict.fromkeys(name for one in rows for name in one.metrics))
    return Results(overrides=("lr", "seed"), metrics=metrics, rows=rows)


def test_runs_that_differ_in_the_seed_alone_are_one_row() -> None:
    """Mean, sample standard deviation and how many runs, for each of the other overrides."""
    found = average_results_over_keys(
        results(
            row(0, "0.1", seed=1, loss=1.0),
            row(1, "0.2", seed=1, loss=4.0),
            row(2, "0.1", seed=2, loss=2.0),
            row(3, "0.1", seed=3, loss=3),
        ),
        ("seed",),
    )
    assert found.overrides == ("lr",)
    first, second = found.rows
    assert (first.overrides, first.runs) == ({"lr": "0.1"}, ("demo.0", "demo.2", "demo.3"))
    assert first.metrics == {"loss": Spread(mean=2.0, std=1.0, n=3)}
    assert second.metrics == {"loss": Spread(mean=4.0, std=None, n=1)}
    assert render_plain_text(render_spread_page(found)).splitlines() == [
        "lr   runs  loss",
        "0.1  3     2 ± 1 (3)",
        "0.2  1     4 (1)",
    ]


def test_only_completed_runs_with_a_finite_number_count() -> None:
    """What failed, was pruned, lacks the metric or has NaN is not in n, and the row says so."""
    found = average_results_over_keys(
        results(
            row(0, "1", loss=1.0),
            row(1, "1", loss="nan"),
            row(2, "1"),
            row(3, "1", loss=9.0, state=RunState.failed),
            row(4, "1", loss=9.0, reason=PRUNED),
            row(5, "1", loss=math.nan),
        ),
        ("seed",),
    )
    (only,) = found.rows
    assert (len(only.runs), only.completed) == (6, 4)
    assert only.metrics["loss"] == Spread(mean=1.0, std=None, n=1)
    assert render_plain_text(render_spread_page(found)).splitlines()[1] == "1   6 (4 completed)  1 (1 of 4)"


def test_metrics_that_are_no_numbers_have_no_column() -> None:
    """A name has no mean; a metric that was NaN in every run is shown as such, with n 0."""
    found = average_results_over_keys(
        results(row(0, "1", metrics={"note": "fine", "ok": True, "loss": "inf"})), ("seed",)
    )
    assert found.metrics == ("loss",)
    assert list(list_spread_csv_rows(found)) == [("1", 1, 1, None, None, 0)]
    assert list_spread_csv_columns(found) == ("lr", "runs", "completed", "loss_mean", "loss_std", "loss_n")


def test_stages_are_never_put_together() -> None:
    """Runs of different stages with the same overrides are different things."""
    found = average_results_over_keys(results(row(0, "1", stage="a"), row(1, "1", stage="b")), ("seed",))
    assert [one.stage for one in found.rows] == ["a", "b"]
    assert list_spread_csv_columns(found)[0] == "stage"


def test_over_takes_keys_that_runs_override() -> None:
    """Separated by commas or repeated; what no run overrides is named, with what varies."""
    known = ("experiment", "lr", "seed", "fold")
    assert parse_keys_to_average_over(["seed,fold", "+seed"], known, ("lr", "seed")) == ("seed", "fold")
    assert parse_keys_to_average_over(["fold"], {"params.fold": 1}, ()) == ("params.fold",)
    with pytest.raises(UsageError, match=r"'sed'.*overrides that vary: lr, seed"):
        parse_keys_to_average_over(["sed"], known, ("lr", "seed"))


def test_rows_are_sorted_by_means_and_overrides() -> None:
    """As other results are."""
    found = average_results_over_keys(results(row(0, "2", loss=5.0), row(1, "10", loss=3.0)), ("seed",))
    by_loss = sort_spread_rows(found, SortKey(column="loss"))
    assert [one.overrides["lr"] for one in by_loss.rows] == ["10", "2"]
    by_lr = sort_spread_rows(found, SortKey(column="lr"))
    assert [one.overrides["lr"] for one in by_lr.rows] == ["2", "10"]
    with pytest.raises(UsageError, match="runs, completed, stage, lr, loss"):
        sort_spread_rows(found, SortKey(column="seed"))


@pytest.mark.parametrize(
    ("mean", "std", "n", "text"),
    [
        (0.91234, 0.00412, 5, "0.912 ± 0.004 (5)"),
        (0.5, 0.0, 2, "0.5 ± 0 (2)"),
        (123.456, 12.0, 4, "123.5 ± 12 (4 of 5)"),
        (1.23456e-7, 2e-9, 5, "1.235e-07 ± 2e-09 (5)"),
        (2.5e9, 1e3, 5, "2.5e+09 ± 1e+03 (5)"),
        (3.14159, None, 1, "3.142 (1 of 5)"),
        (None, None, 0, ""),
    ],
)
def test_spread_text_is_as_exact_as_the_deviation(
    mean: float | None, std: float | None, n: int, text: str
) -> None:
    """More digits of a mean than its deviation has say nothing."""
    completed = n if text.endswith(f"({n})") else 5
    assert format_mean_deviation_and_count(Spread(mean=mean, std=std, n=n), completed) == text


@given(st.lists(st.floats() | st.integers() | st.booleans() | st.text() | st.none()))
def test_spread_of_anything_is_finite_or_null(values: list[Any]) -> None:
    """Whatever runs logged, JSON has numbers or null, and the text is a text."""
    found = compute_mean_and_deviation(values)
    assert "NaN" not in json.dumps(to_plain(found))
    assert "Infinity" not in json.dumps(to_plain(found))
    assert isinstance(format_mean_deviation_and_count(found, len(values)), str)
    assert found.n == sum(
        not isinstance(value, bool) and isinstance(value, int | float) and _is_finite(value)
        for value in values
    )


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def test_spread_of_the_largest_numbers_has_no_mean() -> None:
    """Their sum is beyond what a float holds: no result, and no traceback."""
    assert compute_mean_and_deviation([1.7e308, 1.7e308]) == Spread(mean=None, std=0.0, n=2)
