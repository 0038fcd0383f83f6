"""The wall clock: what events are stamped with. It must not be used to measure durations."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)
