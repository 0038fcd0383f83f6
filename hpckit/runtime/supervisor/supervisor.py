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
from datetime import timedelta
from functools import partial

from hpckit.model import events, messages
from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.failure import Cause, Failure
from hpckit.model.goodput import SaveCost
from hpckit.model.launch import DrainPolicy, StragglerPolicy
from hpckit.model.states import DrainAction
from hpckit.planning.diagnosis.straggler_watch import StragglerWatch
from hpckit.planning.preflight.judge import unhealthy_failure
from hpckit.planning.recovery.boundary import describe_drains, on_drain, on_straggler
from hpckit.planning.recovery.decide import why_stay
from hpckit.planning.recovery.ends import first_failure
from hpckit.planning.recovery.loss import gone_before
from hpckit.planning.recovery.round_view import (
    Action,
    EndAttempt,
    NewRound,
    RoundView,
    Stay,
    attempt_ended,
)
from hpckit.planning.rounds.round_state import RoundState, begin_round
from hpckit.planning.rounds.round_turns import Heard
from hpckit.runtime.assignment import Assignment, Step
from hpckit.runtime.channel.listen import LOOPBACK, own_addresses
from hpckit.runtime.clock import now
from hpckit.runtime.descriptors import allow_many_files, with_hint
from hpckit.runtime.mailbox import answer_requests
from hpckit.runtime.pauses import Suspensions
from hpckit.runtime.signals import hear_notices
from hpckit.runtime.supervisor.agent_step import AgentSteps, with_agents_output
from hpckit.runtime.supervisor.agents import Agents, Peer
from hpckit.runtime.supervisor.attempt import Attempt, open_attempt, record_changed_code
from hpckit.runtime.supervisor.deadline import Deadline
from hpckit.runtime.supervisor.drain_poll import Drained, poll_drained
from hpckit.runtime.supervisor.hand_over import HandOver
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.node_inspections import NodeInspections
from hpckit.runtime.supervisor.notices import TIME_LIMIT, Notices
from hpckit.runtime.supervisor.outlook import Outlook
from hpckit.runtime.supervisor.patience import cause_of_own_failure
from hpckit.runtime.supervisor.profiles import Profiles
from hpckit.runtime.supervisor.pruning import make_pruner
from hpckit.runtime.supervisor.resizing import Resizing
from hpckit.runtime.supervisor.round import Round, answer_stacks_request, make_start_orders
from hpckit.runtime.supervisor.wanted_size import WantedSize
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
    code = asyncio.run(_Supervisor(assignment, attempt).run_attempt())
    attempt.clean_up(completed=code == 0)
    return code


class _Supervisor:
    """One attempt under way."""

    def __init__(self, assignment: Assignment, attempt: Attempt) -> None:
        settings, allocation = assignment.settings, assignment.allocation
        self.assignment, self.attempt, self.settings = assignment, attempt, settings
        heard = None if assignment.heard is None else partial(assignment.heard, attempt.number)
        self.journal = Journal(paths=attempt.paths, heard=heard, keep=attempt.keep_incidents)
        self.record = self.journal.record_event
        self.suspensions = Suspensions(record=self.record)
        self.deadline = Deadline(
            lead=timedelta(seconds=settings.runtime.save_before_timeout_s),
            signal=str(settings.resources.additional_parameters.get("signal") or ""),
        )
        if allocation is not None:
            self.deadline.ask = allocation.limits
        self.notices = Notices(assignment, attempt, self.deadline, self.journal)
        self.agents = Agents(settings, attempt.secret, self.journal, self._hear_agent)
        self.steps = AgentSteps(assignment.agents, attempt)
        self.inspections = NodeInspections(self.agents, self.journal, self.notices.noticed)
        wanted_size = WantedSize(self.agents)
        self.outlook = Outlook(assignment, attempt, self.notices, self.inspections, wanted_size)
        self.resizing = Resizing(self.journal, self.agents, self.outlook)
        self.profiles = Profiles(self.journal, self.agents, self.outlook)
        self.hand_over = HandOver(self.outlook, self.journal)
        self.stragglers = StragglerWatch()
        self.told_drains: dict[str, DrainAction] = {}
        self.standing: tuple[str, ...] = ()
        self.queueing: asyncio.Task[object] | None = None
        self.regrowing: asyncio.Task[None] | None = None

    async def run_attempt(self) -> int:
        hear_notices(self._note_own_signal)
        await self.notices.learn_whether_cancelled()
        if self.notices.cancelled:
            # Cancelled before there was a process to notify.
            self._note_own_signal(signal.SIGTERM)
        works = (
            *(self._watch_time_limit(), self._watch_drains(), self._answer_requests()),
            *(self.suspensions.watch(), self.resizing.follow_requests()),
            self.hand_over.ask_before_kill(),
        )
        beside = [asyncio.create_task(work) for work in works]
        end = await self._run_until_end()
        for task in beside:
            task.cancel()
        # The final event comes before the shutdown of agents: after a notice, every second counts.
        self.notices.over = True
        await self.journal.record_attempt_end(attempt_ended(end, now()))
        await self.agents.shut_agents_down(_LEAVE_S)
        await self.steps.end_all_steps(_LEAVE_S)
        await self.hand_over.arrange_next_attempt(end, self.standing)
        await self.journal.await_writes()
        self.notices.ignore_signals()
        return end.exit_code

    async def _run_until_end(self) -> EndAttempt:
        """Start the agents and run rounds; if the system refuses, that is the attempt's failure."""
        try:
            await self.agents.start_listening(self.attempt.paths, self._list_own_hosts())
            return await self._run_rounds(await self.steps.start_agents())
        except OSError as error:
            cause = cause_of_own_failure(error)
            message = with_hint(f"the supervisor failed: {error}")
            failure = Failure(cause=cause, message=message, signature=f"{cause} supervisor")
            round_ = self.outlook.round
            number = 0 if round_ is None else round_.state.number
            view = RoundView(round=number, at=now(), exits=(), failure=failure)
            action = await self._decide_next(view)
            assert isinstance(action, EndAttempt), "there is no node for a round"  # noqa: S101
            return action

    def _note_own_signal(self, number: signal.Signals) -> None:
        self.notices.note_own_signal(number.name, can_save=self.outlook.can_save)

    def _hear_agent(self, peer: Peer, message: messages.Message) -> None:
        """Take in what an agent tells at any time; a satellite's notice concerns its own nodes."""
        match message:
            case messages.Hello() if peer.satellite is not None:
                self.outlook.past = self.outlook.past.with_returned(peer.node)
                self.outlook.wanted_size.note_satellites()
            case messages.Paused():
                self.suspensions.hear(message.seconds)
            case messages.Noticed() if peer.satellite is not None:
                words = f"it was told to stop ({message.signal})"
                self.agents.dismiss_satellite(peer.satellite, words)
                self.outlook.wanted_size.note_satellites()
            case messages.Noticed():
                self.notices.note_signal(message.signal, can_save=self.outlook.can_save)

    async def _watch_time_limit(self) -> None:
        """Learn the limits of the allocation, queue its successor, and watch the time limit."""
        allocation = self.assignment.allocation
        if allocation is None:
            return
        await self.deadline.learn_limits()
        if allocation.queue_successor is not None:
            self.queueing = asyncio.create_task(aside(allocation.queue_successor))
        await self.deadline.await_time_to_leave(lambda: self.outlook.usual_step)
        self.notices.note_signal(TIME_LIMIT, can_save=False)

    async def _watch_drains(self) -> None:
        """Ask now and then whether nodes are being drained, while the run could act on it."""
        allocation, settings = self.assignment.allocation, self.settings
        if allocation is None or settings.recovery.on_drain is DrainPolicy.ignore:
            return
        async for found in poll_drained(
            settings.runtime.drain_poll_interval_s,
            ask=lambda: allocation.draining(self.agents.satellite_nodes),
            is_wanted=lambda: self.outlook.stepping_round is not None,
        ):
            await self._leave_drained_nodes(found)

    async def _leave_drained_nodes(self, found: Drained) -> None:
        """Have the ranks leave nodes that are being drained, if the policy says so."""
        found = self.resizing.dismiss_drained(found, saved=self.deadline.has_saved)
        self.outlook.draining = found
        # A node that was in use again is news when it is drained once more.
        self.told_drains = {node: told for node, told in self.told_drains.items() if node in found}
        round_ = self.outlook.stepping_round
        if round_ is None:
            return
        view = self.outlook.complete_view(round_.view_now())
        drained = view.draining.keys() & {*view.members}
        if not drained:
            return
        action = self.outlook.judge_round(on_drain, view)
        taken, news = describe_drains(view, action, self.told_drains)
        self.told_drains |= dict.fromkeys(drained, taken)
        for event in news:
            self.record(event)
        if not isinstance(action, Stay):
            await round_.ask_ranks_to_leave()

    async def _answer_requests(self) -> None:
        """Answer requests of users: for the stacks of all ranks, profiles, and another size."""
        paths = self.attempt.paths
        await answer_requests(
            {
                paths.stacks_requests: lambda _, latest: answer_stacks_request(
                    self.journal, self.outlook.round, latest
                ),
                paths.profile_requests: self.profiles.answer_requests,
                paths.resize_requests: self.resizing.answer_requests,
            }
        )

    def _list_own_hosts(self) -> list[str]:
        """Return the names and addresses by which other nodes may reach this one, best first."""
        if not self.assignment.agents.prefix:
            return [LOOPBACK]
        name = self.assignment.environ.get("SLURMD_NODENAME")
        names = filter(None, [name, socket.gethostname()])
        return list(dict.fromkeys([*names, *own_addresses()]))

    async def _run_rounds(self, step: Step) -> EndAttempt:
        resources, agents, number = self.settings.resources, self.agents, 0
        wanted, names = resources.nodes + resources.spare_nodes, self.assignment.agents.nodes
        failure = await agents.await_all_agents(wanted, step, self.notices.noticed, names=names)
        if failure is None:
            await self.inspections.inspect_new_nodes()
            nodes = self.outlook.choose_first_nodes(agents.standing_peers)
            action = await self._run_round(number, nodes)
        else:
            agents.give_up_departed_agents(blamed=not self.notices.noticed.is_set())
            failure = await with_agents_output(failure, self.attempt.paths.agents_log)
            action = await self._decide_next(self._view_without_ranks(number, failure))
        while isinstance(action, NewRound):
            await done_within(action.pause.total_seconds(), self.notices.noticed.wait())
            number += 1
            await aside(partial(record_changed_code, self.attempt, self.assignment.environ))
            await self.inspections.inspect_new_nodes()
            action = await self._run_round(number, action.nodes)
        return action

    def _view_without_ranks(
        self, number: int, failure: Failure, members: tuple[str, ...] = ()
    ) -> RoundView:
        standing = self.agents.standing_nodes
        view = RoundView(round=number, at=now(), exits=(), failure=failure)
        return replace(view, members=members, standing=standing)

    async def _avoid_unhealthy_nodes(self, number: int, nodes: tuple[str, ...]) -> Action | None:
        """Return what follows if some of these nodes cannot train; None if the round may start.

        It starts in spite of that, with a warning, if the run can have no others.
        """
        bad = self.inspections.take_unhealthy_news(nodes)
        if not bad:
            return None
        failure = unhealthy_failure(bad)
        view = self._view_without_ranks(number, failure, nodes)
        stay = self.outlook.judge_round(why_stay, view)
        if stay is None:
            return await self._decide_next(view)
        self.journal.record_warning(f"{failure.message}; {stay}: it continues here")
        return None

    async def _run_round(self, number: int, nodes: tuple[str, ...]) -> Action:
        """Run one round on those of these nodes that are left, if they have a layout."""
        unhealthy = await self._avoid_unhealthy_nodes(number, nodes)
        if unhealthy is not None:
            return unhealthy
        there = {peer.node: peer for peer in self.agents.standing_peers}
        members: tuple[Peer, ...] = tuple(there[node] for node in nodes if node in there)
        if not self.outlook.wanted_size.round_sizes.holds(len(members)):
            failure = gone_before(nodes, there)
            return await self._decide_next(self._view_without_ranks(number, failure, nodes))
        here = {peer.node_rank: peer.node for peer in members}
        orders = make_start_orders(number, members, self.settings, self.outlook.past)
        round_ = self.outlook.round = Round(
            state=begin_round(number, here, self.settings, time.monotonic(), orders),
            agents=self.agents,
            journal=self.journal,
            noticed=self.notices.noticed,
            pass_on=self._take_report,
            pruner=make_pruner(self.attempt.launch, self.attempt.index, self.settings),
        )
        await self.resizing.note_new_round(round_.state.nodes)
        ran = await round_.run_to_end()
        self.profiles.note_round_end(number)
        view = await self._bring_agents_back(ran)
        await self.inspections.inspect_suspect_nodes(view.failure or first_failure(view.exits))
        await self.notices.find_meaning_of_notice()
        return await self._decide_next(view)

    async def _bring_agents_back(self, view: RoundView) -> RoundView:
        """Restart agents that have ended although their nodes have not.

        Then no node is lost, and none is to blame.
        """
        if not self.agents.left or self.notices.noticed.is_set():
            return view
        gave_up = self.agents.given_up_s > 0
        came = await self.steps.restart_departed_agents(self.agents, self.notices.noticed)
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

    async def _take_report(self, round_: RoundState, heard: Heard) -> None:
        """Take in what agents tell that is not of the round alone."""
        match heard.message:
            case messages.Saved() as message:
                self._note_save(round_.number, message)
            case messages.NodeSteps() as message:
                await self._judge_step_times(round_, message, round_.members[heard.sender])
            case messages.RankEnded(exit=exit_):
                self.profiles.note_rank_end(round_.number, exit_.rank)
            case messages.Profiled() as message:
                self.profiles.note_result(message)

    def _note_save(self, round_: int, message: messages.Saved) -> None:
        stall, took = timedelta(seconds=message.stall_s), timedelta(seconds=message.duration_s)
        if warning := self.deadline.note_save(took):
            self.journal.record_warning(warning)
        cost = SaveCost(stall=stall, duration=took)
        self.outlook.past = replace(self.outlook.past, save_cost=cost)
        if self.regrowing is None or self.regrowing.done():
            self.regrowing = asyncio.create_task(self.resizing.regrow_after_save(took))
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

    async def _judge_step_times(
        self, state: RoundState, told: messages.NodeSteps, node: str
    ) -> None:
        """Record who is slow; warn of slow nodes, or have the ranks leave them, by the policy."""
        found, slow = self.stragglers.take_reports(told, node, state.layout, time.monotonic())
        for straggler in found:
            self.record(events.StragglerFound(at=now(), round=state.number, straggler=straggler))
        if not slow:
            return
        self.outlook.slow = {**self.outlook.slow, **slow}
        words, round_ = "; ".join(slow.values()), self.outlook.round
        if round_ is None or self.settings.recovery.on_straggler is StragglerPolicy.warn:
            self.journal.record_warning(words)
            return
        action = self.outlook.judge_round(on_straggler, round_.view_now())
        if isinstance(action, Stay):
            words = f"{words}; the run continues there: {action.because}"
            self.journal.record_warning(words)
        else:
            await round_.ask_ranks_to_leave()

    async def _decide_next(self, view: RoundView) -> Action:
        """Decide what follows an ended round, and record it."""
        if view.failure is not None and view.failure.cause in _OF_AGENTS:
            failure = await with_agents_output(view.failure, self.attempt.paths.agents_log)
            view = replace(view, failure=failure)
        self.standing = view.standing
        action, ended = self.outlook.follow_round(view)
        self.record(ended)
        if isinstance(action, NewRound) and action.undone:
            self.resizing.undo_growth(action.because.message)
        return action
