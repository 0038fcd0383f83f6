"""Promises of how a round goes: what happens, in a table, and what is done about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from round_scene import AT, Scene, ended, failed, lost, notes_of, orders_of, step

from hpckit.model import events, messages
from hpckit.model.failure import Cause, ExitReason, RankStack, StalledRank, ToldBy
from hpckit.model.launch import Recovery
from hpckit.model.messages import Notice, SaveStacks, StopRound
from hpckit.model.states import RunState
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import EndAttempt
from hpckit.planning.rounds.round_state import Phase
from hpckit.planning.rounds.round_turns import Heard, Send, Turn
from hpckit.values import replace

Turns: TypeAlias = Sequence[Heard | Turn]
Kinds: TypeAlias = Sequence[type[messages.Message]]
HUNG = Heard(2, messages.Hung(round=3, stall=StalledRank(rank=4, step=5, silent_s=33.0, limit_s=30.0)))
CUT_OFF = {"exception": "DistBackendError", "message": "Connection reset by peer"}
TIMED_OUT = {"exception": "RuntimeError", "message": "gloo: Timed out waiting 1800000ms"}
KILLED: dict[str, Any] = {"code": -9, "signal": "SIGKILL", "reason": ExitReason.killed}
LEFT: dict[str, Any] = {"code": 0, "reason": ExitReason.left}
SAVED = [Heard(sender, messages.StacksSaved(round=3)) for sender in (0, 4, 2)]


@pytest.fixture
def scene() -> Scene:
    """Return a round whose ranks have just been started."""
    return Scene().start()


def test_ranks_start_when_the_first_node_has_reserved_a_port() -> None:
    """Every member gets its order, with the port; any other node's word changes nothing."""
    scene = Scene()
    assert scene.take(Turn.begin) == [Send(messages.ReservePort(), to=0)]
    assert scene.take(Heard(0, messages.Beat()), Turn.time) == []
    begun, *sent = scene.take(Heard(0, messages.PortReserved(port=4711)))
    assert isinstance(begun, events.RoundStarted)
    assert (begun.round, begun.world_size, begun.nodes) == (3, 6, ("n1", "n5", "n3"))
    assert [one.to for one in sent if isinstance(one, Send)] == [0, 4, 2]
    orders = [one.message for one in sent if isinstance(one, Send)]
    assert all(isinstance(order, messages.StartRound) for order in orders)
    assert {order.master_port for order in orders if isinstance(order, messages.StartRound)} == {4711}
    assert scene.state.phase.name == "watching"


@pytest.mark.parametrize("turns", [[lost(4)], [Turn.notice], []], ids=["loss", "notice", "silence"])
def test_round_whose_first_node_does_not_answer_is_over(turns: Turns) -> None:
    """No rank is started after that."""
    scene = Scene()
    scene.take(Turn.begin, *turns)
    scene.pass_time()
    assert scene.state.phase.name == "over"
    assert scene.take(Heard(0, messages.PortReserved(port=4711))) == []
    assert scene.recorded() == []


def test_rank_0_tells_where_the_store_listens(scene: Scene) -> None:
    """All agents hear of it, with the address by which they reach its node."""
    (sent,) = scene.take(Heard(0, messages.StoreBound(port=5)))
    assert sent == Send(messages.StoreAddress(host="10.0.0.0", port=5))


P = Phase
ALL, NEVER = range(6), math.inf
STOP: Kinds = [StopRound]
STACKS_FIRST: Kinds = [SaveStacks, StopRound]
ENDS: dict[str, tuple[Turns, Kinds, Phase, float]] = {
    "all return": (ended(*ALL), [], P.over, NEVER),
    "all leave unasked": (ended(*ALL, **LEFT), [], P.awaiting_notice, 1),
    "all leave as asked": ([Turn.leave, *ended(*ALL, **LEFT)], [Notice], P.over, NEVER),
    "asked twice": ([Turn.leave, Turn.leave], [Notice], P.watching, NEVER),
    "one raises": (failed(2), STOP, P.stopping, 2 + 5),
    "all raise": (failed(*ALL), STOP, P.over, NEVER),
    "one is killed": ([*ended(3, **KILLED), *failed(0, 1, 2, 4, 5)], STOP, P.awaiting_notice, 1),
    "a node is lost": ([lost(2)], STOP, P.stopping, 2 + 5),
    "a node is lost, others end": ([lost(2), *failed(0, 1, 2, 3)], STOP, P.over, NEVER),
    "connections break": (failed(*ALL, **CUT_OFF), STOP, P.awaiting_loss, 30 + 2),
    "then a node is lost": ([*failed(*ALL, **CUT_OFF), lost(4)], STOP, P.over, NEVER),
    "then a notice comes": ([*failed(*ALL, **CUT_OFF), Turn.notice], STOP, P.over, NEVER),
    "one hangs": ([HUNG], [SaveStacks], P.saving_stacks, 7),
    "one hangs, stacks are saved": ([HUNG, *SAVED], STACKS_FIRST, P.stopping, 2 + 5),
    "one hangs, a node is lost": ([HUNG, lost(4), *SAVED[::2]], STACKS_FIRST, P.stopping, 2 + 5),
    "a collective times out": (failed(1, **TIMED_OUT), [SaveStacks], P.saving_stacks, 3),
    "one hangs, then a notice": ([step(1), HUNG, Turn.notice, *SAVED], STACKS_FIRST, P.stopping, 7),
    "a notice before the first step": ([Turn.notice], STOP, P.stopping, 20 + 5),
    "a notice": ([step(1), Turn.notice], [Notice], P.leaving, 50),
    "a notice, all leave": ([step(1), Turn.notice, *ended(*ALL, **LEFT)], [Notice], P.over, NEVER),
    "a notice, one raises": ([step(1), Turn.notice, *failed(0)], [Notice, *STOP], P.stopping, 7),
    "a second notice": ([step(1), Turn.notice, Turn.notice], [Notice], P.leaving, 50),
}  # fmt: skip


@pytest.mark.parametrize(("turns", "orders", "phase", "left_s"), ENDS.values(), ids=ENDS)
def test_what_ends_a_round_says_how_it_ends(
    scene: Scene, turns: Turns, orders: Kinds, phase: Phase, left_s: float
) -> None:
    """What all agents are told, and which phase follows, for so many seconds at most."""
    found = scene.take(*turns)
    assert orders_of(found) == list(orders)
    assert (scene.state.phase, scene.state.until - scene.clock) == (phase, left_s)


@pytest.mark.parametrize(
    ("turns", "phases"),
    [
        ([HUNG], ["saving_stacks", "stopping", "over"]),
        ([step(1), Turn.notice], ["leaving", "stopping", "over"]),
        (failed(1, **TIMED_OUT), ["saving_stacks", "stopping", "awaiting_loss", "over"]),
        (failed(2), ["stopping", "over"]),
        (ended(2, **KILLED), ["stopping", "awaiting_notice", "over"]),
    ],
    ids=["hang", "notice", "time-out", "failure", "kill"],
)
def test_round_ends_though_nobody_answers(scene: Scene, turns: Turns, phases: list[str]) -> None:
    """Each phase has its time, and the last message to all agents is to end their ranks."""
    scene.take(*turns)
    met = [scene.state.phase.name]
    while scene.state.phase is not Phase.over:
        scene.pass_time()
        met.append(scene.state.phase.name)
    assert met == phases
    assert orders_of(scene.found)[-1] is StopRound


def grace_of(scene: Scene) -> float:
    """Return the grace period that ranks were given."""
    sent = [one.message for one in scene.found if isinstance(one, Send)]
    (grace_s,) = [one.grace_s for one in sent if isinstance(one, StopRound)]
    return grace_s


def test_peers_of_a_failed_rank_get_less_time_to_end(scene: Scene) -> None:
    """They wait in a collective; ranks that are only asked to stop may be saving."""
    other = Scene().start()
    scene.take(*failed(0))
    other.take(Turn.notice)
    assert (grace_of(scene), grace_of(other)) == (2, 20)


def test_records_are_taken_in_for_as_long_as_they_come(scene: Scene) -> None:
    """Unread is not silent, but a message that is no record is no reason to wait for long."""
    scene.take(*failed(0), at_s=10)
    scene.take(*ended(1, stopped=True), at_s=15)
    assert scene.state.until == scene.clock + 5
    scene.take(Heard(4, messages.Beat()), Turn.notice, at_s=16)
    assert scene.state.until == scene.clock + 4
    scene.take(Heard(4, messages.Beat()), at_s=30)
    assert scene.state.phase.name == "stopping", "it was read only now"
    assert scene.state.until == pytest.approx(scene.clock + 0.2)
    scene.take(*ended(2, stopped=True), at_s=10 + 2 + 5 + 60)
    assert scene.state.phase.name == "over", "but not for ever"


def test_lost_node_owes_no_records(scene: Scene) -> None:
    """Nor does it owe stacks; the round is over when the others have ended."""
    scene.take(lost(4), *ended(0, 1, 4, stopped=True))
    assert scene.state.phase.name == "stopping"
    scene.take(*ended(5, stopped=True))
    assert scene.state.phase.name == "over"


def test_last_step_is_noted_when_the_round_is_over(scene: Scene) -> None:
    """A step that ranks left without finishing it does not count."""
    scene.take(step(6, total=None))
    found = scene.take(*ended(*range(6), step=5, total=9))
    assert notes_of(found)[-1] == (5, True)
    assert scene.view().step == 5


def test_rank_that_ended_in_its_first_step_has_begun_it(scene: Scene) -> None:
    """Its agent may hear of the step too late. One that returned may mean an earlier round's."""
    scene.take(*failed(0, step=4))
    other = Scene().start()
    other.take(*ended(0, step=4, total=5))
    assert (scene.state.first_step, other.state.first_step) == (4, None)
    assert (scene.state.step, other.state.step) == (4, 4)


def test_steps_of_nodes_count_while_ranks_step(scene: Scene) -> None:
    """Those of spare nodes, of another round, and of ranks that leave say nothing of stragglers."""
    told = messages.NodeSteps(
        round=3, rank=(0,), first_step=(0,), steps=(1,), seconds=(1.0,), own_s=(1.0,), gpu=(None,)
    )
    assert scene.take(Heard(4, told)) == []
    scene.take(step(1))
    assert scene.take(Heard(4, told)) == [Heard(4, told)]
    assert scene.take(Heard(7, told), Heard(4, replace(told, round=2))) == []
    scene.take(Turn.notice)
    assert scene.take(Heard(4, told)) == []


def test_stacks_that_a_user_asked_for_are_not_those_of_a_hang(scene: Scene) -> None:
    """They are passed on, and change nothing."""
    stack = RankStack(rank=1, node="n1", state="S", step=1, text="x")
    told = [
        Heard(0, messages.StackSaved(round=3, stack=stack, request=7)),
        Heard(0, messages.StacksSaved(round=3, request=7)),
    ]
    before = scene.state
    assert scene.take(*told) == told
    assert scene.state == before
    scene.take(HUNG, Heard(0, messages.StackSaved(round=3, stack=stack)))
    assert scene.state.hang.stacks == (stack,)


def test_hang_is_the_cause_whatever_ends_after_it(scene: Scene) -> None:
    """Ranks are killed because of it; how long they stood still is known."""
    scene.take(step(5), HUNG, *SAVED, *ended(*range(6), stopped=True, **KILLED))
    view = scene.view("n1", "n5", "n3")
    assert view.failure is not None
    assert (view.failure.cause, view.failure.step) == (Cause.hang, 5)
    assert view.silent == timedelta(seconds=33)


def test_left_rank_ends_a_run_that_has_no_restart_as_failed(scene: Scene) -> None:
    """Without a budget the end of a run whose rank was told to leave is no success either."""
    told = ended(1, **LEFT, told_by=ToldBy.signal, told_signal="SIGTERM")
    scene.take(step(3), *ended(0, 2, 3, 4, 5, **LEFT, told_by=ToldBy.peer), *told)
    scene.pass_time()
    action = decide_after_round(scene.view("n1", "n5", "n3"), Recovery(), Ledger())
    assert isinstance(action, EndAttempt)
    assert action.state is RunState.failed
    assert action.exit_code != 0
    assert action.failure is not None
    assert (action.failure.cause, action.failure.rank) == (Cause.left, 1)


def test_view_of_a_round_that_trains_names_no_failure(scene: Scene) -> None:
    """A rank may have returned before the others."""
    scene.take(step(5), *ended(0))
    view = scene.view("n1", "n5", "n3")
    assert (view.failure, view.at, len(view.exits)) == (None, AT, 1)
