"""Writes a figure of the curves of runs into one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.reporting.drawing import FigureForm, FigureLook, FigureStyle, drawn
from hpckit.features.reporting.figure import CurveFigure
from hpckit.features.reporting.plotted import PlotQuestion, curve_figure
from hpckit.operations.output_file import FIGURE, check_output_file, write_output_file
from hpckit.values import dataclass
from hpckit.views.across_launches import named_runs

_LARGEST_INCHES = 100.0
_MOST_SMOOTHED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotRequest:
    """What to plot, and the file to write; `target` is absolute, sizes are in inches."""

    references: Sequence[str]
    base: Path
    target: Path
    question: PlotQuestion
    style: FigureStyle = FigureStyle.paper
    width: float | None = None
    height: float | None = None
    log: bool = False


def write_plot(request: PlotRequest, context: Context) -> CurveFigure:
    """Write the figure, and return what it shows; raises UsageError and NotFoundError."""
    look = FigureLook(
        form=form_of(request.target),
        style=request.style,
        width=_checked("--width", request.width),
        height=_checked("--height", request.height),
        log=request.log,
    )
    if not 1 <= request.question.smooth <= _MOST_SMOOTHED:
        raise UsageError(
            f"--smooth is {request.question.smooth}; it is the number of values to take the mean "
            f"of, from 1 to {_MOST_SMOOTHED}"
        )
    check_output_file(request.target, FIGURE)
    named = named_runs(request.references, request.base, context)
    figure = curve_figure(named, request.question, context)
    write_output_file(request.target, (drawn(figure, look),), FIGURE)
    return figure


def form_of(target: Path) -> FigureForm:
    """Return the form that a file's name asks for; raises UsageError."""
    suffix = target.suffix.lower().removeprefix(".")
    if suffix not in set(FigureForm):
        raise UsageError(
            f"-o {target.name}: a figure is a file whose name ends with "
            f"{', '.join(f'.{one}' for one in FigureForm)}",
            hint=f"-o {target.stem or 'figure'}.pdf",
        )
    return FigureForm(suffix)


def _checked(option: str, inches: float | None) -> float | None:
    if inches is not None and not (math.isfinite(inches) and 1 <= inches <= _LARGEST_INCHES):
        raise UsageError(f"{option} is {inches:g}; it is in inches, from 1 to {_LARGEST_INCHES:g}")
    return inches
