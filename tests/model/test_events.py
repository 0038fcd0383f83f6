"""Promises of hpckit.model.events and hpckit.model.plain."""

from __future__ import annotations

import dataclasses
import json
import types
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.model.events import Event, decode_event, encode_event
from hpckit.model.parallel.layout import Layout, LayoutReport, MeshAxis
from hpckit.model.plain import LARGEST, LONGEST_S

KINDS = sorted({vars(events)[kind.__name__] for kind in Event.__subclasses__()}, key=lambda kind: kind.kind)
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911  # one for each kind of type
    """Return a strategy for a field's type."""
    if isinstance(hint, types.UnionType):
        return st.one_of([values_of(member) for member in get_args(hint)])
    if get_origin(hint) in (tuple, list):
        first, *others = get_args(hint)
        if others in ([], [...]):
            kind = get_origin(hint)
            return st.lists(values_of(first), max_size=3).map(kind)
        return st.tuples(*(values_of(member) for member in (first, *others)))
    if get_origin(hint) is dict:
        return st.dictionaries(st.text(), values_of(get_args(hint)[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return instances_of(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    simple = {
        type(None): st.none(),
        str: st.text(),
        int: st.integers(-LARGEST, LARGEST),
        bool: st.booleans(),
        float: st.floats(-LONGEST_S, LONGEST_S),
        timedelta: st.integers(0, 10**9).map(lambda seconds: timedelta(seconds=seconds)),
        Any: _JSON,
        datetime: st.integers(0, 10**12).map(lambda ms: _EPOCH + timedelta(milliseconds=ms)),
    }
    return simple[hint]


@st.composite
def reports(draw: st.DrawFn) -> LayoutReport:
    """Draw what ranks can have reported: of other numbers there is no report."""
    layout = Layout(**{axis: draw(st.integers(1, 4)) for axis in MeshAxis})
    held = draw(st.integers(0, LARGEST))
    return LayoutReport(layout=layout, parameters=((layout.world_size, held),), model_parameters=held)


def instances_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a dataclass, whatever its fields."""
    if kind is LayoutReport:
        return reports()
    hints = get_type_hints(kind)
    fields = {field.name: values_of(hints[field.name]) for field in dataclasses.fields(kind)}
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@given(data=st.data())
def test_events_of_every_kind_survive_a_round_trip_through_json(
    kind: type[Event], data: st.DataObject
) -> None:
    """What is written as a line is read back as the same event."""
    event = data.draw(instances_of(kind))
    assert decode_event(json.loads(json.dumps(encode_event(event)))) == event


def test_event_kinds_have_distinct_names() -> None:
    """Every kind has a name of its own, the class's in snake case."""
    names = [kind.kind for kind in KINDS]
    assert all(names)
    assert len(set(names)) == len(names)


def test_encode_puts_version_and_kind_first() -> None:
    """A line says at its beginning what it is."""
    event = events.CancelRequested(at=_EPOCH, runs=(1, 2))
    assert list(encode_event(event).items()) == [
        ("v", events.VERSION),
        ("event", "cancel_requested"),
        ("at", "2026-01-01T00:00:00.000+00:00"),
        ("runs", [1, 2]),
    ]


def test_decode_leaves_out_fields_of_a_newer_version() -> None:
    """Fields this version does not know are no obstacle."""
    event = events.NoticeHeard(at=_EPOCH, signal="SIGTERM")
    assert decode_event({**encode_event(event), "moon": "full"}) == event


def test_decode_reads_a_cause_of_a_newer_version_as_unknown() -> None:
    """An end is still read as an end where its cause has a name of a newer version."""
    record = {
        "event": "attempt_ended",
        "at": "2026-01-01T00:00:00+00:00",
        "state": "failed",
        "exit_code": 1,
        "failure": {"cause": "cosmic_ray", "message": "zap"},
    }
    event = decode_event(record)
    assert isinstance(event, events.AttemptEnded)
    assert event.failure is not None
    assert (event.failure.cause.value, event.failure.message) == ("unknown", "zap")


def test_decode_of_an_unknown_kind_is_none() -> None:
    """An event of a newer version is left out."""
    assert decode_event({"event": "moon_phase", "at": "2026-01-01T00:00:00+00:00"}) is None


@given(st.sampled_from([kind.kind for kind in KINDS]), st.dictionaries(st.text(), _JSON))
def test_decode_never_raises_on_a_record_of_another_shape(kind: str, record: dict[str, Any]) -> None:
    """A damaged record is left out, never an error of the reader."""
    assert decode_event({**record, "event": kind}) is None or "at" in record


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@given(data=st.data())
def test_decode_never_raises_on_fields_of_another_type(kind: type[Event], data: st.DataObject) -> None:
    """Any JSON in any field is read or left out."""
    names = [field.name for field in dataclasses.fields(kind)]
    record = {name: data.draw(_JSON) for name in names}
    event = decode_event({**record, "event": kind.kind})
    assert event is None or isinstance(event, kind)
