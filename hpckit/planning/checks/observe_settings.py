"""Whether the settings of telemetry are consistent. Pure."""

from __future__ import annotations

from hpckit.errors import ConfigError
from hpckit.model.telemetry.settings import Observe

SHORTEST_INTERVAL_S = 0.5
"""Each sample takes a lock of the driver that training needs, too."""


def check_observe(observe: Observe) -> None:
    """Raise ConfigError for values that cannot be followed."""
    if observe.interval_s and observe.interval_s < SHORTEST_INTERVAL_S:
        raise ConfigError(
            f"observe.interval_s is {observe.interval_s:g}; it has to be at least "
            f"{SHORTEST_INTERVAL_S:g}, or 0",
            hint="observe=deep measures every second, observe=off not at all",
        )
    if observe.row_s < observe.interval_s:
        raise ConfigError(
            f"observe.row_s is {observe.row_s:g}; it has to be at least observe.interval_s, which "
            f"is {observe.interval_s:g}",
            hint="a row holds the samples of that time: observe.row_s=30",
        )
    if observe.max_mb <= 0:
        raise ConfigError(
            f"observe.max_mb is {observe.max_mb:g}; it has to be more than 0",
            hint="observe=off writes no telemetry",
        )
