"""The supervisor: the one process of an attempt, on the batch host.

It takes an attempt from its folder to its exit code: starts the agents, handles notices, runs
rounds and records what happened. What follows a failure is chosen in planning.recovery.decide. It
knows nothing of Slurm (the assignment says what it may ask for) and does not import torch.
"""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import timedelta
from functools import partial

from hpckit.model import events, messages
from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.model.failure import Cause, Failure
from hpckit.model.goodput import SaveCost
from hpckit.model.launch import DrainPolicy, StragglerPolicy
from hpckit.model.states import DrainAction
from hpckit.planning.diagnosis.straggler_watch import StragglerWatch
from hpckit.planning.preflight.judge import build_unhealthy_nodes_failure
from hpckit.planning.recovery.boundary import (
    build_drain_action_and_events,
    decide_on_drain,
    decide_on_straggler,
)
from hpckit.planning.recovery.decide import explain_using_unhealthy_nodes
from hpckit.planning.recovery.ends import find_first_failure
from hpckit.planning.recovery.loss import build_loss_before_start_failure
from hpckit.planning.recovery.round_view import (
    Action,
    EndAttempt,
    NewRound,
    RoundView,
    Stay,
    build_attempt_ended_event,
)
from hpckit.planning.rounds.round_state import RoundState, create_round_state
from hpckit.planning.rounds.round_turns import Heard
from hpckit.runtime.assignment import Assignment, Step
from hpckit.runtime.channel.listen import LOOPBACK, list_own_names_and_addresses
from hpckit.runtime.clock import now
from hpckit.runtime.descriptors import add_open_files_hint, raise_open_file_limit
from hpckit.runtime.mailbox import poll_and_answer_requests
from hpckit.runtime.pauses import Suspensions
from hpckit.runtime.signals import install_stop_signal_handlers
from hpckit.runtime.supervisor.agent_step import AgentSteps
from hpckit.runtime.supervisor.agents import Agents
from hpckit.runtime.supervisor.attempt import Attempt, begin_next_attempt, record_changed_unfrozen_code
from hpckit.runtime.supervisor.callers import Peer
from hpckit.runtime.supervisor.deadline import Deadline
from hpckit.runtime.supervisor.drain_poll import Drained, poll_draining_nodes
from hpckit.runtime.supervisor.hand_over import HandOver
from hpckit.runtime.supervisor.journal import Journal
from hpckit.runtime.supervisor.node_inspections import NodeInspections
from hpckit.runtime.supervisor.node_preparations import NodePreparations
from hpckit.runtime.supervisor.notices import TIME_LIMIT, Notices
from hpckit.runtime.supervisor.outlook import Outlook
from hpckit.runtime.supervisor.patience import cause_of_supervisor_failure
from hpckit.runtime.supervisor.profiles import Profiles
from hpckit.runtime.supervisor.pruning import make_pruner
from hpckit.runtime.supervisor.resizing import Resizing
from hpckit.runtime.supervisor.round import Round, answer_stacks_request, make_start_orders
from hpckit.runtime.supervisor.wanted_size import WantedSize
from hpckit.runtime.threads import await_with_limit, run_in_thread
from hpckit.values import replace

_LEAVE_S = 3.0
"""How long agents may take to leave after Shutdown before their step is ended."""
_OF_AGENTS = frozenset({Cause.node_lost, Cause.launcher_lost})
"""Causes that the agents' own output may explain."""


def supervise(assignment: Assignment) -> int:
    """Run one attempt to its end and return its exit code (0 only if the run completed).

    Raises RunError if the attempt cannot even be recorded.
    """
    raise_open_file_limit()
    attempt = begin_next_attempt(
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
        self.agents = Agents(settings, attempt.secret, self.journal, self._react_to_agent_message)
        self.steps = AgentSteps(assignment.agents, attempt)
        self.inspections = NodeInspections(self.agents, self.journal, self.notices.noticed)
        self.preparations = NodePreparations(assignment, self.agents, self.steps, self.notices, self.journal)
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
        install_stop_signal_handlers(self._note_own_signal)
        await self.notices.learn_whether_cancelled()
        if self.notices.cancelled:
            # Cancelled before there was a process to notify.
            self._note_own_signal(signal.SIGTERM)
        works = (
            *(self._watch_time_limit(), self._watch_draining_nodes(), self._answer_requests()),
            *(self.suspensions.record_pauses_agents_shared(), self.resizing.end_rounds_to_resize()),
            *(self.hand_over.request_attempt_when_terminated(), self.preparations.bring_out_at_notice()),
        )
        beside = [asyncio.create_task(work) for work in works]
        end = await self._run_until_end()
        for task in beside:
            task.cancel()
        await self.preparations.bring_results_out()
        # The final event comes before the shutdown of agents: after a notice, every second counts.
        self.notices.over = True
        await self.journal.record_attempt_end(build_attempt_ended_event(end, now()))
        await self.agents.shut_agents_down(_LEAVE_S, final=end.state.is_final and not end.again)
        await self.steps.end_all_steps(_LEAVE_S)
        await self.hand_over.arrange_next_attempt(end, self.standing)
        await self.journal.await_writes()
        self.notices.ignore_signals()
        return end.exit_code

    async def _run_until_end(self) -> EndAttempt:
        """Start the agents and run rounds; if the system refuses, that is the attempt's failure."""
        try:
            node = self.assignment.environ.get("SLURMD_NODENAME")
            hosts = list_own_names_and_addresses(node) if self.assignment.agents.prefix else [LOOPBACK]
            await self.agents.start_listening(self.attempt.paths, hosts)
            return await self._run_rounds(await self.steps.start_agents())
        except OSError as error:
            cause = cause_of_supervisor_failure(error)
            message = add_open_files_hint(f"the supervisor failed: {error}")
            failure = Failure(cause=cause, message=message, signature=f"{cause} supervisor")
            round_ = self.outlook.round
            number = 0 if round_ is None else round_.state.number
            view = RoundView(round=number, at=now(), exits=(), failure=failure)
            action = await self._decide_after_round(view)
            assert isinstance(action, EndAttempt), "there is no node for a round"  # noqa: S101
            return action

    def _note_own_signal(self, number: signal.Signals) -> None:
        self.notices.note_own_signal(number.name, can_save=self.outlook.can_save)

    def _react_to_agent_message(self, peer: Peer, message: messages.Message) -> None:
        """Take in what an agent tells at any time; a satellite's notice concerns its own nodes."""
        match message:
            case messages.Hello() if peer.satellite is not None:
                self.outlook.past = self.outlook.past.add_returned_node(peer.node)
                self.outlook.wanted_size.resize_if_satellites_changed()
            case messages.Prepared() | messages.StagedOut():
                self.preparations.take_message(peer, message)
            case messages.Warn() if not self.notices.over:
                self.journal.record_warning(message.message)
            case messages.Paused():
                self.suspensions.record_agent_pause(message.seconds)
            case messages.Noticed() if peer.satellite is not None:
                self.agents.dismiss_satellite(peer.satellite, f"it was told to stop ({message.signal})")
                self.outlook.wanted_size.resize_if_satellites_changed()
            case messages.Noticed():
                self.notices.record_stop_signal(message.signal, can_save=self.outlook.can_save)

    async def _watch_time_limit(self) -> None:
        """Learn the limits of the allocation, queue its successor, and watch the time limit."""
        allocation = self.assignment.allocation
        if allocation is None:
            return
        await self.deadline.ask_scheduler_for_limits()
        if allocation.growth is not None:
            self.outlook.growth = await run_in_thread(allocation.growth)
        if allocation.queue_successor is not None:
            self.queueing = asyncio.create_task(run_in_thread(allocation.queue_successor))
        await self.deadline.await_time_to_leave(lambda: self.outlook.usual_step)
        self.notices.record_stop_signal(TIME_LIMIT, can_save=False)

    async def _watch_draining_nodes(self) -> None:
        """Ask now and then whether nodes are being drained, while the run could act on it."""
        allocation, settings = self.assignment.allocation, self.settings
        if allocation is None or settings.recovery.on_drain is DrainPolicy.ignore:
            return
        async for found in poll_draining_nodes(
            settings.runtime.drain_poll_interval_s,
            ask=lambda: allocation.draining(self.agents.satellite_nodes),
            is_wanted=lambda: self.outlook.stepping_round is not None,
        ):
            await self._leave_drained_nodes(found)

    async def _leave_drained_nodes(self, found: Drained) -> None:
        """Have the ranks leave nodes that are being drained, if the policy says so."""
        found = self.resizing.dismiss_drained_satellites(found, saved=self.deadline.has_measured_a_save)
        self.outlook.draining = found
        # A node that was in use again is news when it is drained once more.
        self.told_drains = {node: told for node, told in self.told_drains.items() if node in found}
        round_ = self.outlook.stepping_round
        if round_ is None:
            return
        view = round_.view_now()
        drained = found.keys() & {*view.members}
        if not drained:
            return
        view = self.outlook.complete_round_view(view)
        action = decide_on_drain(view, self.outlook.policy, self.outlook.past)
        taken, news = build_drain_action_and_events(view, action, self.told_drains)
        self.told_drains |= dict.fromkeys(drained, taken)
        for event in news:
            self.record(event)
        if not isinstance(action, Stay):
            await round_.ask_ranks_to_save_and_leave()

    async def _answer_requests(self) -> None:
        """Answer requests of users: for the stacks of all ranks, profiles, and another size."""
        paths = self.attempt.paths
        await poll_and_answer_requests(
            {
                paths.stacks_requests: lambda _, latest: answer_stacks_request(
                    self.journal, self.outlook.round, latest
                ),
                paths.profile_requests: self.profiles.answer_profile_requests,
                paths.resize_requests: self.resizing.answer_resize_requests,
            }
        )

    async def _run_rounds(self, step: Step) -> EndAttempt:
        resources, agents, number = self.settings.resources, self.agents, 0
        wanted, names = resources.nodes + resources.spare_nodes, self.assignment.agents.nodes
        failure = await agents.await_all_agents(wanted, step, self.notices.noticed, names=names)
        if failure is None:
            await self.inspections.inspect_new_nodes()
            nodes = self.outlook.choose_nodes_of_first_round(agents.standing_peers)
            action = await self._run_round(number, nodes)
        else:
            agents.give_up_departed_agents(blamed=not self.notices.noticed.is_set())
            failure = await self.steps.add_output_to_failure(failure)
            action = await self._decide_after_round(self._build_view_without_ranks(number, failure))
        while isinstance(action, NewRound):
            await await_with_limit(action.pause.total_seconds(), self.notices.noticed.wait())
            number += 1
            await run_in_thread(partial(record_changed_unfrozen_code, self.attempt, self.assignment.environ))
            await self.inspections.inspect_new_nodes()
            action = await self._run_round(number, action.nodes)
        return action

    def _build_view_without_ranks(
        self, number: int, failure: Failure, members: tuple[str, ...] = ()
    ) -> RoundView:
        standing = self.agents.standing_nodes
        view = RoundView(round=number, at=now(), exits=(), failure=failure)
        return replace(view, members=members, standing=standing)

    async def _decide_on_unhealthy_nodes(self, number: int, nodes: tuple[str, ...]) -> Action | None:
        """Return what follows if some of these nodes cannot train; None if the round may start.

        It starts in spite of that, with a warning, if the run can have no others.
        """
        bad = self.inspections.list_newly_unhealthy_nodes(nodes)
        if not bad:
            return None
        failure = build_unhealthy_nodes_failure(bad)
        view = self._build_view_without_ranks(number, failure, nodes)
        stay = self.outlook.judge_round(explain_using_unhealthy_nodes, view)
        if stay is None:
            return await self._decide_after_round(view)
        self.journal.record_warning(f"{failure.message}; {stay}: it continues here")
        return None

    async def _run_round(self, number: int, nodes: tuple[str, ...]) -> Action:
        """Run one round on those of these nodes that are left, if they have a layout."""
        unhealthy = await self._decide_on_unhealthy_nodes(number, nodes)
        if unhealthy is not None:
            return unhealthy
        failure = await self.preparations.prepare_nodes(nodes)
        there = {peer.node: peer for peer in self.agents.standing_peers}
        members = tuple(there[node] for node in nodes if node in there)
        if failure is None and not self.outlook.wanted_size.round_sizes.has_layout_for(len(members)):
            failure = build_loss_before_start_failure(nodes, there)
        if failure is not None:
            return await self._decide_after_round(self._build_view_without_ranks(number, failure, nodes))
        here = {peer.node_rank: peer.node for peer in members}
        orders = make_start_orders(number, members, self.settings, self.outlook.past)
        round_ = self.outlook.round = Round(
            state=create_round_state(number, here, self.settings, time.monotonic(), orders),
            agents=self.agents,
            journal=self.journal,
            noticed=self.notices.noticed,
            pass_on=self._react_to_round_report,
            pruner=make_pruner(self.attempt.launch, self.attempt.index, self.settings),
        )
        await self.resizing.update_for_new_round(round_.state.nodes)
        ran = await round_.run_to_end()
        self.profiles.fail_profiles_of_ended_round(number)
        view = await self._restart_ended_agents(ran)
        await self.inspections.reinspect_nodes_after_failure(view.failure or find_first_failure(view.exits))
        await self.notices.find_meaning_of_stop_signal()
        return await self._decide_after_round(view)

    async def _restart_ended_agents(self, view: RoundView) -> RoundView:
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
            message=f"the agent of {compress_to_hostlist(came)} ended, and was started again there",
            step=view.step,
            signature=f"{Cause.launcher_lost} agent",
        )
        return replace(view, failure=failure)

    async def _react_to_round_report(self, round_: RoundState, heard: Heard) -> None:
        """Take in what agents tell that is not of the round alone."""
        match heard.message:
            case messages.Saved() as message:
                self._record_checkpoint_save(round_.number, message)
            case messages.NodeSteps() as message:
                await self._act_on_slow_nodes(round_, message, round_.members[heard.sender])
            case messages.RankEnded(exit=exit_):
                self.profiles.fail_profiles_of_ended_rank(round_.number, exit_.rank)
            case messages.Profiled() as message:
                self.profiles.record_rank_profile(message)

    def _record_checkpoint_save(self, round_: int, message: messages.Saved) -> None:
        stall, took = timedelta(seconds=message.stall_s), timedelta(seconds=message.duration_s)
        if warning := self.deadline.record_and_check_save_time(took):
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

    async def _act_on_slow_nodes(self, state: RoundState, told: messages.NodeSteps, node: str) -> None:
        """Record who is slow; warn of slow nodes, or have the ranks leave them, by the policy."""
        found, slow = self.stragglers.add_reports_and_get_news(told, node, state.layout, time.monotonic())
        for straggler in found:
            self.record(events.StragglerFound(at=now(), round=state.number, straggler=straggler))
        if not slow:
            return
        self.outlook.slow = {**self.outlook.slow, **slow}
        words, round_ = "; ".join(slow.values()), self.outlook.round
        if round_ is None or self.settings.recovery.on_straggler is StragglerPolicy.warn:
            self.journal.record_warning(words)
            return
        action = self.outlook.judge_round(decide_on_straggler, round_.view_now())
        if isinstance(action, Stay):
            words = f"{words}; the run continues there: {action.because}"
            self.journal.record_warning(words)
        else:
            await round_.ask_ranks_to_save_and_leave()

    async def _decide_after_round(self, view: RoundView) -> Action:
        """Decide what follows an ended round, and record it."""
        if view.failure is not None and view.failure.cause in _OF_AGENTS:
            view = replace(view, failure=await self.steps.add_output_to_failure(view.failure))
        self.standing = view.standing
        action, ended = self.outlook.decide_what_follows_round(view)
        self.record(ended)
        if isinstance(action, NewRound) and action.undone:
            self.resizing.undo_growth(action.because.message)
        return action
