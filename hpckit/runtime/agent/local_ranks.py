"""The ranks of one node in one round: their processes, lines, logs and exit records.

Starts, watches and ends processes; when to do so is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from hpckit.errors import ChannelError
from hpckit.model import messages
from hpckit.model.failure import RankExit, RankStack, signal_name
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.rank import RankInfo, RankSource
from hpckit.planning.jobs.cpu_binding import CpuBinding
from hpckit.planning.recovery.classify import add_exception_from_log
from hpckit.planning.recovery.ends import add_exit_reason, prefer_stated_exit_code
from hpckit.record.layout import RoundPaths
from hpckit.record.store import PRIVATE_FILE, make_private_folder, read_json, read_last_lines, write_json
from hpckit.runtime import stacks
from hpckit.runtime.agent import exhausted, nsys, rank_starter
from hpckit.runtime.agent.collective_statements import CollectiveStatements
from hpckit.runtime.agent.command_silence import watch_command_silence
from hpckit.runtime.agent.hang_detector import StepWatch
from hpckit.runtime.agent.meeting import Meeting
from hpckit.runtime.agent.printed_log import PrintedReader, start_printed_metrics_reader
from hpckit.runtime.agent.step_reports import StepReports
from hpckit.runtime.channel import rank_pipe
from hpckit.runtime.channel.tcp import LINE_LIMIT
from hpckit.runtime.clock import now
from hpckit.runtime.environ import TERMINAL, copy_environment
from hpckit.runtime.foreground import RELAY_S
from hpckit.runtime.fork_server.client import ForkServerClient
from hpckit.runtime.threads import run_in_thread, run_in_thread_within, start_task_fatal_on_error
from hpckit.values import dataclass, field, replace

_TELL_S = 0.5
"""Minimum time between step messages: the supervisor needs liveness, not every number."""
_STACKS = timedelta(seconds=5)
_STACK_CHARACTERS = 20_000
_ALL_STACKS_CHARACTERS = 32_000_000
"""For all ranks together: the supervisor keeps them to compare. The main thread comes last."""
_LOG_LINES = 200

_READ_S = 3.0
"""How long a rank's end waits for what it left in files; less than the supervisor waits."""

Tell = Callable[[messages.Message], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class LocalRanks:
    """The ranks of this node in one round."""

    outlook: rank_starter.RankOutlook
    order: messages.StartRound
    tell: Tell
    earlier: StepWatch | None = None
    fork_server: ForkServerClient | None = None
    reports: StepReports = field(default_factory=StepReports)
    processes: dict[int, rank_starter.RankChild] = field(default_factory=dict, init=False)
    _lines: dict[int, socket.socket] = field(default_factory=dict, init=False)
    _boards: dict[int, int] = field(default_factory=dict, init=False)
    _answers: dict[int, int] = field(default_factory=dict, init=False)
    _collectives: CollectiveStatements = field(init=False)
    _told_step: int = field(default=-1, init=False)
    _newest: messages.StepBegun | None = field(default=None, init=False)
    _told_at: float = field(default=0.0, init=False)
    hangs: StepWatch = field(init=False)
    _kills: exhausted.OomKills = field(default=(), init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _stopping: bool = field(default=False, init=False)
    _sent: set[tuple[int, str]] = field(default_factory=set, init=False)
    _under_nsys: set[int] = field(default_factory=set, init=False)
    _without_nsys: bool = field(default=False, init=False)
    _binding: CpuBinding = field(init=False)
    _meeting: Meeting = field(init=False)
    _printed: PrintedReader = field(default_factory=PrintedReader, init=False)

    def __post_init__(self) -> None:
        limits = self.outlook.settings.runtime
        self.hangs = StepWatch(
            floor_s=limits.hang_min_s, factor=limits.hang_factor, first_s=limits.hang_first_s
        )
        if self.earlier is not None:
            self.hangs.take_over_learned_step_gaps(self.earlier)
        self._collectives = CollectiveStatements(paths=self.paths, node=self.outlook.node)
        self._meeting = Meeting(self.outlook, self.order, self.processes)

    @property
    def paths(self) -> RoundPaths:
        """The paths of this round's logs and exit records."""
        return self.outlook.attempt.round(self.order.round)

    async def start(self) -> None:
        """Start all ranks of this node and begin to watch them."""
        first, count = self.order.first_rank, self.order.local_world_size
        for folder in sorted({self.paths.rank_folder(rank) for rank in range(first, first + count)}):
            await run_in_thread(partial(make_private_folder, folder))
        self._kills, settings = exhausted.read_oom_kill_counts(), self.outlook.settings
        shared_variables = partial(self.outlook.build_shared_variables, copy_environment(), self.order)
        shared = await run_in_thread(shared_variables)
        wanted = settings.observe.printed_metrics if first == 0 else []
        self._printed = await start_printed_metrics_reader(self.outlook.attempt, self.order.round, wanted)
        self._binding = await rank_starter.choose_rank_cpus(settings, shared, count)
        words = rank_starter.explain_poor_cpu_binding(self._binding, first, self.outlook.node)
        if words and self.order.round == 0:
            await self.tell(messages.Warn(message=words))
        for info in map(self._build_rank_info, range(count)):
            of_nccl = rank_starter.add_nccl_defaults(shared, settings, self.paths, info.rank)
            await self._start_rank(info, of_nccl | self.outlook.build_identity_variables(info, self.order))
            if self.hangs.has_seen_steps:
                self.hangs.note_work_outside_steps(info.rank, time.monotonic())
        self._tasks.append(start_task_fatal_on_error(self._meeting.watch_until_ranks_connect()))
        silence = watch_command_silence(self.outlook, self.order, self.processes, self.hangs, self.tell)
        self._tasks.append(start_task_fatal_on_error(silence))

    def _build_rank_info(self, local_rank: int) -> RankInfo:
        order = self.order
        return RankInfo(
            rank=order.first_rank + local_rank,
            world_size=order.world_size,
            local_rank=local_rank,
            local_world_size=order.local_world_size,
            node_rank=order.node_rank,
            num_nodes=order.num_nodes,
            source=RankSource.agent,
            node=self.outlook.node,
            restart_count=order.round,
            master_addr=order.master_addr,
            master_port=order.master_port,
        )

    async def _start_rank(self, info: RankInfo, variables: Mapping[str, str]) -> None:
        board = self._boards[info.rank] = rank_pipe.make_shared_step_file()
        answers = self._answers[info.rank] = os.memfd_create(stacks.FILE_NAME)
        recorder = self._collectives.open_socket_for_rank(info.rank)
        lines = {
            rank_pipe.BOARD_VARIABLE: board,
            stacks.VARIABLE: answers,
            rank_pipe.COLLECTIVES_VARIABLE: recorder.fileno(),
        }
        start = await self._plan_rank_start(info.rank, variables)
        cpus, log = self._binding.cpus[info.local_rank], self.paths.rank_log(info.rank)
        try:
            starting = rank_starter.start_rank(start, log, variables, lines, cpus, self.fork_server)
            process, line = await starting
        finally:
            recorder.close()
        if start.words:
            self._under_nsys.add(info.rank)
        self.processes[info.rank], self._lines[info.rank] = process, line
        listening = start_task_fatal_on_error(self._listen_to_rank(info.rank, line))
        self._tasks += [
            listening,
            start_task_fatal_on_error(self._await_and_report_rank_end(info.rank, listening)),
        ]

    async def _plan_rank_start(self, rank: int, variables: Mapping[str, str]) -> nsys.RankStart:
        """Return how to start a rank; warn, once, if it should be below nsys and cannot."""
        settings, node = self.outlook.settings, self.outlook.node
        start = await run_in_thread(lambda: nsys.plan_rank_start(settings, self.paths, rank, variables, node))
        if start.problem and not self._without_nsys:
            await self.tell(messages.Warn(message=start.problem))
        self._without_nsys = self._without_nsys or bool(start.problem)
        return start

    async def _listen_to_rank(self, rank: int, line: socket.socket) -> None:
        """Pass on a rank's messages. Forged or broken lines end the listening, not the agent."""
        reader, writer = await asyncio.open_unix_connection(sock=line, limit=LINE_LIMIT)
        with contextlib.suppress(ChannelError, ConnectionError, ValueError):
            while data := await reader.readline():
                await self._handle_rank_message(rank, messages.decode_message(data))
        writer.close()

    async def _handle_rank_message(self, rank: int, message: messages.Message) -> None:
        match message:
            case messages.StepBegun():
                self.hangs.note_step_begin(rank, message.step, time.monotonic())
                if self._newest is None or message.step > self._newest.step:
                    self._newest = replace(message, rank=rank)
                await self.send_newest_step()
            case messages.Working():
                self.hangs.note_work_outside_steps(rank, time.monotonic(), over=message.over)
            case messages.StepsTimed():
                steps = replace(message.steps, rank=rank, node=self.outlook.node)
                self.reports.add_report(steps, self.order.round)
            case messages.Profiled():
                profile = replace(message.profile, rank=rank, node=self.outlook.node)
                await self.tell(replace(message, round=self.order.round, profile=profile))
            case messages.LayoutTold():
                await self.tell(replace(message, rank=rank, round=self.order.round))
            case messages.Watched(on=True):
                self.hangs.note_resume(rank, time.monotonic())
            case messages.Watched():
                self.hangs.note_pause(rank)
            case (
                messages.StoreBound()
                | messages.Restoring()
                | messages.Saved()
                | messages.Warn()
                | messages.Reported()
            ):
                await self.tell(message)
            case _:
                pass

    async def send_newest_step(self) -> None:
        """Pass on the newest step of all ranks here, not too often.

        Call it now and then, as no later one may come.
        """
        at, newest, first = time.monotonic(), self._newest, self._told_step < 0
        due = not first and at - self._told_at >= self.outlook.message_interval_s(_TELL_S)
        step = max(
            [self._read_current_step(process) or 0 for process in self.processes] if due else [], default=-1
        )
        if newest is not None and (first or step > self._told_step):
            self._told_step, self._told_at = newest.step if first else step, at
            await self.tell(replace(newest, step=self._told_step, usual_s=self.hangs.usual_step_gap_s()))

    def find_hung_rank(self) -> messages.Hung | None:
        """Return a rank that has stood still beyond its limit; call it at a steady interval."""
        stall = self.hangs.find_stalled_rank(time.monotonic())
        if stall is None or self._stopping or not self.outlook.settings.runtime.hang_min_s:
            return None
        exact = self._read_current_step(stall.rank)
        stall = stall if exact is None else replace(stall, step=exact)
        return messages.Hung(round=self.order.round, stall=stall)

    async def send_and_save_stacks(self, request: int = 0) -> None:
        """Send what every rank is doing to the supervisor; save it in files unless requested."""
        alive = {rank: one for rank, one in self.processes.items() if one.returncode is None}
        pids = {
            rank: nsys.find_rank_below_nsys(process.pid) if rank in self._under_nsys else process.pid
            for rank, process in alive.items()
        }
        # Own descriptors: a rank may end meanwhile, and the number of its file be reused.
        held = {rank: os.dup(self._answers[rank]) for rank in pids if rank in self._answers}
        asking = asyncio.ensure_future(self._send_collectives(() if request else pids))
        try:
            files = {rank: Path(f"/proc/self/fd/{one}") for rank, one in held.items()}
            texts = await stacks.collect_rank_stacks(pids, files, _STACKS)
            await asking
        finally:
            asking.cancel()
            for report in held.values():
                os.close(report)
        most = min(_STACK_CHARACTERS, _ALL_STACKS_CHARACTERS // self.order.world_size)
        # One message per rank: the stacks of a large node do not fit into one line.
        for rank, pid in pids.items():
            stack = RankStack(
                rank=rank,
                node=self.outlook.node,
                state=stacks.describe_process_state(pid),
                step=self._read_current_step(rank),
                text=texts[rank][-most:],
            )
            saved = messages.StackSaved(round=self.order.round, stack=stack, request=request)
            await self.tell(saved)
        await self.tell(messages.StacksSaved(round=self.order.round, request=request))
        if not request:  # else the supervisor writes all of them into one file
            with contextlib.suppress(OSError):
                await run_in_thread(lambda: self._write_stacks(texts))

    async def _send_collectives(self, ranks: Iterable[int]) -> None:
        """Send what these ranks say of their collectives; stopped ones cannot say anything."""
        states = {rank: stacks.describe_process_state(self.processes[rank].pid) for rank in ranks}
        alive = [rank for rank, state in states.items() if state[:1] not in {"T", "t"}]
        for statement in await self._collectives.ask_ranks_for_collectives(alive):
            await self.tell(messages.CollectivesTold(round=self.order.round, collectives=statement))

    def _write_stacks(self, texts: Mapping[int, str]) -> None:
        for rank, text in texts.items():
            if text:
                flags, path = os.O_WRONLY | os.O_CREAT | os.O_APPEND, self.paths.rank_stacks_file(rank)
                with os.fdopen(os.open(path, flags, PRIVATE_FILE), "w") as file:
                    file.write(text)

    async def _await_and_report_rank_end(self, rank: int, listening: asyncio.Task[None]) -> None:
        code = await self.processes[rank].wait()
        ended_at = now()
        said = rank_pipe.read_exit_statement(self._boards[rank])
        code = prefer_stated_exit_code(
            nsys.unwrap_nsys_exit_code(code, said) if rank in self._under_nsys else code, said
        )
        self.hangs.note_rank_end(rank)
        # Its children: data loaders, background jobs of a shell.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.processes[rank].pid, signal.SIGKILL)
        # Its final events came before its end; what still holds the line open is not the rank.
        await asyncio.wait({listening}, timeout=0.2)
        listening.cancel()
        if TERMINAL in copy_environment():
            await asyncio.sleep(RELAY_S)
        record = await self._build_exit_record(rank, code, ended_at)
        os.close(self._boards.pop(rank))
        os.close(self._answers.pop(rank))
        self._collectives.close_socket_of_rank(rank)
        if record.failed:
            left = await run_in_thread_within(
                _READ_S, lambda: self._collectives.read_collectives_left_by_rank(rank), None
            )
            if left is not None:
                await self.tell(messages.CollectivesTold(round=self.order.round, collectives=left))
        alone = self._meeting.seconds_without_rendezvous
        alone_s = 0.0 if code else await run_in_thread_within(_READ_S, alone, 0.0)
        is_urgent = self._stopping or record.code != 0
        if rank == 0 and (words := await self._printed.finish_reading(is_urgent=is_urgent)):
            await self.tell(messages.Warn(message=words))
        ended = messages.RankEnded(round=self.order.round, exit=record, alone_s=alone_s)
        await self.tell(ended)
        if record.failed and not record.stopped:
            with contextlib.suppress(OSError):  # the supervisor records the same
                await run_in_thread(
                    lambda: write_json(self.paths.rank_exception_file(rank), to_plain(record))
                )

    def _read_current_step(self, rank: int) -> int | None:
        """Return the current step of a rank; its messages are too rare to compare ranks by."""
        return rank_pipe.read_shared_step(self._boards[rank]) if rank in self._boards else None

    async def _build_exit_record(self, rank: int, code: int, ended_at: datetime) -> RankExit:
        """Combine the process status with what the rank itself left behind."""
        said = await run_in_thread_within(_READ_S, lambda: self._read_exit_record(rank), None)
        name = signal_name(-code) if code < 0 else None
        ended_by_us = (rank, name) in self._sent and said is None
        killed = code and not ended_by_us
        seen = RankExit(
            rank=rank,
            node=self.outlook.node,
            code=None if code < 0 else code,
            signal=name,
            step=self._read_current_step(rank),
            stopped=ended_by_us,
            oom=exhausted.explain_oom_kill(self._kills, exhausted.read_oom_kill_counts()) if killed else None,
            at=ended_at,
        )
        if said is not None:
            step = seen.step if said.step is None else said.step
            seen = replace(said, node=seen.node, code=seen.code, signal=seen.signal, step=step, oom=seen.oom)
        elif code:
            log = self.paths.rank_log(rank)
            seen = add_exception_from_log(
                seen, await run_in_thread_within(_READ_S, lambda: read_last_lines(log, _LOG_LINES), "")
            )
            if seen.exception is None and code > 0:
                words = await run_in_thread_within(
                    _READ_S, lambda: exhausted.explain_full_disk_of_folder(self.paths.folder), ""
                )
                if words:
                    message = "\n".join(filter(None, (words, seen.message)))
                    seen = replace(seen, exception="FullDiskError", message=message)
        is_command = self.outlook.settings.command is not None
        return add_exit_reason(seen, rank_pipe.read_exit_statement(self._boards[rank]), is_command=is_command)

    def _read_exit_record(self, rank: int) -> RankExit | None:
        try:
            return from_plain(RankExit, read_json(self.paths.rank_exception_file(rank)))
        except (OSError, ValueError, TypeError):
            return None

    def forward_to_ranks(self, message: messages.Message) -> None:
        """Forward a message of the supervisor to every rank, or to those that it names."""
        for rank, line in self._lines.items():
            if isinstance(message, messages.StartProfile) and rank not in message.ranks:
                continue
            with contextlib.suppress(OSError):
                line.send(messages.encode_message(message) + b"\n")

    async def stop(self, grace_s: float) -> None:
        """End all ranks and their children: SIGTERM, then SIGKILL after the grace period."""
        self._stopping = True
        self._printed.limit_remaining_time()
        self._signal_ranks(signal.SIGTERM)
        waiting = [asyncio.ensure_future(process.wait()) for process in self.processes.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=grace_s)
        self._signal_ranks(signal.SIGKILL)
        await asyncio.gather(*waiting)

    def _signal_ranks(self, number: signal.Signals) -> None:
        for rank, process in self.processes.items():
            if process.returncode is not None:
                continue  # its number may belong to another process by now
            self._sent.add((rank, number.name))
            below = rank in self._under_nsys
            for group in nsys.find_process_groups(process.pid) if below else (process.pid,):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, number)
