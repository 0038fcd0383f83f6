"""Promises of format_event: trouble of GPUs is said with its place, and nothing else is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hpckit.model.telemetry.vocabulary import TelemetryEvent, TelemetryEventKind
from hpckit.observe.sampler import format_event_warning

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUIET = {TelemetryEventKind.gpu_back, TelemetryEventKind.driver_reloaded, TelemetryEventKind.gpus_answered}


@pytest.mark.parametrize("kind", TelemetryEventKind)
def test_every_trouble_has_words_with_its_place(kind: TelemetryEventKind) -> None:
    """Whatever is bad names node and GPU; what is over is no warning."""
    event = TelemetryEvent(at=NOW, kind=kind, uuid="GPU-1", code=79, message="look")
    words = format_event_warning(event, "n7")
    assert (words is None) == (kind in QUIET)
    if words is not None:
        assert "n7" in words


def test_xid_is_told_by_number_and_meaning() -> None:
    """A known XID is explained, another one is a number and where to look."""
    known = TelemetryEvent(at=NOW, kind=TelemetryEventKind.xid, uuid="GPU-1", code=79)
    assert format_event_warning(known, "n7") == "GPU-1 on n7: XID 79: the GPU has fallen off the bus"
    other = TelemetryEvent(at=NOW, kind=TelemetryEventKind.xid, code=999)
    assert format_event_warning(other, "n7") == "n7: XID 999: see NVIDIA's list of XID errors"
