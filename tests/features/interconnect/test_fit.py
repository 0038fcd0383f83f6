"""Properties of bus bandwidth and of the line through times."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.features.interconnect.fit import (
    bus_bandwidth_factor,
    compute_bus_bandwidth,
    fit_latency_and_bandwidth,
)
from hpckit.features.interconnect.model import CommOperation

SIZES = [2**power for power in range(10, 27)]
ALPHAS = st.floats(1e-6, 1e-3)
BETAS = st.floats(1e-12, 1e-8)


@given(ALPHAS, BETAS)
def test_fit_finds_an_exact_line_again(alpha: float, beta: float) -> None:
    """Without noise both are found again, certain and explained."""
    found = fit_latency_and_bandwidth(SIZES, [alpha + beta * size for size in SIZES])
    assert found is not None
    assert math.isclose(found.alpha_s, alpha, rel_tol=1e-5)
    assert math.isclose(found.beta_s_per_byte, beta, rel_tol=1e-5)
    if beta * SIZES[-1] > alpha:
        assert found.doubt == ""


@given(st.integers(0, 2**32))
def test_fit_finds_a_noisy_line_again(seed: int) -> None:
    """With 3 % of noise and one point three times as slow both are found within a seventh."""
    chance = random.Random(seed)  # noqa: S311  # noise, no secret
    alpha, beta = 20e-6, 1e-10
    times = [(alpha + beta * size) * chance.gauss(1, 0.03) for size in SIZES]
    times[chance.randrange(len(times))] *= 3
    found = fit_latency_and_bandwidth(SIZES, times)
    assert found is not None
    assert abs(found.alpha_s / alpha - 1) < 0.15
    assert abs(found.beta_s_per_byte / beta - 1) < 0.15
    assert found.alpha_error_s < alpha
    assert found.r2 > 0.8


def test_fit_says_when_it_is_not_to_be_trusted() -> None:
    """Too few sizes, or times that no line explains."""
    few = fit_latency_and_bandwidth([1024, 2048], [1e-5, 2e-5])
    assert few is not None
    assert "2 sizes are too few" in few.doubt
    wild = fit_latency_and_bandwidth(SIZES[:6], [1e-3, 1e-5, 1e-3, 1e-5, 1e-3, 1e-5])
    assert wild is not None
    assert "do not lie on a line" in wild.doubt
    assert fit_latency_and_bandwidth([1024], [1e-5]) is None
    assert fit_latency_and_bandwidth([1024, 1024], [1e-5, 1e-5]) is None


@given(st.lists(st.floats(1e-7, 1.0), min_size=2, max_size=len(SIZES)))
def test_fit_is_never_negative(times: list[float]) -> None:
    """Whatever the times, latency and time per byte are none that cannot be."""
    found = fit_latency_and_bandwidth(SIZES[: len(times)], times)
    assert found is not None
    assert found.alpha_s >= 0
    assert found.beta_s_per_byte >= 0
    assert 0 <= found.r2 <= 1


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        (CommOperation.all_reduce, 1.75),
        (CommOperation.all_gather, 0.875),
        (CommOperation.reduce_scatter, 0.875),
        (CommOperation.all_to_all, 0.875),
        (CommOperation.broadcast, 1.0),
        (CommOperation.point_to_point, 1.0),
        (CommOperation.host_to_device, 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation: CommOperation, factor: float) -> None:
    """The factors of its PERFORMANCE.md for eight ranks."""
    assert bus_bandwidth_factor(operation, 8) == factor
    assert compute_bus_bandwidth(operation, 8, 1000, 2.0) == 500 * factor


@given(st.integers(2, 4096))
def test_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks: int) -> None:
    """Its bytes on the bus are those of both together."""
    parts = (CommOperation.reduce_scatter, CommOperation.all_gather)
    assert math.isclose(
        bus_bandwidth_factor(CommOperation.all_reduce, ranks),
        sum(bus_bandwidth_factor(part, ranks) for part in parts),
    )
