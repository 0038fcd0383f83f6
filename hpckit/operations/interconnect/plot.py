"""Draws bus bandwidth and time over size into one file."""

from __future__ import annotations

from pathlib import Path

from hpckit.model.interconnect.measurement import InterconnectMeasurement, OperationTimes
from hpckit.operations.export.figure import FigureLook, drawn
from hpckit.operations.output_file import FIGURE, check_output_file, write_output_file
from hpckit.operations.plot import form_of
from hpckit.planning.interconnect.fit import bus_bandwidth
from hpckit.report.document.figure import XY, CurveFigure, FigureLine, FigurePanel
from hpckit.report.document.run_clock import CurveAxis

_GIGA = 1e9
_MICRO = 1e-6


def check_plot(target: Path) -> None:
    """Raise UsageError unless `target` may become a figure: before anything is launched."""
    form_of(target)
    check_output_file(target, FIGURE)


def write_bench_plot(measured: InterconnectMeasurement, target: Path) -> None:
    """Write the figure; raises UsageError without matplotlib."""
    look = FigureLook(form=form_of(target), log=True, log_x=True)
    write_output_file(target, (drawn(bench_figure(measured), look),), FIGURE)


def bench_figure(measured: InterconnectMeasurement) -> CurveFigure:
    """Return two panels over the size in bytes: GB/s of the bus, and microseconds."""
    shown = [one for one in measured.operations if one.times]

    def lines(panel: str) -> tuple[FigureLine, ...]:
        return tuple(
            FigureLine(name=one.operation.value, colour=place, live=_points(one, panel, measured))
            for place, one in enumerate(shown)
        )

    names = ("bus bandwidth (GB/s)", "time (us)")
    return CurveFigure(
        panels=tuple(FigurePanel(metric=name, lines=lines(name)) for name in names),
        axis=CurveAxis.step,
        named_x="size (bytes)",
    )


def _points(one: OperationTimes, panel: str, measured: InterconnectMeasurement) -> XY:
    sizes = tuple(float(each.size) for each in one.times)
    if panel.startswith("time"):
        return sizes, tuple(each.seconds / _MICRO for each in one.times)
    return sizes, tuple(
        bus_bandwidth(one.operation, measured.ranks, each.size, each.seconds) / _GIGA
        for each in one.times
    )
