"""Numbers and commands as people read and paste them."""

from __future__ import annotations

import subprocess

from hpckit.features.capacity.units import (
    format_days,
    format_days_column,
    format_days_range,
    format_energy,
    format_mass,
    wrap_command,
)


def test_command_is_pasted_as_it_stands() -> None:
    """No line is longer than a terminal is wide, and a shell reads the words that were meant."""
    words = ["hpckit", "launch", "note='two  words'", *(f"key{n}=[{n},2]" for n in range(20))]
    lines = wrap_command(words)
    assert max(map(len, lines)) <= 80
    command = "\n".join(lines)
    printed = subprocess.check_output(["sh", "-c", f"printf '%s\\n' {command}"], text=True)
    assert printed.splitlines() == words


def test_units_are_those_that_people_read() -> None:
    """No exponents, no fractions of an hour, years beside many days, columns of equal digits."""
    assert [format_energy(3.6e6 * kwh) for kwh in (7.2, 720, 7.2e3, 6.36e7, 1e10)] == [
        *("7.2 kWh", "720 kWh", "7.2 MWh", "63.6 GWh", "10 TWh")
    ]
    assert [format_days(days) for days in (0.0201, 0.5, 3.67, 256, 3536)] == [
        *("28.9 minutes", "12 hours", "3.67 days", "256 days", "3,536 days (9.7 years)")
    ]
    assert format_days_range(0.5, 0.75) == "12 to 18 hours"
    assert format_days_range(3000, 4000) == "3,000 to 4,000 days (8.2 to 11.0 years)"
    assert format_days_column([9.5, None, 123.4]) == ["9.50", "", "123.40"]
    assert format_mass(12) == "12 kg"
    assert format_mass(12e3) == "12 t"
