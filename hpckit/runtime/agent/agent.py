"""The agent: one process per node, which starts, watches and ends the ranks of its node.

It reports to the supervisor, makes no decisions and imports no torch. Run as `python -m
hpckit.runtime.agent LAUNCH RUN ATTEMPT`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpckit.errors import ChannelError
from hpckit.model import messages
from hpckit.model.counted import format_count
from hpckit.model.environment.health import XidSeen
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.node_setup import ContainerCheck
from hpckit.model.telemetry.vocabulary import TelemetryEvent, TelemetryEventKind
from hpckit.observe.gpu_choice import GPUS_ASKED, OF_SLURM, VISIBLE, read_gpus_given_to_run
from hpckit.observe.sampler import NodeSampler, format_event_warning
from hpckit.planning.recovery.ends import LEFT_CODE
from hpckit.planning.recovery.node_choice import list_switches_above_node
from hpckit.record.launches import Launch, load_launch, load_run_settings
from hpckit.record.layout import LaunchPaths
from hpckit.record.secret_variables import read_secrets
from hpckit.run_features import NodeFeature, find_run_hooks
from hpckit.runtime.agent.doorway import SUPERVISOR_LOST, run_on_node, run_supervisor_lost_command
from hpckit.runtime.agent.inspection import (
    build_node_inspection_order,
    inspect_node,
    measure_rates_with_paired_nodes,
)
from hpckit.runtime.agent.joining import connect_to_supervisor, open_node_feature
from hpckit.runtime.agent.local_ranks import LocalRanks
from hpckit.runtime.agent.rank_starter import RankOutlook
from hpckit.runtime.agent.step_reports import SEND_S, StepReports
from hpckit.runtime.channel import tcp
from hpckit.runtime.channel.pace import BEAT_S, PATIENCE
from hpckit.runtime.descriptors import raise_open_file_limit
from hpckit.runtime.environ import (
    ON_SUPERVISOR_LOST,
    SATELLITE,
    copy_environment,
    find_node_name,
    rank_info,
    remove_image_variables,
    set_environment_variables,
)
from hpckit.runtime.foreground import disable_restarts_in_foreground
from hpckit.runtime.fork_server.client import ForkServerClient
from hpckit.runtime.fork_server.owner import connect_or_run_fork_server
from hpckit.runtime.left_behind import become_subreaper, end_orphans, reap_orphans
from hpckit.runtime.pauses import SilenceTimer
from hpckit.runtime.run_variables import run_variables
from hpckit.runtime.signals import NOTICES
from hpckit.runtime.threads import run_in_thread, start_task_fatal_on_error
from hpckit.values import dataclass, field, replace

_LEAVE_S = 2.0
"""How long what ranks have left behind may take to leave in order; a supervisor waits longer."""
_MOST_XIDS = 64
_MOST_WARNINGS = 20
"""Warnings of one node in an attempt; all that happened is in its telemetry."""

NodeOrder = messages.Inspect | messages.MeasurePairs | messages.Prepare | messages.BringOut


@dataclass(slots=True, kw_only=True)
class Agent:
    """One node's part in an attempt."""

    channel: tcp.Channel
    outlook: RankOutlook
    fork_server: ForkServerClient | None = None
    reports: StepReports = field(default_factory=StepReports)
    on_taken: Callable[[], None] | None = None
    """Called with each message that does not send this agent away."""
    ranks: LocalRanks | None = None
    feature: NodeFeature | None = None
    """What prepares this node for ranks, if the run needs that."""
    reserved: socket.socket | None = None
    container: ContainerCheck | None = None
    xids: list[XidSeen] = field(default_factory=list)
    """The XID errors that this node's sampler has seen in this attempt."""
    _silence: SilenceTimer = field(default_factory=lambda: SilenceTimer(tick_s=BEAT_S), init=False)
    _alone: bool = field(default=False, init=False)
    _warned: set[str] = field(default_factory=set, init=False)
    _said_at: float = field(default=0.0, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def obey_supervisor_until_shutdown(self) -> int:
        """Follow the supervisor's messages until Shutdown; end the ranks when it is gone."""
        await self.channel.send(
            messages.Hello(
                node=find_node_name(),
                node_rank=self.outlook.info.rank,
                pid=os.getpid(),
                switches=list_switches_above_node(copy_environment()),
                satellite=copy_environment().get(SATELLITE),
                container=self.container,
                port=0 if self.feature is None else self.feature.port,
            )
        )
        beating = start_task_fatal_on_error(self._send_periodic_reports())
        while (message := await self._receive_message()) is not None:
            if isinstance(message, messages.Shutdown):
                beating.cancel()
                await asyncio.gather(*self._tasks)
                await self._end_leftover_processes()
                await self._close_feature(final=message.final)
                return 0
            if self.on_taken is not None:
                self.on_taken()
            await self._obey_supervisor_message(message)
        beating.cancel()
        self._alone = True
        await self._stop_ranks(self.outlook.settings.runtime.stop_grace_s)
        await self._end_leftover_processes()
        await self._close_feature(final=False)
        return SUPERVISOR_LOST

    async def _close_feature(self, *, final: bool) -> None:
        if (feature := self.feature) is not None:
            await run_in_thread(lambda: feature.close(final=final))

    async def _receive_message(self) -> messages.Message | None:
        """Return the next message; None if the supervisor is gone, or silent for too long.

        Time in which this process itself did not run does not count as silence.
        """
        limit_s = PATIENCE * self.outlook.settings.runtime.node_timeout_s
        incoming = asyncio.ensure_future(self.channel.receive())
        while not (await asyncio.wait({incoming}, timeout=BEAT_S))[0]:
            silent_s = self._silence.measure_silence(time.monotonic())
            if silent_s > limit_s:
                incoming.cancel()
                with contextlib.suppress(OSError):
                    self.channel.send_without_waiting(messages.SupervisorSilent(silent_s=round(silent_s, 3)))
                return None
        self._silence.reset_on_message()
        return incoming.result()

    async def _send_periodic_reports(self) -> None:
        """Report steps and ranks that hang; send a sign of life if nothing else was sent."""
        while True:
            await asyncio.sleep(BEAT_S)
            for begin, end in self.reports.pauses.pop_new_pauses():
                await self.send_to_supervisor(messages.Paused(seconds=end - begin))
            if self.ranks is not None:
                reap_orphans([process.pid for process in self.ranks.processes.values()])
                await self.ranks.send_newest_step()
                if (hung := self.ranks.find_hung_rank()) is not None:
                    await self.send_to_supervisor(hung)
                steps = self.reports.pop_steps_due_for_supervisor(
                    time.monotonic(), self.outlook.message_interval_s(SEND_S)
                )
                if steps is not None:
                    await self.send_to_supervisor(steps)
            if time.monotonic() - self._said_at > self.outlook.message_interval_s() - BEAT_S / 2:
                self._said_at = time.monotonic()
                with contextlib.suppress(OSError):
                    self.channel.send_without_waiting(messages.Beat())

    async def _obey_supervisor_message(self, message: messages.Message) -> None:
        match message:
            case messages.Beat():
                pass
            case messages.ReservePort():
                await self.channel.send(messages.PortReserved(port=self._reserve_port()))
            case messages.StartRound():
                earlier = None if self.ranks is None else self.ranks.hangs
                await self._end_leftover_processes()
                self.ranks = LocalRanks(
                    outlook=self.outlook,
                    order=message,
                    tell=self.send_to_supervisor,
                    earlier=earlier,
                    fork_server=self.fork_server,
                    reports=self.reports,
                )
                await self.ranks.start()
            case messages.Prepare() | messages.BringOut() | messages.Inspect() | messages.MeasurePairs():
                self._run_in_background(self._follow_order_on_node(message))
            case messages.SaveStacks():
                if self.ranks is not None:
                    self._run_in_background(self.ranks.send_and_save_stacks(message.request))
            case messages.StopRound():
                self._run_in_background(self._stop_ranks(message.grace_s))
            case messages.StoreAddress() | messages.Notice() | messages.Prune() | messages.StartProfile():
                if self.ranks is not None:
                    self.ranks.forward_to_ranks(message)
            case _:
                raise ChannelError(f"an agent cannot follow {type(message).__name__}")

    async def _follow_order_on_node(self, order: NodeOrder) -> None:
        if isinstance(order, messages.Prepare | messages.BringOut):
            if self.feature is not None:
                self.feature.follow(order)
            return
        if isinstance(order, messages.MeasurePairs):
            await self.send_to_supervisor(await measure_rates_with_paired_nodes(order))
            return
        outlook = self.outlook
        probe = build_node_inspection_order(order, outlook.settings, outlook.run)
        await self.send_to_supervisor(await inspect_node(order, probe, self.xids))

    async def _stop_ranks(self, grace_s: float) -> None:
        if self.ranks is not None:
            await self.ranks.stop(grace_s)

    async def _end_leftover_processes(self) -> None:
        """End what the ranks of the round before have started; at once if one of them failed."""
        if self.ranks is None:
            return
        processes, self.ranks = self.ranks.processes.values(), None
        codes = {process.returncode for process in processes}
        grace_s = _LEAVE_S if codes <= {0, LEFT_CODE} else 0.0
        pids = {process.pid for process in processes}
        stay = len(await run_in_thread(lambda: end_orphans(pids, grace_s)))
        if self.fork_server is not None:
            stay += await self.fork_server.end_leftover_processes(grace_s)
        if stay:
            words = f"{format_count(stay, 'process')} started by ranks cannot be stopped"
            await self.send_to_supervisor(messages.Warn(message=f"{words} on {self.outlook.node}"))

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reserve_port(self) -> int:
        """Hold a port that the kernel gives to no other process, but that a rank can bind.

        The socket is bound, never listens, and has SO_REUSEADDR: the kernel does not give its port to
        processes that ask for any port, while a store (which also sets SO_REUSEADDR) may bind it.
        """
        if self.reserved is not None:
            self.reserved.close()
        self.reserved = socket.socket(socket.AF_INET)
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("", 0))
        return int(self.reserved.getsockname()[1])

    async def send_to_supervisor(self, message: messages.Message) -> None:
        """Send to the supervisor; do nothing if it is gone (serve() notices) or was given up."""
        if isinstance(message, messages.Saved):  # without what this node was suspended for
            paused_s = self.reports.pauses.count_paused_seconds(message.duration_s)
            stall_s = max(message.stall_s - paused_s, 0.0)
            duration_s = max(message.duration_s - paused_s, 0.0)
            message = replace(message, stall_s=stall_s, duration_s=duration_s)
        if self._alone:
            return
        self._said_at = time.monotonic()
        with contextlib.suppress(OSError):
            await self.channel.send(message)

    def warn_of_gpu_event(self, loop: asyncio.AbstractEventLoop, event: TelemetryEvent) -> None:
        """Warn of what happened to this node's GPUs, once; called in the sampler's thread."""
        if event.kind is TelemetryEventKind.xid and len(self.xids) < _MOST_XIDS:
            self.xids.append(XidSeen(uuid=event.uuid, code=event.code or 0))
        words = format_event_warning(event, self.outlook.node)
        if words is None or words in self._warned or len(self._warned) >= _MOST_WARNINGS:
            return
        self._warned.add(words)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            asyncio.run_coroutine_threadsafe(self.send_to_supervisor(messages.Warn(message=words)), loop)

    def report_signal_to_supervisor(self, number: int) -> None:
        """Pass a signal on: Slurm sends some notices only to the step, not to the batch side."""
        name = signal.Signals(number).name
        self._run_in_background(self.send_to_supervisor(messages.Noticed(signal=name)))


def _look_at_container(
    launch: Launch, index: int, settings: LaunchConfig, config: Mapping[str, Any]
) -> ContainerCheck | None:
    """Return what the feature that started this agent in a container finds there; None without one."""
    hooks = find_run_hooks(settings, config, "check_container")
    return next((check(launch=launch, index=index, settings=settings) for check in hooks), None)


async def run_agent(launch: Launch, index: int, attempt: int, forks: socket.socket | None = None) -> int:
    """Take part in an attempt as this node's agent; return the exit code.

    `forks` is a connection to a fork server.
    """
    run = LaunchPaths(launch.folder).run(index)
    settings, config = load_run_settings(launch, index)
    secrets = read_secrets(launch.paths, index, settings)
    settings = disable_restarts_in_foreground(settings, copy_environment())
    paths = run.attempt(attempt)
    seen = run_variables(launch, index, settings, secrets, copy_environment())
    set_environment_variables(
        {name: seen[name] for name in (GPUS_ASKED, *OF_SLURM, *VISIBLE) if name in seen}
    )
    found = _look_at_container(launch, index, settings, config)
    channel = await connect_to_supervisor(paths)
    outlook = RankOutlook(
        launch=launch,
        run=run,
        attempt=paths,
        settings=settings,
        secrets=secrets,
        node=find_node_name(),
        info=rank_info(remove_image_variables(copy_environment())),
    )
    sampler = NodeSampler(
        settings=settings.observe,
        attempt=paths,
        node=find_node_name(),
        earlier=tuple(run.attempt(number) for number in range(1, attempt)),
        choice=read_gpus_given_to_run(copy_environment()),
        on_this_machine=launch.cluster.kind is ClusterKind.local,
    )
    reports = StepReports(keep=sampler.record_rank_steps)
    sampler.paused_s = reports.pauses.count_paused_seconds
    agent = Agent(channel=channel, outlook=outlook, reports=reports, container=found)
    agent.fork_server = None if forks is None else ForkServerClient(connection=forks)
    agent.feature = open_node_feature(outlook, config, agent.send_to_supervisor)
    if agent.feature is not None:
        agent.outlook = replace(outlook, prepared=agent.feature.get_variables)
    loop = asyncio.get_running_loop()
    for number in NOTICES:
        loop.add_signal_handler(number, agent.report_signal_to_supervisor, number)
    sampler.on_event = partial(agent.warn_of_gpu_event, loop)
    if copy_environment().get(SATELLITE) is None:
        sampler.start()
    else:
        # The run may have this node already, and measure it: two writers would count it twice.
        agent.on_taken = sampler.start
    try:
        code = await agent.obey_supervisor_until_shutdown()
    finally:
        await channel.close()
        if agent.fork_server is not None:
            agent.fork_server.close()
    if code == SUPERVISOR_LOST:
        words = json.loads(copy_environment().get(ON_SUPERVISOR_LOST, "[]"))
        await asyncio.to_thread(run_supervisor_lost_command, words, copy_environment())
    await asyncio.to_thread(sampler.stop)  # last, because it may wait for a file system
    return code


def main(arguments: list[str]) -> int:
    """Run the agent; print one clear line about what keeps this node from taking part."""
    folder, index, attempt = Path(arguments[0]), int(arguments[1]), int(arguments[2])

    def run() -> int:
        raise_open_file_limit()
        become_subreaper()
        launch = load_launch(folder)
        with connect_or_run_fork_server(launch, index, copy_environment()) as forks:
            return asyncio.run(run_agent(launch, index, attempt, forks))

    return run_on_node(arguments, run)
