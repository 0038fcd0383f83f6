"""Numbers of a plan in units that people read, and lines that fit 80 columns. Pure."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence

WIDTH = 80
_LABEL = 10
_J_PER_KWH = 3.6e6
_DAYS_PER_YEAR = 365.25
_MANY_DAYS = 100
_HOURS, _MINUTES = 24, 60


def format_labelled_lines(label: str, *sentences: str) -> list[str]:
    """Return sentences below each other, beside a label in the first ten columns."""
    lines = [line for sentence in sentences for line in _wrap_text(sentence, WIDTH - _LABEL)]
    return [f"{label if not place else '':<{_LABEL}}{line}" for place, line in enumerate(lines)]


def wrap_indented(sentence: str) -> list[str]:
    """Return a sentence two columns from the left."""
    first, *others = _wrap_text(sentence, WIDTH - 4)
    return [f"  {first}", *(f"    {other}" for other in others)]


def _wrap_text(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def wrap_command(words: Sequence[str]) -> list[str]:
    r"""Return a command to paste: over several lines, each but the last with a \ at its end."""
    lines: list[str] = []
    for word in map(shlex.quote, words):
        if lines and len(lines[-1]) + len(word) + 1 <= WIDTH - 2:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{'    ' if lines else '  '}{word}")
    return [*(f"{line} \\" for line in lines[:-1]), *lines[-1:]]


def format_large_number(number: float) -> str:
    """Return a count in thousands, millions, billions or trillions: `8.03 B`."""
    for size, word in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.4g} {word}"
    return f"{number:.0f}"


def format_watts(watts: float) -> str:
    """Return a power in W, kW or MW."""
    for size, unit in ((1e6, "MW"), (1e3, "kW")):
        if watts >= size:
            return f"{watts / size:.3g} {unit}"
    return f"{watts:.0f} W"


def format_energy(joules: float) -> str:
    """Return an energy in kWh, MWh, GWh or TWh."""
    kwh = joules / _J_PER_KWH
    for size, unit in ((1e9, "TWh"), (1e6, "GWh"), (1e3, "MWh")):
        if kwh >= size:
            return f"{_format_three_digits(kwh / size)} {unit}"
    return f"{_format_three_digits(kwh)} kWh"


def format_mass(kg: float) -> str:
    """Return a mass of CO2 in kg or t."""
    tonnes = kg / 1000
    return f"{_format_three_digits(tonnes)} t" if tonnes >= 1 else f"{_format_three_digits(kg)} kg"


def format_days(days: float) -> str:
    """Return a time in minutes, hours or days, and years beside many days."""
    if days >= _DAYS_PER_YEAR:
        return f"{days:,.0f} days ({days / _DAYS_PER_YEAR:,.1f} years)"
    if days >= 1:
        return f"{_format_three_digits(days)} days"
    if days * _HOURS >= 1:
        return f"{_format_three_digits(days * _HOURS)} hours"
    return f"{_format_three_digits(days * _HOURS * _MINUTES)} minutes"


def format_days_range(low: float, high: float) -> str:
    """Return a range of days, in the unit of its upper end."""
    if high >= _DAYS_PER_YEAR:
        years = f"{low / _DAYS_PER_YEAR:,.1f} to {high / _DAYS_PER_YEAR:,.1f} years"
        return f"{low:,.0f} to {high:,.0f} days ({years})"
    text = format_days(high)
    unit = text.partition(" ")[2]
    per = {"days": 1, "hours": _HOURS, "minutes": _HOURS * _MINUTES}[unit]
    return f"{_format_three_digits(low * per)} to {text}"


def format_days_column(days: Sequence[float | None]) -> list[str]:
    """Return days of a column with the same number of decimals each; empty where unknown."""
    least = min((day for day in days if day is not None), default=0.0)
    decimals = 0 if least >= _MANY_DAYS else 1 if least >= 10 else 2  # noqa: PLR2004
    return ["" if day is None else f"{day:,.{decimals}f}" for day in days]


def format_percent(share: float) -> str:
    """Return a share with one decimal: `46.4 %`."""
    return f"{share:.1%}".replace("%", " %")


def _format_three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"  # noqa: PLR2004
