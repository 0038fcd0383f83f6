"""What a sampler asks of a vendor's library, whichever it is.

A backend is used by one thread at a time. None of its methods raises because of a GPU or a driver:
what is wrong with them is part of what they return.
"""

from __future__ import annotations

from typing import Protocol

from hpckit.model.telemetry.vocabulary import GpuDevice, GpuSample, TelemetryEvent


class GpuBackend(Protocol):
    """The GPUs of a node through one library. Made by an `open_…` function, closed once."""

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the GPUs as last found: after a `driver_reloaded` they may differ."""

    def sample(self, *, counters: bool) -> tuple[GpuSample, ...]:
        """Return a sample of each GPU that answers, or has a trouble; counters only if asked."""

    def events(self) -> tuple[TelemetryEvent, ...]:
        """Return what happened since the last call, the oldest first."""

    def close(self) -> None:
        """Let go of the library."""
