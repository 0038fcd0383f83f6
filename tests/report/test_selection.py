"""Promises of hpckit.report.selection."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import UsageError
from hpckit.model.states import RunState
from hpckit.report.selection import parse_run_filter, parse_sort_key, sort_with_missing_last


@pytest.mark.parametrize(
    ("asked", "override", "taken"),
    [
        ("lr=0.1", "lr=0.1", True),
        ("lr=0.1", "+lr=0.10", True),
        ("lr=1e-3", "lr=0.001", True),
        ("+lr=0.*", "lr=0.01", True),
        ("lr=0.*", "lr=1", False),
        ("lr=*", "optimizer=adam", False),
        ("sizes=[1,2]", "sizes=[1,2]", True),
        ("name=a[bc]", "name=ab", True),
        ("name=A*", "name=ab", False),
        ("opt=~", "~opt", True),
        ("seed=x", "seed=1", False),
        ("lr=0.1", "+params.lr=0.1", True),
        ("r=0.1", "+params.lr=0.1", False),
    ],
)
def test_filter_takes_overrides_by_letter_glob_and_number(*, asked: str, override: str, taken: bool) -> None:
    """A value is meant to the letter, by a glob, or as the same number."""
    assert parse_run_filter(overrides=[asked]).matches_run(RunState.pending, [override, "other=1"]) is taken


def test_filter_takes_any_value_of_one_key_and_wants_every_key() -> None:
    """Of one key one value is enough; several keys all have to match."""
    wanted = parse_run_filter(overrides=["lr=1", "lr=2", "seed=3"])
    sweep = [(f"lr={lr}", f"seed={seed}") for lr in (1, 2, 3) for seed in (3, 4)]
    found = [run for run in sweep if wanted.matches_run(RunState.running, run)]
    assert found == [("lr=1", "seed=3"), ("lr=2", "seed=3")]


def test_filter_takes_states_said_in_any_way() -> None:
    """States are separated by commas or said one by one; --failed adds what ended badly."""
    wanted = parse_run_filter(["pending,running", "completed"])
    assert wanted.states == {RunState.pending, RunState.running, RunState.completed}
    failed = parse_run_filter(failed=True).states
    assert failed == {RunState.failed, RunState.interrupted, RunState.unknown}


@pytest.mark.parametrize(
    ("states", "overrides", "named"),
    [(["lost"], [], "'lost'"), ([""], [], "pending, running"), ([], ["lr"], "KEY=VALUE")],
)
def test_filter_refuses_what_it_does_not_know(states: list[str], overrides: list[str], named: str) -> None:
    """A state that is none, and an override without a value, are named in the error."""
    with pytest.raises(UsageError, match=named):
        parse_run_filter(states, overrides)


def test_sort_key_with_a_dash_puts_the_largest_first() -> None:
    """`-loss` is the column `loss`, descending."""
    assert (parse_sort_key("-loss").column, parse_sort_key("-loss").descending) == ("loss", True)
    assert parse_sort_key("loss").descending is False


@given(values=st.lists(st.none() | st.integers() | st.text(max_size=3)), descending=st.booleans())
def test_order_keeps_everything_and_puts_nothing_last(*, values: list[object], descending: bool) -> None:
    """Whatever the values: none is lost, and those that are missing come last."""
    found = sort_with_missing_last(values, lambda one: one, descending=descending)
    assert sorted(map(repr, found)) == sorted(map(repr, values))
    missing = values.count(None)
    assert None not in found[: len(found) - missing]


@given(values=st.lists(st.floats(allow_nan=False), min_size=1))
def test_order_is_by_size_also_of_numbers_as_text(values: list[float]) -> None:
    """Numbers written as text sort as the numbers they are; NaN is last in either order."""
    mixed = [repr(value) for value in values]
    random.Random(0).shuffle(mixed)  # noqa: S311  # an order, no secret
    for descending in (False, True):
        found = sort_with_missing_last(["nan", *mixed, "nan"], lambda text: text, descending=descending)
        assert [float(text) for text in found[:-2]] == sorted(values, reverse=descending)
        assert all(math.isnan(float(text)) for text in found[-2:])
