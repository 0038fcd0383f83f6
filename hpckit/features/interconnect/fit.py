"""A line through times of growing sizes: latency and time per byte, with confidence. Pure.

The model of Hockney (1994): t = alpha + s * beta. Errors of times are relative, so that each point weighs 1 /
t^2; points far off the line weigh less (Huber 1964), so that one disturbed size does not bend it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from hpckit.features.interconnect.model import CommOperation, LatencyFit, OperationTimes, SizedTime

GIGA = 1e9

LEAST_R2, MOST_SPREAD = 0.8, 0.25
"""Times of latency alone do not grow: a line explains little of them, and is right all the same."""
_ROUNDS = 20
_HUBER = 1.345
"""In standard deviations: 95 % efficient where errors are normal."""
_OF_NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Of 95 % confidence, for 1 to 10 degrees of freedom; about 2 for more."""
_NO_NOISE = 1e-9


def fit_latency_and_bandwidth(sizes: Sequence[int], seconds: Sequence[float]) -> LatencyFit | None:
    """Return the line through these times; None with fewer than two different sizes.

    Example: of 10 us + s / (1 GB/s), alpha_s is 1e-5 and beta_s_per_byte 1e-9. Neither is ever
    negative: where the free line's alpha would be, the line goes through zero.
    """
    points = [(float(s), t) for s, t in zip(sizes, seconds, strict=True) if t > 0]
    if len({s for s, _ in points}) < 2:  # noqa: PLR2004  # a line needs two
        return None
    weights = [1.0] * len(points)
    line = _fit_weighted_line(points, weights)
    for _ in range(_ROUNDS):
        weights = _compute_huber_weights(_compute_residuals(points, line))
        line = _fit_weighted_line(points, weights)
    alpha_error, beta_error, r2, spread = _estimate_fit_uncertainty(points, weights, line)
    return LatencyFit(
        alpha_s=line[0],
        beta_s_per_byte=line[1],
        alpha_error_s=alpha_error,
        beta_error_s_per_byte=beta_error,
        r2=r2,
        spread=spread,
        sizes=len(points),
        doubt=_explain_doubtful_fit(len(points), r2, spread),
    )


def _fit_weighted_line(
    points: Sequence[tuple[float, float]], weights: Sequence[float]
) -> tuple[float, float]:
    """Return alpha and beta of weighted least squares of relative errors."""
    w, ws, wss, wt, wst = _sum_weighted_moments(points, weights)
    determinant = w * wss - ws * ws
    if determinant <= 0:
        return 0.0, wst / wss
    alpha, beta = (wt * wss - wst * ws) / determinant, (w * wst - ws * wt) / determinant
    if alpha < 0:
        return 0.0, wst / wss
    return (alpha, beta) if beta >= 0 else (wt / w, 0.0)


def _sum_weighted_moments(
    points: Sequence[tuple[float, float]], weights: Sequence[float]
) -> tuple[float, float, float, float, float]:
    relative = [(weight / (t * t), s, t) for weight, (s, t) in zip(weights, points, strict=True)]
    return (
        math.fsum(w for w, _, _ in relative),
        math.fsum(w * s for w, s, _ in relative),
        math.fsum(w * s * s for w, s, _ in relative),
        math.fsum(w * t for w, _, t in relative),
        math.fsum(w * s * t for w, s, t in relative),
    )


def _compute_residuals(points: Sequence[tuple[float, float]], line: tuple[float, float]) -> list[float]:
    return [(t - line[0] - line[1] * s) / t for s, t in points]


def _compute_huber_weights(residuals: Sequence[float]) -> list[float]:
    scale = _OF_NORMAL * median(abs(residual) for residual in residuals)
    limit = _HUBER * max(scale, _NO_NOISE)
    return [1.0 if abs(residual) <= limit else limit / abs(residual) for residual in residuals]


def _estimate_fit_uncertainty(
    points: Sequence[tuple[float, float]], weights: Sequence[float], line: tuple[float, float]
) -> tuple[float, float, float, float]:
    """Return half the intervals of alpha and beta, R2, and the spread of relative errors."""
    left = math.fsum(
        weight * one * one for weight, one in zip(weights, _compute_residuals(points, line), strict=True)
    )
    w, ws, wss, wt, _ = _sum_weighted_moments(points, weights)
    level = wt / w
    total = math.fsum(weight * ((t - level) / t) ** 2 for weight, (_, t) in zip(weights, points, strict=True))
    r2 = max(0.0, 1 - left / total) if total > 0 else 0.0
    free = len(points) - 2
    determinant = w * wss - ws * ws
    if free < 1 or determinant <= 0:
        return math.inf, math.inf, r2, math.sqrt(left / len(points))
    student = _STUDENT[free - 1] if free <= len(_STUDENT) else 2.1
    variance = left / free
    return (
        student * math.sqrt(variance * wss / determinant),
        student * math.sqrt(variance * w / determinant),
        r2,
        math.sqrt(variance),
    )


def _explain_doubtful_fit(sizes: int, r2: float, spread: float) -> str:
    if sizes < FEWEST_SIZES:
        return f"{sizes} sizes are too few for a line; {FEWEST_SIZES} are needed"
    if r2 < LEAST_R2 and spread > MOST_SPREAD:
        return f"the times do not lie on a line (R2 {r2:.2f}, off it by {spread:.0%})"
    return ""


FEWEST_SIZES = 4
"""Two sizes always lie on a line; fewer than this say nothing about how well they do."""
_LARGE, _LONGER = 2**20, 10.0
"""Bandwidth counts, and not latency, from a megabyte on, or where the largest size takes ten times
what the smallest one does: on a very slow network no megabyte is reached."""
_SHARED = (CommOperation.all_gather, CommOperation.reduce_scatter, CommOperation.all_to_all)


def has_enough_measurements(times: OperationTimes) -> bool:
    """Return whether so much was measured of an operation that its bandwidth may be judged."""
    seen = times.times
    if len(seen) < FEWEST_SIZES:
        return False
    return seen[-1].size >= _LARGE or seen[-1].seconds >= _LONGER * seen[0].seconds


def bus_bandwidth_factor(operation: CommOperation, ranks: int) -> float:
    """Return bus bandwidth divided by size / time, for so many ranks (2 or more).

    As https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md defines it.
    Example: an all_reduce of 4 ranks sends 2 * 3/4 of the array over the slowest link: 1.5.
    """
    if operation is CommOperation.all_reduce:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in _SHARED else 1.0


def compute_bus_bandwidth(operation: CommOperation, ranks: int, size: int, seconds: float) -> float:
    """Return the bus bandwidth in bytes per second: comparable with what hardware promises."""
    return size / seconds * bus_bandwidth_factor(operation, ranks)


def find_best_bus_bandwidth(operation: CommOperation, ranks: int, times: Sequence[SizedTime]) -> float | None:
    """Return the bus bandwidth of the size that reached most; None if nothing was measured."""
    return max(
        (compute_bus_bandwidth(operation, ranks, time_.size, time_.seconds) for time_ in times), default=None
    )


def format_bytes_per_second(bytes_per_s: float | None) -> str:
    """Return a rate as `1.23 GB/s`; empty if it is unknown."""
    return "" if bytes_per_s is None else f"{bytes_per_s / GIGA:.3g} GB/s"
