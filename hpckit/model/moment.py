"""Times as text for people: in the local time zone (`TZ`), with its name. Programs get ISO 8601.

Pure: it reads no clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hpckit.patterns import lazy_pattern

_CLOCK = lazy_pattern(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d\d)\Z")
UNIT_SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
"""Seconds of the units in which times are read and written, the largest first."""


def _to_local_zone(at: datetime) -> datetime:
    """Return a time in the local zone, in UTC if TZ is no zone that Python can use."""
    try:
        return at.astimezone()
    except ValueError:
        return at.astimezone(UTC)


def format_local_datetime(at: datetime) -> str:
    """Return a time with date and seconds: `2026-11-22 19:26:59 CET`."""
    return f"{_to_local_zone(at):%Y-%m-%d %H:%M:%S %Z}"


def format_local_time_to_minute(at: datetime) -> str:
    """Return a recent time to the minute, without the year: `11-22 19:26 CET`."""
    return f"{_to_local_zone(at):%m-%d %H:%M %Z}"


def format_local_time_to_second(at: datetime) -> str:
    """Return a recent time to the second, without the year: `11-22 19:26:59 CET`."""
    return f"{_to_local_zone(at):%m-%d %H:%M:%S %Z}"


def format_local_time_of_day(at: datetime) -> str:
    """Return the time of day: `19:26:59 CET`."""
    return f"{_to_local_zone(at):%H:%M:%S %Z}"


def format_recorded_time(text: str) -> str:
    """Return an ISO 8601 time from a file as text for people; other text is returned unchanged."""
    try:
        return format_local_datetime(datetime.fromisoformat(text))
    except ValueError:
        return text


def format_time_span(span: timedelta) -> str:
    """Return a duration by its two largest units: `2 h 10 min`, `45 s`, `0.4 s`."""
    seconds = round(span.total_seconds())
    if seconds < 1:
        return f"{span.total_seconds():.1f} s"
    units = [*UNIT_SECONDS.items()]
    place = next(place for place, (_, size) in enumerate(units) if seconds >= size)
    words = []
    for name, size in units[place : place + 2]:
        count, seconds = divmod(seconds, size)
        words += [f"{count} {name}"] if count else []
    return " ".join(words)


def format_slurm_duration(span: timedelta | None) -> str:
    """Return a duration as Slurm writes it: `0:05`, `1:02:03`, `3-04:05:06`."""
    if span is None:
        return ""
    minutes, seconds = divmod(int(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def parse_slurm_duration(text: str) -> timedelta | None:
    """Return Slurm's `[[days-]hours:]minutes:seconds` as a duration; None for any other text."""
    match = _CLOCK.match(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
