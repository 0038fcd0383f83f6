"""Promises of `hpckit results`."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from hpckit.errors import UsageError
from hpckit.report.results import ACCOUNT_COLUMNS

SWEEP = [
    ("experiment=digits", "+lr=0.1", "seed=1"),
    ("experiment=digits", "+lr=0.02", "seed=1"),
    ("experiment=digits", "+lr=0.003", "seed=1"),
]


@pytest.fixture
def swept(desk: Any, writer: Any) -> Any:
    """Return a desk with a sweep of three: two completed, one still running."""
    launch = desk.freeze(sweep=SWEEP)
    for index, accuracy in ((0, 0.5), (1, 0.9)):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.metrics(10, loss=1.0)
        attempt.metrics(20, loss=1.0 - accuracy, accuracy=accuracy)
        attempt.complete()
    writer(launch=launch, index=2).start()
    return desk


def test_results_show_what_differs_beside_what_came_out(swept: Any) -> None:
    """Columns are the overrides that differ, the state, the last metrics, step and time."""
    lines = swept.say("results").out.splitlines()
    assert lines[0].split() == [
        "INDEX",
        "LR",
        "STATE",
        "LOSS",
        "ACCURACY",
        "STEP",
        "TIME",
        "GOODPUT",
    ]
    assert lines[1].split()[:7] == ["0", "0.1", "completed", "0.5", "0.5", "20", "2:00"]
    assert lines[1].endswith("  99.2 %")
    assert lines[3].split()[:3] == ["2", "0.003", "running"]


def test_results_csv_is_read_back_by_any_program(swept: Any) -> None:
    """--csv has a header and full numbers, with nothing where there is nothing."""
    rows = list(csv.DictReader(io.StringIO(swept.say("results", "--csv").out)))
    account = {name: rows[1].pop(name) for name in ACCOUNT_COLUMNS}
    assert (account["goodput"], account["failures"]) == (str(119 / 120), "0")
    assert rows[1] == {
        "index": "1",
        "lr": "0.02",
        "state": "completed",
        "loss": "0.09999999999999998",
        "accuracy": "0.9",
        "step": "20",
        "time": "120.0",
    }
    assert rows[2]["accuracy"] == ""


def test_results_json_has_the_documented_fields(swept: Any) -> None:
    """Programs find the fields that docs/reference/cli.md names."""
    document = json.loads(swept.say("results", "--json").out)
    assert list(document) == [
        *("launch", "overrides", "metrics", "runs", "total", "matching", "launches", "best")
    ]
    assert (document["overrides"], document["metrics"]) == (["lr"], ["loss", "accuracy"])
    first = document["runs"][0]
    assert list(first) == [
        *("run", "index", "overrides", "state", "step", "wall_s", "metrics", "goodput"),
        *("launch", "attempt", "stage", "blocked", "reason"),
    ]
    assert (first["overrides"], first["wall_s"]) == ({"lr": "0.1"}, 120.0)


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (("--sort", "lr"), [2, 1, 0]),
        (("--sort", "accuracy"), [0, 1, 2]),
        (("--sort", "accuracy", "--descending"), [1, 0, 2]),
        (("--sort", "index", "--descending"), [2, 1, 0]),
        (("--sort", "-accuracy"), [1, 0, 2]),
        (("--sort=-index",), [2, 1, 0]),
        (("--sort", "productive_s", "--descending"), [0, 1, 2]),
        ((), [0, 1, 2]),
    ],
)
def test_results_sort_by_any_column(swept: Any, words: tuple[str, ...], order: list[int]) -> None:
    """Numbers sort by size, and runs without a value come last either way."""
    runs = json.loads(swept.say("results", "--json", *words).out)["runs"]
    assert [run["index"] for run in runs] == order


def test_results_refuse_to_sort_by_what_is_no_column(swept: Any) -> None:
    """A column that is none is an error that names those there are."""
    with pytest.raises(UsageError, match="index, state, step, time, lr, loss, accuracy"):
        swept.say("results", "--sort", "speed")


def test_results_of_a_single_run_need_no_columns_of_overrides(desk: Any) -> None:
    """Where nothing differs, no override is shown."""
    desk.freeze(sweep=[("seed=1",)])
    head, row = desk.say("results", "--csv").out.splitlines()
    assert head.startswith("index,state,step,time,goodput,ettr,")
    assert row.startswith("0,pending,,,,,")


def test_results_draw_a_table_on_a_terminal(swept: Any) -> None:
    """A terminal gets the same columns, drawn."""
    assert "accuracy" in swept.say("results", terminal=True).out


def test_results_of_some_runs_keep_the_columns_of_the_sweep(swept: Any) -> None:
    """A filter leaves runs out, not the column of what they were chosen by."""
    lines = swept.say("results", "--override", "lr=0.02").out.splitlines()
    assert "LR" in lines[0].split()
    assert [line.split()[:2] for line in lines[1:]] == [["1", "0.02"]]


def test_results_say_how_many_a_limit_leaves_out(swept: Any) -> None:
    """The best N by a metric, and how many there are besides."""
    said = swept.say("results", "--sort", "-accuracy", "--limit", "1", "--json")
    document = json.loads(said.out)
    assert [run["index"] for run in document["runs"]] == [1]
    assert (document["total"], document["matching"]) == (3, 3)
    assert "2 more not shown" in said.err
