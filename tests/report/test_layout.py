"""Promises of the line on a run's layout."""

from __future__ import annotations

import pytest

from hpckit.model.parallel.layout import Layout, LayoutReport
from hpckit.report.text import format_parallel_layout, format_short_count

MILLION = 10**6


@pytest.mark.parametrize(
    ("layout", "parameters", "whole", "line"),
    [
        (
            Layout(replicate=2, shard=4),
            ((8, 1_180_000),),
            4_720_000,
            "layout: replicate 2 x shard 4; 1.18 M of 4.72 M parameters on each rank",
        ),
        (Layout(replicate=2), ((2, 500),), 500, "layout: replicate 2; 500 parameters on each rank"),
        (
            Layout(pipeline=2),
            ((1, 3 * MILLION), (1, 5 * MILLION)),
            8 * MILLION,
            "layout: pipeline 2; 3 M to 5 M of 8 M parameters on each rank",
        ),
        (Layout(tensor=2), ((2, 0),), 0, "layout: tensor 2"),
    ],
)
def test_line_says_how_the_model_lies_over_the_ranks(
    layout: Layout, parameters: tuple[tuple[int, int], ...], whole: int, line: str
) -> None:
    """Sizes that are in use, and what a rank holds of the model."""
    report = LayoutReport(layout=layout, parameters=parameters, model_parameters=whole)
    assert list(format_parallel_layout(report)) == [line]


def test_single_rank_and_silent_run_have_no_line() -> None:
    """Where there is nothing to say, nothing is said."""
    alone = LayoutReport(layout=Layout(), parameters=((1, 5),), model_parameters=5)
    assert list(format_parallel_layout(alone)) == list(format_parallel_layout(None)) == []


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1000, "1 k"), (999_999, "1 M"), (405 * 10**9, "405 G")]
)
def test_amount_has_three_digits(count: int, text: str) -> None:
    """Numbers of parameters are read at a glance."""
    assert format_short_count(count) == text
