"""Writes a figure of the curves of runs into one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.operations.export.figure import FigureForm, FigureLook, FigureStyle, drawn
from hpckit.record.store import PRIVATE_FILE, make_folder, write_bytes
from hpckit.report.document.figure import CurveFigure
from hpckit.views.across_launches import named_runs
from hpckit.views.report.plotted import PlotQuestion, curve_figure

_LARGEST_INCHES = 100.0


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
        form=_form(request.target),
        style=request.style,
        width=_checked("--width", request.width),
        height=_checked("--height", request.height),
        log=request.log,
    )
    if request.question.smooth < 1:
        raise UsageError(
            f"--smooth is {request.question.smooth}; it is the number of values to take the mean "
            "of, 1 or more"
        )
    if request.target.is_dir():
        raise UsageError(f"{request.target} is a folder", hint="a figure is a file: name one")
    named = named_runs(request.references, request.base, context)
    figure = curve_figure(named, request.question, context)
    _write(request.target, drawn(figure, look))
    return figure


def _form(target: Path) -> FigureForm:
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


def _write(target: Path, content: bytes) -> None:
    try:
        make_folder(target.parent)
        mode = target.stat().st_mode & 0o777 if target.exists() else PRIVATE_FILE
        write_bytes(target, content, mode=mode)
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written: {error.strerror or error}",
            hint="check the folder, quota and free space",
        ) from error
