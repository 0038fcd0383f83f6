"""Drained nodes are recorded once, and again when what follows from them changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from hpckit.model.events import NodeDraining, Warned
from hpckit.model.failure import Cause, Failure
from hpckit.model.states import DrainAction
from hpckit.planning.recovery.boundary import build_drain_action_and_events
from hpckit.planning.recovery.round_view import NewRound, RoundView, Stay

AT = datetime(2026, 1, 2, tzinfo=UTC)
STAY = Stay(because="no spare")
MOVE = NewRound(because=Failure(cause=Cause.drained, message=""), nodes=("n1", "n3"))


def said(action: NewRound | Stay, told: Mapping[str, DrainAction], **draining: str) -> list[tuple[str, str]]:
    """Return what is recorded of which node of n1 and n2; a warning by its words."""
    view = RoundView(round=0, at=AT, exits=(), members=("n1", "n2"), draining=draining)
    return [
        (event.node, event.action) if isinstance(event, NodeDraining) else ("", event.message)
        for event in build_drain_action_and_events(view, action, told)[1]
        if isinstance(event, NodeDraining | Warned)
    ]


def test_drain_is_told_once_and_again_when_it_changes() -> None:
    """A node is news when its drain is, and when something else is done about it."""
    assert said(STAY, {}, n2="fan 3", n4="") == [
        ("n2", "stay"),
        ("", "n2 is being drained (fan 3); the run continues there: no spare"),
    ]
    assert not said(STAY, {"n2": DrainAction.stay}, n2="fan 3")
    assert said(MOVE, {"n2": DrainAction.stay}, n2="") == [("n2", "move")]
    assert not said(MOVE, {"n2": DrainAction.move}, n2="")
