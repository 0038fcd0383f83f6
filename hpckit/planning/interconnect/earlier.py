"""A measurement compared with earlier ones of the same shape. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hpckit.model.interconnect.kept import KeptMeasurement, MeasuredShape
from hpckit.model.interconnect.measurement import InterconnectMeasurement
from hpckit.model.interconnect.operation import CommOperation
from hpckit.planning.interconnect.bandwidth import best_bus_bandwidth, is_enough

FEWEST_EARLIER = 3
"""With fewer, one disturbed measurement is the median, or half of it."""
SLOWER = 0.8
"""A measurement that reaches less of the median than this is told. Our judgement: jobs that share
a network change it by a tenth from day to day."""


def shape_of(measured: InterconnectMeasurement, cluster: str) -> MeasuredShape:
    """Return the shape of a measurement on the cluster of this name."""
    names = sorted({gpu.name for node in measured.links for gpu in node.gpus or ()})
    return MeasuredShape(
        cluster=cluster,
        nodes=measured.nodes,
        ranks=measured.ranks,
        device=measured.device,
        backend=measured.backend,
        gpu=", ".join(names),
    )


def kept_of(measured: InterconnectMeasurement, cluster: str) -> KeptMeasurement:
    """Return what later measurements are compared with: what was measured enough."""
    reached = {
        one.operation.value: best_bus_bandwidth(one.operation, measured.ranks, one.times)
        for one in measured.operations
        if is_enough(one) and not one.wrong_ranks
    }
    return KeptMeasurement(
        at=measured.at.isoformat(),
        shape=shape_of(measured, cluster),
        bus_bytes_per_s={name: rate for name, rate in reached.items() if rate is not None},
    )


def usual_rate(
    operation: CommOperation, shape: MeasuredShape, earlier: Sequence[KeptMeasurement]
) -> tuple[float | None, int]:
    """Return the median bytes per second of earlier measurements of this shape, and their number.

    None if there are fewer than three: nothing may be concluded from them.
    """
    rates = [
        one.bus_bytes_per_s[operation]
        for one in earlier
        if one.shape == shape and one.bus_bytes_per_s.get(operation, 0.0) > 0
    ]
    return (median(rates) if len(rates) >= FEWEST_EARLIER else None), len(rates)
