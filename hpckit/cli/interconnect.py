"""`hpckit bench comm`: launches, judges, prints and draws; imports Hydra."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.cli.compose_options import compose_request, recorded_words
from hpckit.cli.launch_output import say_checked
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.features.reporting.drawing import FigureLook, drawn, form_of
from hpckit.features.reporting.figure import XY, CurveAxis, CurveFigure, FigureLine, FigurePanel
from hpckit.model.interconnect.measurement import (
    InterconnectMeasurement,
    OperationTimes,
    SearchMode,
)
from hpckit.operations import check
from hpckit.operations.environment.look import output_override
from hpckit.operations.interconnect.bench import prepare_bench, run_bench
from hpckit.operations.output_file import FIGURE, check_output_file, write_output_file
from hpckit.planning.interconnect.fit import bus_bandwidth
from hpckit.planning.interconnect.request import (
    SMALLEST,
    CommBenchRequest,
    read_operations,
    read_sizes,
    read_time,
)
from hpckit.report.interconnect import interconnect_document, interconnect_page

_REFUSED = 2


def show_bench(arguments: argparse.Namespace, context: Context) -> int:
    """Measure, judge and print; returns 1 with an error among the findings, else 0."""
    asked = _asked(arguments)
    target = None if arguments.to is None else context.cwd / Path(arguments.to).expanduser()
    if target is not None:
        check_plot(target)
    chosen = arguments.output_dir
    more = () if chosen is None else (output_override(context.cwd / Path(chosen).expanduser()),)
    request = compose_request(arguments, context, more=more)
    words = recorded_words(arguments, context)
    prepared = prepare_bench(request, asked, words, context, quiet=arguments.json)
    if not say_checked(check.check_launch(prepared, context), context, may_insist=False):
        return _REFUSED
    done = run_bench(prepared, context)
    if arguments.json:
        context.say_json(interconnect_document(done.measured, done.shape, done.verdict))
    else:
        show_page(interconnect_page(done.measured, done.verdict), context)
    if target is not None:
        write_bench_plot(done.measured, target)
        context.note(f"drew bandwidth and time to {target}")
    return int(any(one.is_error for one in done.verdict.findings))


def _asked(arguments: argparse.Namespace) -> CommBenchRequest:
    smallest, largest = (SMALLEST, None) if arguments.sizes is None else read_sizes(arguments.sizes)
    return CommBenchRequest(
        operations=read_operations(arguments.ops),
        smallest=smallest,
        largest=largest,
        time_s=read_time(arguments.time_s),
        search=SearchMode(arguments.find_slow),
    )


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
