"""Which steps are reported to a study: few, and the same ones whatever the clock says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpckit.model.messages import Reported
from hpckit.runtime.rank.live_run import LoggedMetrics, to_plain_metric


def _reported(steps: range) -> list[int]:
    reporting = LoggedMetrics(reported="loss")
    found = [reporting.choose_metrics_to_report(step, {"loss": 1.0}) for step in steps]
    return [report.step for report in found if report is not None]


def test_reports_are_of_all_early_steps_and_ever_fewer_later() -> None:
    """A million steps are some five hundred reports, of which none is lost below 64."""
    steps = _reported(range(1_000_000))
    assert steps[:64] == list(range(64))
    assert 400 < len(steps) < 600
    assert sum(step >= 500_000 for step in steps) <= 40


def test_reports_of_runs_that_log_alike_are_of_the_same_steps() -> None:
    """Logged every hundred steps, every early one counts, although none is a round number."""
    steps = _reported(range(99, 3200, 100))
    assert steps == list(range(99, 3200, 100))
    assert len(_reported(range(99, 1_000_000, 100))) < 500


@pytest.mark.parametrize("value", ["nan", True, None, float("inf")])
def test_what_is_no_finite_number_is_not_reported(value: object) -> None:
    """A study cannot compare it; the next number at that step still counts."""
    reporting = LoggedMetrics(reported="loss")
    assert reporting.choose_metrics_to_report(3, {"loss": value}) is None
    assert reporting.choose_metrics_to_report(3, {"other": 1.0}) is None
    assert reporting.choose_metrics_to_report(None, {"loss": 1.0}) is None
    assert reporting.choose_metrics_to_report(3, {"loss": 1}) == Reported(step=3, value=1.0)


def test_nothing_is_reported_where_nobody_judges() -> None:
    """Without a metric's name, logging stays what it was."""
    assert LoggedMetrics().choose_metrics_to_report(0, {"loss": 1.0}) is None


def test_numbers_that_nothing_holds_are_not_reported() -> None:
    """They would end the training that logs them, or be no message."""
    reporting = LoggedMetrics(reported="loss")
    assert reporting.choose_metrics_to_report(0, {"loss": 10**400}) is None
    assert reporting.choose_metrics_to_report(2**63, {"loss": 1.0}) is None
    assert reporting.choose_metrics_to_report(2**62, {"loss": 1.0}) is not None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.ones(2, 3), "Tensor of shape (2, 3)"),
        (np.ones(4), "ndarray of shape (4,)"),
        (torch.ones(0), "Tensor of shape (0,)"),
        ([1, 2], "list"),
    ],
)
def test_value_that_is_no_single_one_is_refused_by_name(value: object, said: str) -> None:
    """Torch's own error names neither the metric nor the shape."""
    with pytest.raises(TypeError) as caught:
        to_plain_metric("acc", value)
    assert str(caught.value).startswith(f"run.log(acc=…) got a {said}; allowed are")


def test_value_of_one_element_is_recorded_as_a_number() -> None:
    """Of any shape; what is not finite is a text, which JSON can hold."""
    assert to_plain_metric("loss", torch.tensor([[2.5]])) == 2.5
    assert to_plain_metric("loss", np.float32("nan")) == "nan"
    assert [to_plain_metric("loss", one) for one in (10**400, -(10**400))] == ["inf", "-inf"]
    assert to_plain_metric("count", 10**300) == 10**300
