"""The account of a round's exit records."""

from datetime import UTC, datetime, timedelta

import pytest

from hpckit.model import events
from hpckit.model.failure import ExitReason, RankExit
from hpckit.runtime.supervisor.round_state import TOLD_SINGLY, RankExits

AT = datetime(2026, 1, 2, tzinfo=UTC)


def exit_of(rank: int, exception: str = "ConnectionError", late_s: float = 1.0) -> RankExit:
    """Return the record of a rank that failed."""
    at = AT + timedelta(seconds=late_s)
    return RankExit(rank=rank, node="n", code=1, exception=exception, at=at)


@pytest.fixture
def told() -> list[events.Event]:
    """Return the events that were recorded."""
    return []


@pytest.fixture
def exits(told: list[events.Event]) -> RankExits:
    """Return the account of a hundred ranks on nodes of ten."""
    return RankExits(round=0, world_size=100, tasks_per_node=10, record=told.append)


def test_exits_of_a_large_round_are_told_by_groups_and_the_first_failure_by_itself(
    exits: RankExits, told: list[events.Event]
) -> None:
    """Who failed first has an event of its own, however late it was heard."""
    for rank in range(99):
        exits.take(exit_of(rank))
    exits.take(exit_of(99, "ValueError", late_s=0))
    exits.settle()
    singly = [event.exit.rank for event in told if isinstance(event, events.RankExited)]
    groups = [event for event in told if isinstance(event, events.RanksExited)]
    assert singly == [*range(TOLD_SINGLY), 99]
    assert [(one.ranks, one.count, one.exception) for one in groups] == [
        ("32-98", 67, "ConnectionError")
    ]


def test_exits_of_a_small_round_are_told_singly(exits: RankExits, told: list[events.Event]) -> None:
    """Nothing is summed up of a few ranks."""
    for rank in range(TOLD_SINGLY):
        exits.take(exit_of(rank))
    exits.settle()
    assert [type(event) for event in told] == [events.RankExited] * TOLD_SINGLY


def test_exits_are_accounted_for_where_the_others_were_lost_with_their_nodes(
    exits: RankExits,
) -> None:
    """A lost node owes no records, but its ranks have not ended either."""
    for rank in range(90):
        exits.take(exit_of(rank))
    before = exits.accounted
    exits.lose(9)
    assert (before, exits.accounted) == (False, True)
    assert not exits.complete
    assert exits.missing() == list(range(90, 100))


@pytest.mark.parametrize(
    ("alone_s", "code", "warnings"),
    [
        ([60.0, 61.0], 0, 1),
        ([60.0, 0.0], 0, 0),
        ([60.0, 12.0], 0, 0),
        ([0.0, 0.0], 0, 0),
        ([60.0, 61.0], 1, 0),
    ],
)
def test_ranks_that_trained_alone_are_warned_of(
    told: list[events.Event], alone_s: list[float], code: int, warnings: int
) -> None:
    """All of them alone, for about as long, and to a good end; nothing else is sure enough."""
    exits = RankExits(round=0, world_size=2, tasks_per_node=1, record=told.append)
    for rank, seconds in enumerate(alone_s):
        reason = ExitReason.raised if code else ExitReason.returned
        exits.take(RankExit(rank=rank, node="n", code=code, reason=reason, at=AT), seconds)
    exits.settle()
    assert [type(event) for event in told[2:]] == [events.Warned] * warnings
