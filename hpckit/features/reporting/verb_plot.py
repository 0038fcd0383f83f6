"""`hpckit plot`: curves of runs as a figure for a paper or a slide."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from hpckit.cli.options import (
    add_fresh_option,
    add_launches_or_runs_argument,
    add_output_dir_option,
    choose_output_dir,
)
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.reporting.drawing import FigureLook, FigureStyle, draw_figure, parse_figure_file_format
from hpckit.features.reporting.figure import CurveAxis
from hpckit.features.reporting.plotted import PlotQuestion, build_curve_figure
from hpckit.model.counted import format_count
from hpckit.operations.output_file import FIGURE, check_output_file, write_output_file
from hpckit.views.across_launches import find_named_runs

_LARGEST_INCHES = 100.0
_MOST_SMOOTHED = 1_000_000

EPILOG = """\
examples:
  hpckit plot -o loss.pdf   the latest launch: a curve for each run
  hpckit plot digits.3 digits.4 -o both.pdf --metric loss --metric accuracy --smooth 20
  hpckit plot llm -o loss.svg --x wall --log --style slides
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plot`."""
    add_launches_or_runs_argument(parser)
    parser.add_argument(
        *("-o", "--to"),
        metavar="FILE",
        required=True,
        help="the file to write: .pdf, .svg or .png; an earlier figure is replaced",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        action="append",
        default=[],
        help="what to plot, one panel for each (default: the metric that the report draws first)",
    )
    parser.add_argument(
        "--x",
        choices=[CurveAxi.value for CurveAxi in CurveAxis],
        default=CurveAxis.step.value,
        help="the x axis: steps, wall time since the first attempt, or productive time",
    )
    parser.add_argument(
        "--smooth",
        metavar="N",
        type=int,
        default=1,
        help="plot the mean of each value and the N-1 before it (default: as logged)",
    )
    parser.add_argument("--log", action="store_true", help="values on a logarithmic scale")
    parser.add_argument(
        "--style",
        choices=[style.value for style in FigureStyle],
        default=FigureStyle.paper.value,
        help="sizes for a paper (5.5 x 3.2 inches) or for slides (10 x 5.6)",
    )
    parser.add_argument("--width", metavar="INCHES", type=float, help="instead of the style's")
    parser.add_argument("--height", metavar="INCHES", type=float, help="instead of the style's")
    add_fresh_option(parser)
    add_output_dir_option(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Write a figure, and say on standard error where it is; always returns 0."""
    target = context.cwd / Path(arguments.to).expanduser()
    look = FigureLook(
        form=parse_figure_file_format(target),
        style=FigureStyle(arguments.style),
        width=_check_inches("--width", arguments.width),
        height=_check_inches("--height", arguments.height),
        log=arguments.log,
    )
    if not 1 <= arguments.smooth <= _MOST_SMOOTHED:
        raise UsageError(
            f"--smooth is {arguments.smooth}; it is the number of values to take the mean "
            f"of, from 1 to {_MOST_SMOOTHED}"
        )
    check_output_file(target, FIGURE)
    question = PlotQuestion(
        metrics=tuple(dict.fromkeys(arguments.metric)),
        axis=CurveAxis(arguments.x),
        smooth=arguments.smooth,
        fresh=arguments.fresh,
    )
    named = find_named_runs(arguments.references, choose_output_dir(arguments, context), context)
    figure = build_curve_figure(named, question, context)
    write_output_file(target, (draw_figure(figure, look),), FIGURE)
    metrics = ", ".join(panel.metric for panel in figure.panels)
    context.note(f"plotted {metrics} of {format_count(len(figure.legend_entries), 'run')} to {target}")
    return 0


def _check_inches(option: str, inches: float | None) -> float | None:
    if inches is not None and not (math.isfinite(inches) and 1 <= inches <= _LARGEST_INCHES):
        raise UsageError(f"{option} is {inches:g}; it is in inches, from 1 to {_LARGEST_INCHES:g}")
    return inches
