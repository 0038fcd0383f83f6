"""Draws a figure of curves as PDF, SVG or PNG: matplotlib's only home.

Nothing of the user's own settings of matplotlib counts, no window is opened, and the same figure is
the same bytes whenever it is drawn.
"""

from __future__ import annotations

import importlib
import io
import logging
from enum import StrEnum
from pathlib import Path
from typing import Any

from hpckit.errors import UsageError, import_optional
from hpckit.features.reporting.figure import CurveAxis, CurveFigure, FigureLine, FigurePanel
from hpckit.features.reporting.page_parts import COLOURS
from hpckit.report.escape import escape_table_cell, shorten_text
from hpckit.values import dataclass

_MOST_NAME = 60
_BAND_COLOUR = "#7f7f7f"
_TRIANGLE = 7.0
"""The size of a restart's mark in points, on paper: it has to stand out from a noisy curve."""


class FigureStyle(StrEnum):
    """How large a figure and its letters are: a column of a paper, or a slide."""

    paper = "paper"
    slides = "slides"


class FigureForm(StrEnum):
    """The forms of a figure, by the suffix of its file."""

    pdf = "pdf"
    svg = "svg"
    png = "png"


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLook:
    """The size in inches (None: that of the style), and which axes are logarithmic."""

    form: FigureForm
    style: FigureStyle = FigureStyle.paper
    width: float | None = None
    height: float | None = None
    log: bool = False
    log_x: bool = False


def parse_figure_file_format(target: Path) -> FigureForm:
    """Return the form that a file's name asks for; raises UsageError."""
    suffix = target.suffix.lower().removeprefix(".")
    if suffix not in set(FigureForm):
        raise UsageError(
            f"-o {target.name}: the name of a figure must end with "
            f"{', '.join(f'.{form}' for form in FigureForm)}",
            hint=f"-o {target.stem or 'figure'}.pdf",
        )
    return FigureForm(suffix)


_SIZES = {FigureStyle.paper: (5.5, 3.2), FigureStyle.slides: (10.0, 5.6)}
_LETTERS = {FigureStyle.paper: 8.0, FigureStyle.slides: 15.0}
_WIDTHS = {FigureStyle.paper: 1.0, FigureStyle.slides: 2.0}
_DPI = 200
SETTINGS = {
    "pdf.fonttype": 42,  # TrueType, embedded: what publishers ask for, and what can be searched
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "hpckit",
    "text.parse_math": False,  # names are the user's, and `$` is a letter in them
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_METADATA: dict[FigureForm, dict[str, Any]] = {
    FigureForm.pdf: {"CreationDate": None, "ModDate": None, "Creator": "hpckit"},
    FigureForm.svg: {"Date": None, "Creator": "hpckit"},
    FigureForm.png: {"Software": "hpckit"},
}


def draw_figure(figure: CurveFigure, look: FigureLook) -> bytes:
    """Return the file of a figure; raises UsageError without matplotlib."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # of fonts, and of their cache
    matplotlib, figures = (
        import_optional(module, "a figure", "pip install '.[plot]' in hpckit's checkout")
        for module in ("matplotlib", "matplotlib.figure")
    )
    letters = _LETTERS[look.style]
    settings = {**SETTINGS, "font.size": letters, "legend.fontsize": letters * 0.85}
    file = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        width, height = _SIZES[look.style]
        height = look.height or height * (1 + 0.7 * (len(figure.panels) - 1))
        made = figures.Figure(figsize=(look.width or width, height), layout="constrained")
        axes = made.subplots(len(figure.panels), 1, sharex=True, squeeze=False)
        for panel, (place,) in zip(figure.panels, axes, strict=True):
            _draw_panel(place, panel, look)
        axes[-1][0].set_xlabel(figure.x_label)
        if look.log_x:
            axes[-1][0].set_xscale("log")
            _label_ticks_plainly(axes[-1][0].xaxis)
        if figure.axis is not CurveAxis.step:
            axes[-1][0].set_xlim(left=0)
        _add_legend(made, axes[0][0], figure)
        made.savefig(file, format=look.form.value, metadata=_METADATA[look.form], dpi=_DPI)
    return file.getvalue()


def _draw_panel(axes: Any, panel: FigurePanel, look: FigureLook) -> None:
    width = _WIDTHS[look.style]
    if (band := panel.band) is not None:
        shade = {"color": _BAND_COLOUR, "alpha": 0.25, "linewidth": 0}
        axes.fill_between(band.steps, band.low, band.high, **shade)
        axes.plot(band.steps, band.middle, color=_BAND_COLOUR, linewidth=width)
    for line in panel.lines:
        _draw_line(axes, line, width)
    if look.log:
        axes.set_yscale("log", nonpositive="mask")
        _label_ticks_plainly(axes.yaxis)
    axes.set_ylabel(_shorten_name(panel.metric))
    axes.margins(x=0.01)


def _label_ticks_plainly(axis: Any) -> None:
    """Have the ticks of a logarithmic axis say `0.5` and `1e-05`: mathematics is not parsed."""
    ticker = importlib.import_module("matplotlib.ticker")
    chosen = ticker.LogFormatter()
    chosen.set_axis(axis)

    def text(value: float, _: object = None) -> str:
        chosen.set_locs()
        return f"{value:g}" if chosen(value) else ""

    axis.set_major_formatter(ticker.FuncFormatter(text))
    axis.set_minor_formatter(ticker.FuncFormatter(text))


def _draw_line(axes: Any, one: FigureLine, width: float) -> None:
    colour = COLOURS[one.colour % len(COLOURS)]
    for x, values in one.undone:
        axes.plot(x, values, color=colour, linewidth=0.8 * width, linestyle=":", alpha=0.6)
    mark = "o" if len(one.live[0]) == 1 else None
    axes.plot(*one.live, color=colour, linewidth=1.2 * width, marker=mark, markersize=3 * width)
    axes.plot(
        *one.restarts,
        color=colour,
        linestyle="none",
        marker="v",
        markersize=_TRIANGLE * width,
        markeredgecolor="white",
        markeredgewidth=0.6 * width,
        zorder=3,
    )


def _add_legend(made: Any, axes: Any, figure: CurveFigure) -> None:
    """Add a legend below the figure, unless there is one line without restarts."""
    entries: list[tuple[str, dict[str, Any]]] = [
        (_shorten_name(name), {"color": COLOURS[colour % len(COLOURS)]})
        for name, colour in figure.legend_entries
    ]
    lines = [line for panel in figure.panels for line in panel.lines]
    bands = [panel.band for panel in figure.panels if panel.band is not None]
    if bands:
        entries.append((f"{bands[0].runs} other runs: median, 4/5", {"color": _BAND_COLOUR}))
    if any(line.undone for line in lines):
        entries.append(("undone by a restart", {"color": "#444444", "linestyle": ":"}))
    if any(line.restarts[0] for line in lines):
        entries.append(("restart", {"color": "#444444", "linestyle": "none", "marker": "v"}))
    if len(entries) < 2:  # noqa: PLR2004  # one line needs no name
        return
    handles = [axes.plot([], [], label=name, **given)[0] for name, given in entries]
    longest = max(len(name) for name, _ in entries)
    columns = max(1, min(len(entries), 75 // (longest + 6)))
    made.legend(handles=handles, loc="outside lower center", ncols=columns)


def _shorten_name(name: str) -> str:
    """Return a user's text on one line, as it can be drawn."""
    return shorten_text(escape_table_cell(name), _MOST_NAME)
