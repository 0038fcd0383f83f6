"""The supervisor: the one process of an attempt, on the batch host.

It takes an attempt from its folder to its exit code: starts the agents, handles notices, runs
rounds and records what happened. What follows a failure is chosen in planning.recovery.decide. It
knows nothing of Slurm (the assignment says what it may ask for) and does not import torch.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

from hpckit.model import events, messages
from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.failure import Cause, Failure
from hpckit.model.goodput import SaveCost
from hpckit.model.launch import DrainPolicy, StragglerPolicy
from hpckit.planning.diagnosis.straggler_watch import StragglerWatch
from hpckit.planning.layout import replica_nodes_of
from hpckit.planning.preflight.judge import unhealthy_failure
from hpckit.planning.recovery.boundary import on_drain, on_resize, on_straggler, resizable_nodes
from hpckit.planning.recovery.decide import decide, end_by_notice, why_stay
from hpckit.planning.recovery.ends import first_failure
from hpckit.planning.recovery.loss import gone_before
from hpckit.planning.recovery.node_choice import first_nodes, network_order
from hpckit.planning.recovery.round_view import (
    Action,
    EndAttempt,
    NewRound,
    RoundView,
    Stay,
    StopNotice,
    attempt_ended,
    round_followed,
)
from hpckit.planning.rounds.round_state import RoundState, begin_round
from hpckit.planning.rounds.round_turns import Heard
from hpckit.runtime.assignment import Assignment, Step
from hpckit.runtime.channel.listen import LOOPBACK, own_addresses
from hpckit.runtime.clock import now
from hpckit.runtime.descriptors import allow_many_files, with_hint
from hpckit.runtime.environ import TERMINAL
from hpckit.runtime.foreground import ended_by_keyboard
from hpckit.runtime.mailbox import answer_requests
from hpckit.runtime.pauses import Suspensions
from hpckit.runtime.supervisor.agent_step import Steps, explained
from hpckit.runtime.supervisor.agents import Agents, Peer
from hpckit.runtime.supervisor.attempt import Attempt, note_other_code, open_attempt
from hpckit.runtime.supervisor.deadline import Deadline
from hpckit.runtime.supervisor.drain_poll import Drained, DrainNews, poll_drained
from hpckit.runtime.supervisor.hand_over import HandOver
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.node_inspections import NodeInspections
from hpckit.runtime.supervisor.notices import TIME_LIMIT, Notices
from hpckit.runtime.supervisor.patience import own_failure_cause
from hpckit.runtime.supervisor.profiles import Profiles
from hpckit.runtime.supervisor.pruning import judge_of
from hpckit.runtime.supervisor.resizing import Resizing
from hpckit.runtime.supervisor.round import Round, answer_stacks, start_orders
from hpckit.runtime.threads import aside, done_within
from hpckit.values import replace

_LEAVE_S = 3.0
"""How long agents may take to leave after Shutdown before their step is ended."""
_OF_AGENTS = frozenset({Cause.node_lost, Cause.launcher_lost})
"""Causes that the agents' own output may explain."""


def supervise(assignment: Assignment) -> int:
    """Run one attempt to its end and return its exit code (0 only if the run completed).

    Raises RunError if the attempt cannot even be recorded.
    """
    allow_many_files()
    attempt = open_attempt(
        assignment.launch, assignment.index, assignment.job_index, assignment.environ
    )
    code = asyncio.run(_Supervisor(assignment, attempt).run())
    attempt.settle(completed=code == 0)
    return code


class _Supervisor:
    """One attempt under way."""

    def __init__(self, assignment: Assignment, attempt: Attempt) -> None:
        settings, paths = assignment.settings, attempt.paths
        self.assignment, self.attempt, self.settings = assignment, attempt, settings
        self.replica_nodes = replica_nodes_of(settings)
        self.round: Round | None = None
        self.past = attempt.past()
        self.standing: tuple[str, ...] = ()
        self.drains = DrainNews()
        self.slow: Mapping[str, str] = {}
        self.queueing: asyncio.Task[object] | None = None
        self.regrowing: asyncio.Task[None] | None = None
        self.steps = Steps(command=assignment.agents, attempt=attempt)
        heard = assignment.heard
        told = None if heard is None else partial(heard, attempt.number)
        self.journal = Journal(paths=paths, heard=told, keep=attempt.keep_incidents)
        self.record = self.journal.record
        lead = timedelta(seconds=settings.runtime.save_before_timeout_s)
        signal_ = str(settings.resources.additional_parameters.get("signal") or "")
        allocation = assignment.allocation
        self.deadline = Deadline(lead=lead, warn=self.journal.warn, signal=signal_)
        if allocation is not None:
            self.deadline.ask = allocation.limits
        self.stragglers = StragglerWatch()
        self.notices = Notices(
            assignment=assignment,
            deadline=self.deadline,
            record=self.record,
            asked_to_cancel=attempt.cancelled,
            can_save=lambda: self._trains() and self.deadline.saved_any,
        )
        self.suspensions = Suspensions(record=self.record)
        self.agents = Agents(
            settings=settings,
            secret=attempt.secret,
            on_notice=self.notices.hear,
            record=self._record_of_agent,
            on_pause=self.suspensions.hear,
        )
        planned = settings.observe.profile
        self.profiles = Profiles(journal=self.journal, agents=self.agents, planned=planned)
        noticed = self.notices.noticed
        self.preflight = NodeInspections(agents=self.agents, noticed=noticed, record=self.record)
        self.resizing = Resizing(
            journal=self.journal,
            agents=self.agents,
            judge=self._resized,
            usable=self._usable,
            order=None if allocation is None else allocation.regrow,
        )

    async def run(self) -> int:
        self.notices.listen()
        await self.notices.learn_whether_cancelled()
        if self.notices.cancelled:
            # Cancelled before there was a process to notify.
            self.notices.hear_self(signal.SIGTERM.name)
        hand_over = HandOver(
            assignment=self.assignment,
            attempt=self.attempt,
            journal=self.journal,
            notices=self.notices,
        )
        works = (
            *(self._keep_time(), self._ask_drains(), self._answer_requests()),
            *(self.suspensions.watch(), self.resizing.watch()),
            hand_over.ask_before_kill(self._end_by_notice),
        )
        beside = [asyncio.create_task(work) for work in works]
        end = await self._work()
        for task in beside:
            task.cancel()
        # The final event comes before the shutdown of agents: after a notice, every second counts.
        self.notices.over = True
        await self.journal.record_end(attempt_ended(end, now()))
        await self.agents.close(_LEAVE_S)
        await self.steps.end(_LEAVE_S)
        await hand_over.see_to(end, self.standing)
        await self.journal.settle()
        self.notices.ignore()
        return end.exit_code

    async def _work(self) -> EndAttempt:
        """Start the agents and run rounds; if the system refuses, that is the attempt's failure."""
        try:
            await self.agents.listen(self.attempt.paths, self._hosts())
            return await self._rounds(await self.steps.start())
        except OSError as error:
            action = await self._decided(self._failed(error))
            assert isinstance(action, EndAttempt), "there is no node for a round"  # noqa: S101
            return action

    def _failed(self, error: OSError) -> RoundView:
        """Return a view of the round in which, or before which, the supervisor itself failed."""
        cause = own_failure_cause(error)
        message = with_hint(f"the supervisor failed: {error}")
        failure = Failure(cause=cause, message=message, signature=f"{cause} supervisor")
        number = 0 if self.round is None else self.round.state.number
        return RoundView(round=number, at=now(), exits=(), failure=failure)

    def _end_by_notice(self) -> EndAttempt:
        """Return how the attempt would end if its ranks left now."""
        view = RoundView(round=0, at=now(), exits=()) if self.round is None else self.round.view()
        known, policy = self._known(view), self.settings.recovery
        return end_by_notice(known, known.notice or StopNotice(signal=""), policy, self.past)

    async def _keep_time(self) -> None:
        """Learn the limits of the allocation, queue its successor, and watch the time limit."""
        allocation = self.assignment.allocation
        if allocation is None:
            return
        await self.deadline.learn()
        if allocation.queue_successor is not None:
            self.queueing = asyncio.create_task(aside(allocation.queue_successor))
        await self.deadline.watch(self._usual_step)
        self.notices.hear(TIME_LIMIT)

    def _usual_step(self) -> timedelta | None:
        """Return how long a step takes; None without a step loop, which alone can save and leave.

        A command is left alone until the limit itself.
        """
        if self.round is None or self.round.state.step is None:
            return None
        return self.round.state.usual_step

    async def _ask_drains(self) -> None:
        """Ask now and then whether nodes are being drained, while the run could act on it."""
        allocation, settings = self.assignment.allocation, self.settings
        if allocation is None or settings.recovery.on_drain is DrainPolicy.ignore:
            return
        await poll_drained(
            settings.runtime.drain_poll_interval_s,
            ask=lambda: allocation.draining(self.resizing.satellite_nodes),
            wanted=self._trains,
            hear=self._hear_drains,
        )

    async def _answer_requests(self) -> None:
        """Answer requests of users: for the stacks of all ranks, profiles, and another size."""
        paths = self.attempt.paths
        await answer_requests(
            {
                paths.stacks_requests: lambda _, at: answer_stacks(self.journal, self.round, at),
                paths.profile_requests: self.profiles.answer,
                paths.resize_requests: self.resizing.answer,
            }
        )

    def _trains(self) -> bool:
        return self.round is not None and self.round.state.stepping

    async def _hear_drains(self, found: Drained) -> None:
        """Have the ranks leave nodes that are being drained, if the policy says so."""
        self.drains.take(self.resizing.leave_drained(found, saved=self.deadline.saved_any))
        if self.round is None or not self.round.state.stepping:
            return
        view = self._known(self.round.view())
        if not self.drains.nodes.keys() & set(view.members):
            return
        action = on_drain(view, self.settings.recovery, self.past)
        for event in self.drains.news(view.members, action):
            self.record(event)
        if not isinstance(action, Stay):
            await self.round.leave()

    async def _take_steps(self, round_: RoundState, told: messages.NodeSteps, node: str) -> None:
        """Record who is slow; warn of slow nodes, or have the ranks leave them, by the policy."""
        found, slow = self.stragglers.take(told, node, round_.layout, time.monotonic())
        for straggler in found:
            self.record(events.StragglerFound(at=now(), round=round_.number, straggler=straggler))
        if not slow:
            return
        policy = self.settings.recovery
        self.slow = {**self.slow, **slow}
        words = "; ".join(slow.values())
        if self.round is None or policy.on_straggler is StragglerPolicy.warn:
            self.journal.warn(words)
            return
        action = on_straggler(self._known(self.round.view()), policy, self.past)
        if isinstance(action, Stay):
            self.journal.warn(f"{words}; the run continues there: {action.because}")
        else:
            await self.round.leave()

    def _resized(self, view: RoundView) -> NewRound | Stay:
        """Return what follows if a round left now because it may have another size."""
        return on_resize(self._known(view), self.settings.recovery, self.past)

    def _usable(self, view: RoundView) -> Sequence[str]:
        """Return the nodes that a round of another size may have."""
        return resizable_nodes(self._known(view), self.settings.recovery, self.past)

    def _record_of_agent(self, event: events.Event) -> None:
        if isinstance(event, events.AgentJoined) and event.satellite is not None:
            self.past = self.past.with_returned(event.node)
        self.record(event)

    def _hosts(self) -> list[str]:
        """Return the names and addresses by which other nodes may reach this one, best first."""
        if not self.assignment.agents.prefix:
            return [LOOPBACK]
        name = self.assignment.environ.get("SLURMD_NODENAME")
        names = filter(None, [name, socket.gethostname()])
        return list(dict.fromkeys([*names, *own_addresses()]))

    async def _rounds(self, step: Step) -> EndAttempt:
        """Run rounds until the attempt should end."""
        resources, agents, number = self.settings.resources, self.agents, 0
        wanted, names = resources.nodes + resources.spare_nodes, self.assignment.agents.nodes
        failure = await agents.gather(wanted, step, self.notices.noticed, names=names)
        if failure is None:
            await self.preflight.inspect_new()
            ordered = network_order(
                agents.standing_nodes,
                {peer.node: peer.switches for peer in agents.standing},
                replica_nodes=self.replica_nodes,
                domain_nodes=self.settings.cluster.nvlink_nodes,
            )
            nodes = first_nodes(
                ordered,
                self.past,
                self.settings.recovery,
                self.resizing.round_sizes,
                self.preflight.unhealthy,
                now(),
            )
            action = await self._round(number, nodes)
        else:
            agents.lose_left(blamed=not self.notices.noticed.is_set())
            failure = await explained(failure, self.attempt.paths.agents_log)
            action = await self._decided(self._not_begun(number, failure))
        while isinstance(action, NewRound):
            await done_within(action.pause.total_seconds(), self.notices.noticed.wait())
            number += 1
            await aside(partial(note_other_code, self.attempt, self.assignment.environ))
            await self.preflight.inspect_new()
            action = await self._round(number, action.nodes)
        return action

    def _not_begun(self, number: int, failure: Failure, members: tuple[str, ...] = ()) -> RoundView:
        """Return a view of a round without ranks."""
        standing = self.agents.standing_nodes
        view = RoundView(round=number, at=now(), exits=(), failure=failure)
        return replace(view, members=members, standing=standing)

    async def _unhealthy(self, number: int, nodes: tuple[str, ...]) -> Action | None:
        """Return what follows if some of these nodes cannot train; None if the round may start.

        It starts in spite of that, with a warning, if the run can have no others.
        """
        bad = self.preflight.news(nodes)
        if not bad:
            return None
        failure = unhealthy_failure(bad)
        view = self._not_begun(number, failure, nodes)
        stay = why_stay(self._known(view), self.settings.recovery, self.past)
        if stay is None:
            return await self._decided(view)
        self.journal.warn(f"{failure.message}; {stay}: it continues here")
        return None

    async def _round(self, number: int, nodes: tuple[str, ...]) -> Action:
        """Run one round on those of these nodes that are left, if they have a layout."""
        unhealthy = await self._unhealthy(number, nodes)
        if unhealthy is not None:
            return unhealthy
        there = {peer.node: peer for peer in self.agents.standing}
        members: tuple[Peer, ...] = tuple(there[node] for node in nodes if node in there)
        if not self.resizing.round_sizes.holds(len(members)):
            return await self._decided(self._not_begun(number, gone_before(nodes, there), nodes))
        here = {peer.node_rank: peer.node for peer in members}
        orders = start_orders(number, members, self.settings, self.past)
        state = begin_round(number, here, self.settings, time.monotonic(), orders)
        self.round = self.resizing.round = self.profiles.round = Round(
            state=state,
            agents=self.agents,
            journal=self.journal,
            noticed=self.notices.noticed,
            pass_on=self._take,
            judge=judge_of(self.attempt.launch, self.attempt.index, self.settings),
        )
        await self.resizing.began(state.nodes)
        ran = await self.round.run()
        self.profiles.over(number)
        view = await self._with_agents_back(ran)
        await self.preflight.inspect_suspects(view.failure or first_failure(view.exits))
        await self.notices.learn_why()
        return await self._decided(view)

    async def _with_agents_back(self, view: RoundView) -> RoundView:
        """Restart agents that have ended although their nodes have not.

        Then no node is lost, and none is to blame.
        """
        if not self.agents.left or self.notices.noticed.is_set():
            return view
        gave_up = self.agents.given_up_s > 0
        came = await self.steps.bring_back(self.agents, self.notices.noticed)
        view = replace(view, standing=self.agents.standing_nodes)
        lost = view.failure is not None and view.failure.cause is Cause.node_lost
        if gave_up or not lost or {*view.members} - {*view.standing}:
            return view
        failure = Failure(
            cause=Cause.launcher_lost,
            message=f"the agent of {compress_nodes(came)} ended, and was started again there",
            step=view.step,
            signature=f"{Cause.launcher_lost} agent",
        )
        return replace(view, failure=failure)

    async def _take(self, round_: RoundState, heard: Heard) -> None:
        """Take in what agents tell that is not of the round alone."""
        match heard.message:
            case messages.Saved() as message:
                self._saved(round_.number, message)
            case messages.NodeSteps() as message:
                await self._take_steps(round_, message, round_.members[heard.sender])
            case messages.RankEnded(exit=exit_):
                self.profiles.ended(round_.number, exit_.rank)
            case messages.Profiled() as message:
                self.profiles.take(message)

    def _saved(self, round_: int, message: messages.Saved) -> None:
        stall, took = timedelta(seconds=message.stall_s), timedelta(seconds=message.duration_s)
        self.deadline.saved(took)
        self.past = replace(self.past, save_cost=SaveCost(stall=stall, duration=took))
        if self.regrowing is None or self.regrowing.done():
            self.regrowing = asyncio.create_task(self.resizing.saved(took))
        self.record(
            events.CheckpointSaved(
                at=now(),
                round=round_,
                step=message.step,
                size=message.size,
                stall_s=message.stall_s,
                duration_s=message.duration_s,
            )
        )

    async def _decided(self, view: RoundView) -> Action:
        """Decide what follows an ended round, and record it."""
        if view.failure is not None and view.failure.cause in _OF_AGENTS:
            failure = await explained(view.failure, self.attempt.paths.agents_log)
            view = replace(view, failure=failure)
        view = self._known(view)
        self.standing = view.standing
        action = decide(view, self.settings.recovery, self.past)
        ended = round_followed(view, action)
        self.record(ended)
        self.past = self.past.after(ended, self.attempt.number, ran=view.ran)
        if isinstance(action, NewRound) and action.undone:
            self.resizing.undo(action.because.message)
        return action

    def _known(self, view: RoundView) -> RoundView:
        """Add to a round's view what is known outside the round."""
        settings, allocation = self.settings, self.assignment.allocation
        ended = filter(None, map(ended_by_keyboard, view.exits))
        by_keyboard = next(ended, None) if TERMINAL in self.assignment.environ else None
        notice = self.notices.notice or (by_keyboard and StopNotice(signal=by_keyboard)) or None
        return replace(
            view,
            attempt=self.attempt.number,
            saved=self.deadline.saved_any,
            notice=notice,
            dismissed=self.notices.dismissed or self.notices.ended_by_wish(view.ran),
            cancelled=bool(notice and (by_keyboard or self.notices.cancelled)),
            draining=self.drains.nodes,
            slow=self.slow if settings.recovery.on_straggler is StragglerPolicy.move else {},
            unhealthy=self.preflight.unhealthy,
            wanted=self.resizing.wanted_nodes,
            fewest=self.resizing.fewest_nodes,
            replica_nodes=self.replica_nodes,
            fallback_nodes=self.resizing.size.fallback_nodes,
            resizing=self.resizing.losing,
            grown_from=self.resizing.grown_from,
            requeues=allocation is not None and settings.recovery.requeue,
        )
