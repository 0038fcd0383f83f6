"""The layout of a run in words, as its ranks reported it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.parallel.report import LayoutReport

_UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def layout_lines(report: LayoutReport | None) -> Iterator[str]:
    """Yield the line on a layout: `layout: shard 4; 1.2 M of 4.7 M parameters on each rank`.

    There is none for a single rank, and for runs that never reported.
    """
    if report is None or report.layout.world_size == 1:
        return
    held = held_words(report)
    yield f"layout: {report.layout}" + (f"; {held} on each rank" if held else "")


def held_words(report: LayoutReport) -> str:
    """Return how much of the model each rank holds; empty if no parameters were registered."""
    counts = [held for _, held in report.parameters]
    least, most = amount(min(counts)), amount(max(counts))
    if not report.model_parameters:
        return ""
    held = least if least == most else f"{least} to {most}"
    whole = amount(report.model_parameters)
    return f"{whole} parameters" if held == whole else f"{held} of {whole} parameters"


def amount(count: int) -> str:
    """Return a large number in at most three digits: `1.2 M`, `860`."""
    rounded = float(f"{count:.3g}")
    for unit, letter in _UNITS:
        if rounded >= unit:
            return f"{rounded / unit:.3g} {letter}"
    return str(count)
