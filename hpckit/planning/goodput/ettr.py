"""The share of its time that a run should spend on work, by formula. Pure.

The formula is Daly's complete model (Future Generation Computer Systems 22, 2006) for exponentially
distributed failures, with a term for what the model leaves out: noticing a failure (d) and waiting
for nodes (q).
"""

from __future__ import annotations

import math

from hpckit.model.goodput import MeasuredTimes


def expected_ettr(measured: MeasuredTimes) -> float | None:
    """Return the expected ETTR, null if nothing was saved, because there is no interval then.

    dt / (M e^(u0/M) (e^((dt+w)/M) - 1)) / (1 + (q+d)/M), in the limit dt/(dt+w) without a failure;
    times 1 / (1 + (w+u0+q)/P) if there is a planned interruption every P.
    """
    if measured.interval is None or measured.stall is None:
        return None
    dt, w = measured.interval.total_seconds(), measured.stall.total_seconds()
    if dt <= 0:
        return None
    u0 = 0.0 if measured.restart is None else measured.restart.total_seconds()
    q = 0.0 if measured.queue is None else measured.queue.total_seconds()
    d = 0.0 if measured.detection is None else measured.detection.total_seconds()
    share = dt / (dt + w)
    if measured.mtbf is not None:
        share = _with_failures(dt, w, u0, waits=q + d, m=measured.mtbf.total_seconds())
    if measured.between_planned:
        share /= 1 + (w + u0 + q) / measured.between_planned.total_seconds()
    return share


def _with_failures(dt: float, w: float, u0: float, *, waits: float, m: float) -> float:
    """Return the model's share; 0 if failures come too fast for any interval to finish."""
    try:
        return dt / (m * math.exp(u0 / m) * math.expm1((dt + w) / m)) / (1 + waits / m)
    except (OverflowError, ZeroDivisionError):
        return 0.0
