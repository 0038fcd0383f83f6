"""`hpckit plot`: curves of runs as a figure for a paper or a slide."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.cli.options import add_fresh, add_output_dir, add_references, output_dir
from hpckit.context import Context
from hpckit.features.reporting.drawing import FigureStyle
from hpckit.features.reporting.figure import CurveAxis
from hpckit.features.reporting.plotted import PlotQuestion
from hpckit.features.reporting.write_plot import PlotRequest, write_plot
from hpckit.model.counted import counted

EPILOG = """\
examples:
  hpckit plot -o loss.pdf   the latest launch: a curve for each run
  hpckit plot digits.3 digits.4 -o both.pdf --metric loss --metric accuracy --smooth 20
  hpckit plot llm -o loss.svg --x wall --log --style slides
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plot`."""
    add_references(parser)
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
        choices=[one.value for one in CurveAxis],
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
        choices=[one.value for one in FigureStyle],
        default=FigureStyle.paper.value,
        help="sizes for a paper (5.5 x 3.2 inches) or for slides (10 x 5.6)",
    )
    parser.add_argument("--width", metavar="INCHES", type=float, help="instead of the style's")
    parser.add_argument("--height", metavar="INCHES", type=float, help="instead of the style's")
    add_fresh(parser)
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Write a figure, and say on standard error where it is; always returns 0."""
    request = PlotRequest(
        references=arguments.references,
        base=output_dir(arguments, context),
        target=context.cwd / Path(arguments.to).expanduser(),
        question=PlotQuestion(
            metrics=tuple(dict.fromkeys(arguments.metric)),
            axis=CurveAxis(arguments.x),
            smooth=arguments.smooth,
            fresh=arguments.fresh,
        ),
        style=FigureStyle(arguments.style),
        width=arguments.width,
        height=arguments.height,
        log=arguments.log,
    )
    figure = write_plot(request, context)
    metrics = ", ".join(panel.metric for panel in figure.panels)
    context.note(f"plotted {metrics} of {counted(len(figure.entries), 'run')} to {request.target}")
    return 0
