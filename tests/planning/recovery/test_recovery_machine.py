"""A run through any sequence of ends, notices, losses, saves and restarts, by the real decisions.

The machine plays the cluster: it says how the ranks of a round ended and what was saved. What
follows is decided by hpckit's own pure functions, over the events that they themselves record:
`decide`, the ledger, the fold of a run's record, and what a resume chooses.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from asked import asking
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hpckit.model import events
from hpckit.model.failure import Cause, ExitReason, Failure, RankExit, StateKept, ToldBy
from hpckit.model.history import LaunchHistory, build_launch_history
from hpckit.model.launch import Recovery
from hpckit.model.plan import JobSpec
from hpckit.model.run import RunRecord, RunView, failure_of_unended_attempt
from hpckit.model.states import RoundAction, RunState
from hpckit.planning.recovery.budget import explain_no_automatic_restart
from hpckit.planning.recovery.decide import decide_after_round
from hpckit.planning.recovery.ledger import Ledger, build_ledger_from_events
from hpckit.planning.recovery.node_choice import RoundSizes, choose_first_round_nodes
from hpckit.planning.recovery.resume import Known, choose_runs_to_resume
from hpckit.planning.recovery.round_view import (
    CheckpointLoad,
    EndAttempt,
    NewRound,
    RoundView,
    StopNotice,
    build_attempt_ended_event,
    build_round_ended_event,
)

TOTAL = 100
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL = tuple(f"n{number}" for number in range(1, 12))
POLICY = Recovery(
    requeue=True,
    restarts={
        "signal": 3,
        "crash": 1,
        "node_lost": 2,
        "hang": 2,
        "left": 1,
        "unsaved": 1,
        "preempted": 50,
        "time_limit": 2,
        "notice": 5,
        "launcher_lost": 2,
    },
)
ASKED = asking(nodes=2, spare_nodes=1)


def job(index: int) -> JobSpec:
    """Return the job that the run is given to for the `index`-th time."""
    return JobSpec(index=index, name=f"j{index}", runs=(0,), resources=ASKED, requeue=True)


class RecoveryMachine(RuleBasedStateMachine):
    """One run of two ranks on two nodes and a spare, from its first attempt to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.at = NOON
        self.launched: list[events.Event] = []
        self.attempts: list[list[events.Event]] = []
        self.alive = self.waits = False
        self.standing: tuple[str, ...] = ()
        self.members: tuple[str, ...] = ()
        self.round = 0
        self.step: int | None = None
        self.saved: list[tuple[int, int]] = []
        self.poisoned: set[int] = set()
        self.loads: dict[int, int] = {}
        self.guilty: set[str] = set()
        self.excluded: tuple[str, ...] = ()
        self.finished = False
        self.failures = self.lefts = 0
        self.furthest = -1
        self.refilled = -1

    # --- what is known, by the real functions -----------------------------------------------

    @property
    def known(self) -> LaunchHistory:
        """What the launch's own events say."""
        return build_launch_history([job(0)], self.launched)

    @property
    def counted(self) -> list[events.Event]:
        """The events that count: of the attempts since somebody last resumed the run by hand."""
        first = self.known.fresh.get(0, 0)
        return [event for told in self.attempts[first:] for event in told]

    @property
    def past(self) -> Ledger:
        """What the next decision knows of earlier failures."""
        return build_ledger_from_events(self.counted)

    @property
    def view(self) -> RunView:
        """The run as every verb sees it, on a machine without Slurm."""
        record = RunRecord(id="x.0", index=0, overrides=(), folder="/x")
        latest = self.attempts[-1] if self.attempts else []
        return RunView(record=record.apply_events(latest), alive=self.alive or self.waits)

    def tick(self) -> datetime:
        """Let a second pass."""
        self.at += timedelta(seconds=1)
        return self.at

    # --- attempts ----------------------------------------------------------------------------

    @initialize()
    def launch(self) -> None:
        """Give the run to its first job."""
        self.launched.append(events.Submitted(at=self.at, job_index=0, job="1"))
        self.waits = True

    @precondition(lambda self: self.waits)
    @rule()
    def begin_attempt(self) -> None:
        """Slurm starts the job, on nodes that it was not asked to leave out."""
        self.waits, self.alive = False, True
        self.standing = tuple(node for node in POOL if node not in self.excluded)[:3]
        self.attempts.append(
            [
                events.AttemptStarted(
                    at=self.tick(),
                    attempt=len(self.attempts) + 1,
                    job="1",
                    restart_count=0,
                    host=self.standing[0],
                    pid=1,
                    started="",
                )
            ]
        )
        self.begin_round(0, choose_first_round_nodes(self.standing, self.past, POLICY, RoundSizes(wanted=2)))

    def begin_round(self, number: int, nodes: tuple[str, ...]) -> None:
        """Start all ranks; they go on from the newest checkpoint that nothing speaks against."""
        self.round, self.members, self.step = number, nodes, None
        started = events.RoundStarted(at=self.tick(), round=number, world_size=2, nodes=nodes)
        self.attempts[-1].append(started)

    # --- what happens in a round ---------------------------------------------------------------

    def resume_at(self) -> int:
        """Return the step of the checkpoint that the next load takes; 0 without one."""
        steps = sorted({step for step, _ in self.saved})
        good = [step for step in steps if self.loads.get(step, 0) < 2]
        return (good or steps or [0])[-1]

    @precondition(lambda self: self.alive)
    @rule(ahead=st.integers(0, 30) | st.just(TOTAL), save=st.booleans())
    def train(self, ahead: int, save: bool) -> None:  # noqa: FBT001  # drawn
        """Do some steps, and perhaps commit a checkpoint behind them."""
        begin = self.resume_at() if self.step is None else self.step
        if self.step is None and begin in self.poisoned:
            return
        if self.step is None:
            self.loads[begin] = 0
            reached = events.StepReached(at=self.tick(), round=self.round, step=begin)
            self.attempts[-1].append(reached)
        self.step = min(begin + ahead, TOTAL - 1)
        self.furthest = max(self.furthest, self.step)
        if save:
            self.commit(self.step)

    def commit(self, step: int) -> None:
        """Commit a checkpoint in the name of the present attempt."""
        self.saved.append((step, len(self.attempts)))
        saved = events.CheckpointSaved(
            at=self.tick(), round=self.round, step=step, size=1, stall_s=0.1, duration_s=0.1
        )
        self.attempts[-1].append(saved)

    def exit(self, rank: int, reason: ExitReason, **about: Any) -> RankExit:
        """Return a rank's exit record; it knows its step and the total."""
        code = {ExitReason.killed: None, ExitReason.left: 75, ExitReason.raised: 1}.get(reason, 0)
        given = {"code": code, "step": self.step, "total": TOTAL, "at": self.at, **about}
        return RankExit(rank=rank, node=self.members[rank], reason=reason, **given)

    def end_round(self, exits: tuple[RankExit, ...] = (), **about: Any) -> None:
        """Let hpckit decide on the ended round, and do as it says."""
        history = self.attempts[-1]
        for one in exits:
            history.append(events.RankExited(at=self.tick(), round=self.round, exit=one))
        ended = RoundView(
            round=self.round,
            at=self.tick(),
            exits=exits,
            attempt=len(self.attempts),
            first_step=self.step,
            step=self.step,
            saved=any(epoch == len(self.attempts) for _, epoch in self.saved),
            members=self.members,
            standing=self.standing,
            wanted=2,
            fewest=2,
            requeues=True,
        )
        ended = replace(ended, **about)
        action = decide_after_round(ended, POLICY, self.past)
        failure = action.because if isinstance(action, NewRound) else action.failure
        history.append(build_round_ended_event(ended, failure, RoundAction.end))
        self.count(failure)
        if isinstance(action, NewRound):
            self.begin_round(self.round + 1, action.nodes)
        else:
            self.end_attempt(action)

    def end_attempt(self, action: EndAttempt) -> None:
        """Record the final event; Slurm starts the run again where that was asked, or preempted."""
        self.attempts[-1].append(build_attempt_ended_event(action, self.tick()))
        assert (action.exit_code == 0) == (action.state is RunState.completed)
        self.alive = False
        self.waits, self.excluded = action.again, action.excluded
        if action.failure is not None and action.failure.cause is Cause.preempted:
            self.waits = action.state is RunState.interrupted

    def count(self, failure: Failure | None) -> None:
        """Count failures since the run last got further, as an outsider would."""
        if self.furthest > self.refilled:
            self.refilled, self.failures, self.lefts = self.furthest, 0, 0
        self.failures += failure is not None
        self.lefts += failure is not None and failure.cause is Cause.left

    def both(self, reason: ExitReason, **about: Any) -> tuple[RankExit, ...]:
        """Return the records of two ranks that ended alike."""
        return tuple(self.exit(rank, reason, **about) for rank in (0, 1))

    @precondition(lambda self: self.alive and self.step == TOTAL - 1)
    @rule(kept=st.sampled_from([StateKept.saved, StateKept.saved, StateKept.unsaved, StateKept.nothing]))
    def return_at_the_end(self, kept: StateKept) -> None:
        """All ranks return behind the last step; the last save may have failed."""
        if kept is StateKept.saved:
            self.commit(TOTAL)
        self.finished = kept is not StateKept.unsaved
        self.end_round(self.both(ExitReason.returned, kept=kept))

    @precondition(lambda self: self.alive and self.step is not None)
    @rule()
    def return_early(self) -> None:
        """All ranks break off their loop, which is their own word."""
        self.commit(self.step or 0)
        self.finished = True
        self.end_round(self.both(ExitReason.returned, kept=StateKept.saved))

    @precondition(lambda self: self.alive and self.step is not None)
    @rule(rank=st.integers(0, 1), save=st.booleans())
    def tell_one_rank_to_leave(self, rank: int, save: bool) -> None:  # noqa: FBT001  # drawn
        """Let a signal reach one rank: all save, where they can, and leave."""
        if save:
            self.commit(self.step or 0)
        kept = StateKept.saved if save else StateKept.unsaved
        exits = list(self.both(ExitReason.left, kept=kept, told_by=ToldBy.peer))
        exits[rank] = replace(exits[rank], told_by=ToldBy.signal, told_signal="SIGUSR1")
        self.end_round(tuple(exits))

    @precondition(lambda self: self.alive)
    @rule(rank=st.integers(0, 1), how=st.sampled_from(["SIGKILL", "SIGSEGV", "exit", "raise"]))
    def break_one_rank(self, rank: int, how: str) -> None:
        """One rank dies, vanishes with exit code 0, or raises; its peer is stopped."""
        if how.startswith("SIG"):
            self.guilty.add(self.members[rank])
            first = self.exit(rank, ExitReason.killed, signal=how)
        elif how == "exit":
            first = self.exit(rank, ExitReason.exited)
        else:
            first = self.exit(rank, ExitReason.raised, exception="ValueError", message="boom")
        peer = self.exit(1 - rank, ExitReason.killed, signal="SIGTERM", stopped=True)
        self.end_round((first, peer), load=None if self.step is not None else self.load())

    def load(self) -> CheckpointLoad | None:
        """Return what the round was loading when it ended, and take note of the death."""
        step = self.resume_at()
        if step == 0:
            return None
        self.loads[step] = self.loads.get(step, 0) + 1
        others = {one for one, _ in self.saved if one != step and self.loads.get(one, 0) < 2}
        return CheckpointLoad(checkpoint=f"step-{step}", others=len(others))

    @precondition(lambda self: self.alive and self.step is None and self.saved)
    @rule()
    def poison(self) -> None:
        """Let the newest checkpoint kill whoever loads it."""
        self.poisoned.add(self.resume_at())

    @precondition(lambda self: self.alive)
    @rule(rank=st.integers(0, 1))
    def hang(self, rank: int) -> None:
        """Let a rank stand still, and be named."""
        self.guilty.add(self.members[rank])
        failure = Failure(cause=Cause.hang, message="", rank=rank, node=self.members[rank], signature="hang")
        self.end_round(self.both(ExitReason.killed, signal="SIGKILL", stopped=True), failure=failure)

    @precondition(lambda self: self.alive)
    @rule(place=st.integers(0, 1))
    def lose_a_node(self, place: int) -> None:
        """Lose a node of the round; the peer fails of the broken connection."""
        node = self.members[place]
        self.guilty.add(node)
        self.standing = tuple(one for one in self.standing if one != node)
        peer = self.exit(1 - place, ExitReason.raised, exception="DistBackendError")
        failure = Failure(cause=Cause.node_lost, message="", node=node, signature=f"node_lost {node}")
        self.end_round((peer,), failure=failure)

    @precondition(lambda self: self.alive)
    @rule(
        cause=st.sampled_from([Cause.preempted, Cause.time_limit, Cause.notice]),
        ended=st.booleans(),
        cancelled=st.booleans(),
    )
    def give_notice(self, cause: Cause, ended: bool, cancelled: bool) -> None:  # noqa: FBT001  # drawn
        """Tell the attempt to stop: ranks of a loop save and leave; a command may end with 0."""
        about: dict[str, Any] = {"notice": StopNotice(signal="SIGTERM", cause=cause), "cut_short": True}
        if self.step is None or ended:
            exits = self.both(ExitReason.ended)
        else:
            self.commit(self.step)
            exits = self.both(ExitReason.left, kept=StateKept.saved, told_by=ToldBy.supervisor)
        self.end_round(exits, cancelled=cancelled, **about)

    @precondition(lambda self: self.alive)
    @rule()
    def lose_the_supervisor(self) -> None:
        """Lose the supervisor, without a final event."""
        self.alive = False
        failure = failure_of_unended_attempt(self.attempts[-1])
        assert failure is not None
        if self.step is not None:
            reached = events.StepReached(at=self.tick(), round=self.round, step=self.step)
            self.attempts[-1].append(reached)
        self.count(failure)

    # --- starting it again -------------------------------------------------------------------

    @precondition(lambda self: self.attempts and not self.alive and not self.waits)
    @rule(by_hand=st.booleans())
    def resume(self, by_hand: bool) -> None:  # noqa: FBT001  # drawn
        """`hpckit resume`, or the auto-resume job: what chooses is the same, what counts is not."""
        view, before = self.view, self.past
        why = None if by_hand else explain_no_automatic_restart(view, self.counted, POLICY)
        known = Known(spent={} if why is None else {0: why})
        choice = choose_runs_to_resume([view], known, cancelled=by_hand)
        assert not (view.state is RunState.completed and choice.resumed), "completed is over"
        if not choice.resumed:
            return
        added = events.JobAdded(
            at=self.tick(), job=job(len(self.known.jobs)), after=(len(self.attempts),), fresh=by_hand
        )
        self.close_the_record()
        self.launched += [
            added,
            events.Submitted(at=self.at, job_index=added.job.index, job=str(added.job.index + 1)),
        ]
        self.waits, self.excluded = True, ()
        if by_hand:
            self.failures = self.lefts = 0
            return
        for cause in Cause:
            assert self.past.count_failures_against_budget(cause) >= before.count_failures_against_budget(
                cause
            ), "a budget grew by itself"

    def close_the_record(self) -> None:
        """Give the latest attempt the end it could not say itself (record.ledgers does so)."""
        failure = failure_of_unended_attempt(self.attempts[-1])
        if failure is None:
            return
        ended = events.RoundEnded(
            at=self.at,
            round=self.round,
            first_step=None,
            step=self.step,
            action=RoundAction.end,
            failure=failure,
        )
        last = events.AttemptEnded(at=self.at, state=RunState.interrupted, exit_code=1, failure=failure)
        self.attempts[-1] += [ended, last]

    # --- what must always hold -----------------------------------------------------------------

    @invariant()
    def completed_only_where_every_rank_came_to_its_end(self) -> None:
        """Never completed short of the end that the ranks themselves reported."""
        assert (self.view.state is RunState.completed) == (self.finished and not self.alive)

    @invariant()
    def one_epoch_commits_at_a_time(self) -> None:
        """Never commit for an earlier attempt what comes after a later attempt's."""
        epochs = [epoch for _, epoch in self.saved]
        assert epochs == sorted(epochs)
        assert not (self.alive and self.waits), "no second attempt is asked for beside a live one"

    @invariant()
    def no_healthy_node_is_blamed(self) -> None:
        """Left out is only a node on which something broke: never for a notice or an exception."""
        assert self.past.list_nodes_failing_too_often(POLICY) <= self.guilty
        assert set(self.excluded) <= self.guilty

    @invariant()
    def no_crash_loop_goes_on_for_ever(self) -> None:
        """Without getting further a run is started again a bounded number of times."""
        loads = 2 * len({step for step, _ in self.saved})
        assert self.failures <= sum(POLICY.restarts.values()) + loads + 10
        assert self.lefts <= POLICY.restarts["left"] + 1 + 1, "that of the progress counts, too"


RecoveryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRecovery = RecoveryMachine.TestCase
