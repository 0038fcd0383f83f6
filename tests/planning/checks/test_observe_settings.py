"""Promises of planning.checks.observe_settings."""

from __future__ import annotations

import pytest

from hpckit.errors import ConfigError
from hpckit.model.telemetry.settings import Observe
from hpckit.planning.checks.observe_settings import check_observe


@pytest.mark.parametrize(
    "observe",
    [Observe(), Observe(interval_s=0), Observe(interval_s=0.5, row_s=0.5), Observe(max_mb=1)],
)
def test_sensible_settings_are_taken(observe: Observe) -> None:
    """From every half second to not at all."""
    check_observe(observe)


@pytest.mark.parametrize(
    ("observe", "key"),
    [
        (Observe(interval_s=0.1), "observe.interval_s"),
        (Observe(interval_s=-1), "observe.interval_s"),
        (Observe(row_s=2), "observe.row_s"),
        (Observe(max_mb=0), "observe.max_mb"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(observe: Observe, key: str) -> None:
    """The key, its value and what is allowed are named."""
    with pytest.raises(ConfigError, match=key):
        check_observe(observe)
