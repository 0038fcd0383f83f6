"""Whatever agents say, in whatever order: what is true of every round. No process, no wait."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from round_scene import AT, MEMBERS, NUMBER, Scene, lost

from hpckit.model import events, messages
from hpckit.model.diagnosis.collectives import RankCollectives
from hpckit.model.failure import ExitReason, RankExit, RankStack, StalledRank, StateKept
from hpckit.model.launch import Recovery
from hpckit.model.parallel.layout import Layout
from hpckit.model.profile import RankProfile
from hpckit.model.states import RunState
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger
from hpckit.planning.recovery.round_view import EndAttempt
from hpckit.planning.rounds.round_state import Phase
from hpckit.planning.rounds.round_turns import Heard, Send, Turn, advance_round

SENDERS = st.sampled_from([*MEMBERS, 7])
"""The agents of the round, and that of a spare node."""
ROUNDS = st.sampled_from([NUMBER, NUMBER, NUMBER, NUMBER - 1])
RANKS = st.integers(-1, 6)
"""The ranks of the round, and some that it has not."""
FINE = {ExitReason.returned, ExitReason.ended, ExitReason.pruned}
ENDS: list[dict[str, Any]] = [
    *[{"code": 0, "reason": reason} for reason in (*FINE, ExitReason.left)],
    {"code": 0, "reason": ExitReason.returned, "kept": StateKept.unsaved},
    {"code": 0, "reason": ExitReason.returned, "step": 3, "total": 9},
    {"code": 1, "reason": ExitReason.raised, "exception": "ValueError", "step": 2},
    {"code": 1, "reason": ExitReason.raised, "exception": "DistBackendError"},
    {"code": 1, "reason": ExitReason.raised, "exception": "E", "message": "gloo: timed out"},
    {"code": -9, "reason": ExitReason.killed, "signal": "SIGKILL"},
    {"code": -15, "reason": ExitReason.killed, "signal": "SIGTERM", "stopped": True},
]


def end_of(round_: int, rank: int, how: dict[str, Any]) -> messages.Message:
    """Return a rank's end."""
    return messages.RankEnded(round=round_, exit=RankExit(rank=rank, node="n1", **how))


def layout_of(round_: int, rank: int) -> messages.Message:
    """Return what a rank says of its layout."""
    return messages.LayoutTold(round=round_, rank=rank, layout=Layout(shard=6), held=1, whole=6)


STACK = RankStack(rank=1, node="n1", state="S", step=1, text="x")
HUNG = StalledRank(rank=4, step=5, silent_s=33.0, limit_s=30.0)
STEPS = messages.NodeSteps(
    round=NUMBER, rank=(0,), first_step=(0,), steps=(1,), seconds=(1.0,), own_s=(1.0,), gpu=("",)
)
COLLECTIVES = RankCollectives(rank=1, node="n1")
PROFILED = messages.Profiled(id="x", round=NUMBER, profile=RankProfile(rank=1))
REQUESTS = st.sampled_from([0, 5])
HEARD = st.one_of(
    st.builds(end_of, ROUNDS, RANKS, st.sampled_from(ENDS)),
    st.builds(end_of, st.just(NUMBER), st.integers(0, 5), st.sampled_from(ENDS)),
    st.builds(lambda step: messages.StepBegun(rank=0, step=step, total=9), st.integers(0, 8)),
    st.builds(layout_of, ROUNDS, RANKS),
    st.builds(lambda round_: messages.Hung(round=round_, stall=HUNG), ROUNDS),
    st.builds(lambda r, q: messages.StackSaved(round=r, stack=STACK, request=q), ROUNDS, REQUESTS),
    st.builds(lambda r, q: messages.StacksSaved(round=r, request=q), ROUNDS, REQUESTS),
    st.builds(lambda r: messages.CollectivesTold(round=r, collectives=COLLECTIVES), ROUNDS),
    st.sampled_from(
        [
            messages.PortReserved(port=1),
            messages.StoreBound(port=2),
            messages.Restoring(checkpoint="step-1", others=0),
            messages.Saved(step=1, size=1, stall_s=0.1, duration_s=0.1),
            messages.Warn(message="x"),
            messages.Reported(step=1, value=0.5),
            messages.Beat(),
            messages.Noticed(signal="SIGTERM"),
            messages.Working(over=True),
            PROFILED,
            STEPS,
        ]
    ),
)  # fmt: skip
TURNS = st.one_of(
    st.builds(Heard, SENDERS, HEARD),
    st.builds(lost, SENDERS, st.sampled_from([0.0, 40.0])),
    st.sampled_from([Turn.notice, Turn.leave, Turn.time]),
)
PAUSES = st.sampled_from([0.0, 0.0, 0.0, 0.1, 3.0, 40.0])


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Scene, list[Heard | Turn], list[Phase]]:
    """Return a round that anything has happened to, all that happened, and its phases."""
    scene, happened, phases = Scene(), list[Heard | Turn](), [Phase.starting]
    scene.take(Turn.begin)
    if draw(st.booleans()):
        happened.append(Heard(0, messages.PortReserved(port=1)))
        scene.take(happened[0])
    well = [
        Heard(0, end_of(NUMBER, rank, draw(st.sampled_from(ENDS[:3]))))
        for rank in draw(st.lists(st.integers(0, 5), unique=True))
    ]
    before, later = draw(st.lists(TURNS, max_size=20)), draw(st.lists(TURNS, max_size=20))
    for turn in (*before, *well, *later):
        clock = scene.clock + draw(PAUSES)
        state = scene.state
        scene.take(turn, at_s=clock - scene.state.began_at)
        phases.append(scene.state.phase)
        happened.append(turn)
        assert advance_round(state, turn, clock, AT)[0] == scene.state, "the state before has not changed"
    for _ in Phase:
        if scene.state.is_watching:  # which may last for ever
            scene.take(Turn.notice)
        elif scene.state.phase is not Phase.over:
            scene.pass_time()
        phases.append(scene.state.phase)
    return scene, happened, phases


Played = tuple[Scene, list[Heard | Turn], list[Phase]]


def sent(scene: Scene, kind: type[messages.Message]) -> list[Send]:
    """Return the orders of this kind."""
    return [one for one in scene.found if isinstance(one, Send) and isinstance(one.message, kind)]


@given(rounds())
def test_round_goes_on_to_its_end(played: Played) -> None:
    """No phase comes twice, and the round is over when nothing more is heard."""
    _, _, phases = played
    assert all(before <= later for before, later in pairwise(phases))
    assert phases[-1] is Phase.over


@given(rounds())
def test_ranks_start_once_and_none_is_left_running(played: Played) -> None:
    """Each node starts its ranks once, in this round; all are told to end theirs if any is left."""
    scene, _, _ = played
    orders = sent(scene, messages.StartRound)
    assert [order.to for order in orders] in ([], [*MEMBERS])
    assert {getattr(order.message, "round", None) for order in orders} <= {NUMBER}
    assert scene.recorded().count(events.RoundStarted) == bool(orders)
    stops = sent(scene, messages.StopRound)
    assert len(stops) <= 1
    assert len(sent(scene, messages.SaveStacks)) <= 1
    if orders and not scene.state.exits.is_complete:
        assert stops
    if stops:
        assert scene.found.index(stops[0]) > scene.found.index(orders[-1])


@given(rounds())
def test_round_is_complete_only_if_every_rank_came_to_its_end(played: Played) -> None:
    """No record of another round, and no second one of a rank, makes up for one that lacks."""
    scene, happened, _ = played
    action = decide_after_round(scene.view(*MEMBERS.values()), Recovery(restarts={"node_lost": 9}), Ledger())
    if isinstance(action, EndAttempt) and action.state is RunState.completed:
        fine = {
            turn.message.exit.rank
            for turn in happened
            if isinstance(turn, Heard)
            and isinstance(turn.message, messages.RankEnded)
            and turn.message.round == NUMBER
            and turn.message.exit.reason in FINE
        }
        assert fine >= {*range(6)}
        assert sent(scene, messages.StartRound)


@given(rounds())
def test_every_end_is_recorded_once(played: Played) -> None:
    """Singly or in a group, for each rank whose record was taken in."""
    scene, _, _ = played
    told = [one.exit.rank for one in scene.found if isinstance(one, events.RankExited)]
    assert sorted(told) == [rank for rank in range(6) if rank in scene.state.exits]
    assert events.RanksExited not in scene.recorded(), "there are too few for groups"
