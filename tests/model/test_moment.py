"""Promises about times in texts: local, with the zone's name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from hpckit.model.moment import (
    format_local_datetime,
    format_local_time_of_day,
    format_local_time_to_minute,
    format_local_time_to_second,
    format_recorded_time,
    format_time_span,
)

WINTER = datetime(2026, 1, 1, 23, 30, 5, tzinfo=UTC)
SUMMER = datetime(2026, 7, 1, 23, 30, 5, tzinfo=UTC)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process be in Berlin."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_moments_are_local_with_their_zone() -> None:
    """The date changes with the zone, and summer time counts."""
    assert format_local_datetime(WINTER) == "2026-01-02 00:30:05 CET"
    assert format_local_datetime(SUMMER) == "2026-07-02 01:30:05 CEST"
    assert (format_local_time_to_minute(WINTER), format_local_time_to_second(WINTER)) == (
        "01-02 00:30 CET",
        "01-02 00:30:05 CET",
    )
    assert format_local_time_of_day(WINTER) == "00:30:05 CET"


@pytest.mark.usefixtures("berlin")
def test_recorded_moments_are_shown_as_others() -> None:
    """What a file has as ISO 8601 is local, too; what is no time stays."""
    assert format_recorded_time("2026-01-01T23:30:05+00:00") == "2026-01-02 00:30:05 CET"
    assert format_recorded_time("?") == "?"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (45.4, "45 s"),
        (59.7, "1 min"),
        (125, "2 min 5 s"),
        (7800, "2 h 10 min"),
        (3600, "1 h"),
        (3605, "1 h"),
        (86400 * 3 + 3600 * 4 + 59, "3 d 4 h"),
    ],
)
def test_span_words_have_two_units(seconds: float, words: str) -> None:
    """More would not be read."""
    assert format_time_span(timedelta(seconds=seconds)) == words


def test_a_zone_that_python_cannot_use_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset of more than a day, in the environment of whoever looks."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC-25:61")
        time.tzset()
        assert format_local_datetime(WINTER) == "2026-01-01 23:30:05 UTC"
    time.tzset()
