"""Promises of `hpckit results` over several launches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpckit.errors import NotFoundError, UsageError


@pytest.fixture
def told(desk: Any, writer: Any) -> Any:
    """Return a desk with three launches of two configurations (seeds), of two names.

    The older one completed seed 1 and 2, the newer one seed 2 and not 1; the third is another's.
    """

    def launch(minute: int, seed: int, outcome: str, loss: float, name: str = "demo") -> None:
        frozen = desk.freeze(name, sweep=[(f"seed={seed}",)], minute=minute, seed=seed)
        attempt = writer(launch=frozen)
        attempt.start()
        attempt.metrics(7, loss=loss)
        getattr(attempt, outcome)()

    launch(0, 1, "complete", 0.1)
    launch(1, 2, "complete", 0.2)
    launch(2, 1, "fail", 0.3)
    launch(3, 2, "complete", 0.4)
    launch(4, 3, "complete", 0.5, name="other")
    return desk


def shown(desk: Any, *words: str) -> list[tuple[str, float]]:
    """Return minute and loss of every row."""
    runs = json.loads(desk.say("results", "--json", *words).out)["runs"]
    return [(run["launch"].split("-")[2][2:4], run["metrics"]["loss"]) for run in runs]


def test_results_of_an_experiment_take_the_newest_that_completed(told: Any) -> None:
    """Of what was computed twice the later result is shown; a later failure hides no result."""
    assert shown(told, "--experiment", "demo") == [("00", 0.1), ("03", 0.4)]
    assert shown(told, "--experiment", "*") == [("00", 0.1), ("03", 0.4), ("04", 0.5)]


def test_results_of_several_launches_are_one_table(told: Any) -> None:
    """Launches that are named make one table, with a column that says which, sorted and cut."""
    names = [f"demo-20260101-000{minute}00" for minute in (1, 2)]
    assert shown(told, *names) == [("01", 0.2), ("02", 0.3)]
    # Completed runs come first, though the failed one has the larger loss.
    assert shown(told, *names, "--sort", "-loss", "--limit", "1") == [("01", 0.2)]
    assert shown(told, *names, "--sort", "launch", "--descending")[0] == ("02", 0.3)
    assert shown(told, *names, "--failed") == [("02", 0.3)]
    header, first, _ = told.say("results", *names).out.splitlines()
    columns = ["launch", "index", "seed", "state", "attempt", "cause", "loss", "steps"]
    assert header.split()[:8] == columns
    assert first.split()[:5] == [f"{names[0]}-ab12", "0", "2", "completed", "1"]


def test_results_take_runs_of_a_launch_beside_others(told: Any) -> None:
    """A run and its own launch are one and the same; nothing is shown twice."""
    name = "demo-20260101-000100"
    assert shown(told, f"{name}-ab12.0", name) == [("01", 0.2)]


def test_results_name_the_run_that_chose_the_experiment(desk: Any, writer: Any) -> None:
    """A launch that swept experiments gives the runs of the one that is asked for."""
    launch = desk.freeze(sweep=[("experiment=a",), ("experiment=b",)])
    for index in (0, 1):
        attempt = writer(launch=launch, index=index)
        attempt.start()
        attempt.complete()
    runs = json.loads(desk.say("results", "--json", "--experiment", "b").out)["runs"]
    assert [run["index"] for run in runs] == [1]


def test_results_of_no_such_experiment_name_those_there_are(told: Any) -> None:
    """The error lists the names; an experiment and launches at once are refused."""
    with pytest.raises(NotFoundError) as caught:
        told.say("results", "--experiment", "dmo")
    assert "demo, other" in caught.value.hint
    with pytest.raises(UsageError, match="some are given by name as well"):
        told.say("results", "demo", "--experiment", "demo")


def test_results_say_where_the_code_differs(told: Any) -> None:
    """What different code has given, or code that nobody knows, is not compared in silence."""
    assert "launches differs, or was not recorded" in told.say("results", "--experiment", "demo").err
    assert "code" not in told.say("results").err
