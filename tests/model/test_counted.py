"""Promises of numbers as text."""

from __future__ import annotations

import pytest

from hpckit.model.counted import format_byte_size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (1 << 50, "1024.0 TiB")],
)
def test_size_has_the_unit_that_suits_it(size: int, text: str) -> None:
    """Bytes are shown in powers of 1024."""
    assert format_byte_size(size) == text
