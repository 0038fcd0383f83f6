"""Promises of what is known of a round: a fold of messages, without processes, waits or sockets."""

from __future__ import annotations

from datetime import timedelta

import pytest
from round_scene import AT, BEGAN, MEMBERS, Scene, ended, lost, notes_of, step, with_alone

from hpckit.model import events, messages
from hpckit.model.failure import Cause, ExitReason, RankExit
from hpckit.model.parallel.layout import Layout
from hpckit.planning.rounds.rank_exits import TOLD_SINGLY, ByRank, RankExits
from hpckit.planning.rounds.round_turns import Heard, Turn


@pytest.fixture
def scene() -> Scene:
    """Return a round whose ranks have just been started."""
    return Scene().start()


def test_steps_tell_how_far_a_round_came_and_what_is_left(scene: Scene) -> None:
    """The first step is recorded once; a message that comes late takes nothing back."""
    found = scene.take(step(4), step(6), step(5), at_s=7)
    state = scene.state
    assert (state.first_step, state.step, state.remaining_time) == (4, 6, timedelta(seconds=8))
    assert state.start_up == timedelta(seconds=7)
    assert notes_of(found) == [(4, False), (6, False), (6, False)]
    assert scene.recorded() == [events.RoundStarted, events.StepReached]


def test_lost_node_is_named_by_its_place_and_ends_the_round(scene: Scene) -> None:
    """A spare node that is lost matters to nobody; a member's ranks are expected no more."""
    scene.take(lost(7))
    assert (scene.state.is_watching, scene.state.lost) == (True, {})
    scene.take(lost(4), *ended(0, 1, 4, 5), at_s=2)
    assert (scene.state.is_watching, scene.state.is_every_rank_accounted_for) == (False, True)
    assert not scene.state.exits.is_complete
    view = scene.view("n1", "n3")
    assert view.failure is not None
    assert (view.failure.cause, view.failure.node) == (Cause.node_lost, "n5")
    assert view.silent == timedelta(seconds=9)


def test_round_of_which_agents_heard_nothing_was_given_up(scene: Scene) -> None:
    """Then it is the supervisor that was silent, and no node is to blame."""
    scene.take(lost(4, 0.0))
    failure = scene.view(given_up_s=60.0).failure
    assert failure is not None
    assert (failure.cause, failure.node) == (Cause.launcher_lost, None)


def test_what_was_said_in_an_earlier_round_is_not_of_this_one(scene: Scene) -> None:
    """Its ranks' ends may come when the next round has begun."""
    assert scene.take(*ended(0, round_=2, code=1)) == []
    assert len(scene.state.exits) == 0


def test_rank_ends_once(scene: Scene) -> None:
    """A second record of a rank, or one of a rank that the round has not, counts for nothing."""
    scene.take(*ended(0, 1, 2, 3, 4))
    known = scene.state
    stranger = messages.RankEnded(round=3, exit=RankExit(rank=6, node="n1", code=1))
    assert scene.take(*ended(0, 1, code=1), Heard(0, stranger)) == []
    assert scene.state == known


def test_ranks_that_were_asked_to_leave_are_cut_short(scene: Scene) -> None:
    """Whatever ends after that did not end by itself."""
    scene.take(*ended(0))
    assert not scene.view().cut_short
    scene.take(Turn.leave, *ended(1, reason=ExitReason.left))
    assert scene.view().cut_short


def test_layouts_are_reported_when_all_ranks_have_told_theirs(scene: Scene) -> None:
    """Ranks that disagree are told of in a warning."""
    senders = [*MEMBERS, *MEMBERS]
    told = [
        Heard(sender, messages.LayoutTold(round=3, rank=rank, layout=Layout(replicate=6), held=7, whole=7))
        for rank, sender in enumerate(senders)
    ]
    assert scene.take(*told[:-1]) == []
    (report,) = scene.take(told[-1])
    assert isinstance(report, events.LayoutReported)
    assert report.report.parameters == ((6, 7),)
    other = messages.LayoutTold(round=3, rank=5, layout=Layout(shard=6), held=7, whole=7)
    (warning,) = scene.take(Heard(2, other))
    assert isinstance(warning, events.Warned)
    assert "the ranks disagree: rank 5 has the layout shard 6" in warning.message


def exit_of(rank: int, exception: str = "ConnectionError", late_s: float = 1.0) -> RankExit:
    """Return the record of a rank that failed."""
    at = AT + timedelta(seconds=late_s)
    return RankExit(rank=rank, node="n", code=1, exception=exception, at=at)


def test_ends_in_a_large_round_are_told_by_groups_and_the_first_failure_by_itself() -> None:
    """Who failed first has an event of its own, however late it was heard."""
    exits = RankExits(world_size=100)
    for rank in range(99):
        exits = exits.with_exit(exit_of(rank))
    told = exits.with_exit(exit_of(99, "ValueError", late_s=0)).list_unrecorded_exit_events(0, AT)
    singly = [event.exit.rank for event in told if isinstance(event, events.RankExited)]
    groups = [event for event in told if isinstance(event, events.RanksExited)]
    assert singly == [99]
    assert [(group.ranks, group.count, group.exception) for group in groups] == [
        (f"{TOLD_SINGLY}-98", 67, "ConnectionError")
    ]


def test_ends_in_a_small_round_are_told_singly(scene: Scene) -> None:
    """Nothing is summed up of a few ranks."""
    scene.take(*ended(3, 0, 1, 5, 4, 2))
    told = [one.exit.rank for one in scene.found if isinstance(one, events.RankExited)]
    assert told == [3, 0, 1, 5, 4, 2]
    assert events.RanksExited not in scene.recorded()


@pytest.mark.parametrize(
    ("alone_s", "reason", "warnings"),
    [
        ([60.0] * 5 + [61.0], ExitReason.returned, 1),
        ([60.0] * 5 + [0.0], ExitReason.returned, 0),
        ([60.0] * 5 + [12.0], ExitReason.returned, 0),
        ([0.0] * 6, ExitReason.returned, 0),
        ([60.0] * 5 + [61.0], ExitReason.raised, 0),
    ],
)
def test_ranks_that_trained_alone_are_warned_of(
    scene: Scene, alone_s: list[float], reason: ExitReason, warnings: int
) -> None:
    """All of them alone, for about as long, and to a good end; nothing else is sure enough."""
    code = int(reason is ExitReason.raised)
    scene.take(*with_alone(ended(*range(6), code=code, reason=reason), alone_s))
    assert scene.recorded().count(events.Warned) == warnings


def test_values_by_rank_are_never_changed() -> None:
    """A later value replaces one in a copy alone, and the order is that of ranks."""
    first = ByRank[str]().with_value(300, "c").with_value(1, "a")
    second = first.with_value(300, "d").with_value(128, "b")
    assert first.items() == [(1, "a"), (300, "c")]
    assert second.items() == [(1, "a"), (128, "b"), (300, "d")]
    assert (len(first), len(second), 128 in first, 128 in second) == (2, 3, False, True)


def test_start_up_counts_from_the_beginning_of_the_round(scene: Scene) -> None:
    """It is what growing costs."""
    scene.take(step(0), at_s=12.5)
    assert scene.view().ran == timedelta(seconds=12.5)
    assert scene.state.began_at == BEGAN
