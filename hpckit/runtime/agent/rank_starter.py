"""What the ranks of one node need to know of their run, their variables, and how they start.

Their variables also ask NCCL and torch's flight recorder to keep what shows why a hang or a slow
network came about. The user's own win. Names differ between releases of torch, so they follow the
one that is installed; it is not imported for that. A rank is forked where the agent may use a fork
server; else Python is started, below nsys if that is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hpckit.model import messages
from hpckit.model.cluster.gpus_asked import count_cpus_per_rank, requested_gpus_per_node
from hpckit.model.counted import format_ranges
from hpckit.model.failure import Cause
from hpckit.model.launch import ClusterKind, DeviceKind, LaunchConfig, NumaBinding
from hpckit.model.plain import to_plain
from hpckit.model.plan import SecretVariables
from hpckit.model.rank import RankInfo
from hpckit.observe.gpus import read_gpu_cpus
from hpckit.planning.jobs.cpu_binding import CpuBinding, plan_cpu_binding
from hpckit.planning.tracker import build_rank_tracker_env_variables
from hpckit.record.launches import Launch
from hpckit.record.layout import NCCL_TRACE, AttemptPaths, RoundPaths, RunPaths
from hpckit.record.store import PRIVATE_FILE
from hpckit.runtime.agent.nsys import RankStart
from hpckit.runtime.channel import rank_pipe
from hpckit.runtime.channel.listen import interface_if_hostname_unreachable
from hpckit.runtime.channel.pace import BEAT_S, message_interval_s
from hpckit.runtime.environ import TERMINAL, copy_environment, rank_variables, srun_rank_variables
from hpckit.runtime.fork_server.client import ForkedRank, ForkServerClient
from hpckit.runtime.fork_server.server import rank_command
from hpckit.runtime.run_variables import run_variables
from hpckit.runtime.threads import run_in_thread, run_in_thread_within
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutlook:
    """What every rank of this node needs to know of its run."""

    launch: Launch
    run: RunPaths
    attempt: AttemptPaths
    settings: LaunchConfig
    secrets: SecretVariables
    node: str
    info: RankInfo
    prepared: Callable[[], Mapping[str, str]] = dict
    """Returns the variables of what was prepared on this node."""

    def message_interval_s(self, least_s: float = BEAT_S) -> float:
        """Return the interval between this node's messages to the supervisor, in seconds."""
        limit_s = self.settings.runtime.node_timeout_s
        return message_interval_s(self.info.world_size, limit_s, least_s=least_s)

    def build_shared_variables(
        self, environ: Mapping[str, str], order: messages.StartRound
    ) -> dict[str, str]:
        """Return the environment that all ranks of this node share.

        It may ask the network for the name of this host: call it in a thread.
        """
        index, cost = int(self.run.folder.name), order.save_cost
        return {
            **_build_network_interface_variables(order),
            **run_variables(self.launch, index, self.settings, self.secrets, environ),
            **self.prepared(),
            "TORCHELASTIC_RUN_ID": self.run.folder.name,
            "TORCHELASTIC_MAX_RESTARTS": str(self.settings.recovery.restarts.get(Cause.signal, 0)),
            "HPCKIT_ATTEMPT_DIR": str(self.attempt.folder),
            "HPCKIT_ROUND": str(order.round),
            "HPCKIT_MTBF_HOURS": str(order.mtbf_hours),
            "HPCKIT_SAVE_COST": "" if cost is None else json.dumps(to_plain(cost)),
        }

    def build_identity_variables(self, info: RankInfo, order: messages.StartRound) -> dict[str, str]:
        """Return the variables that say who a rank is: torch's, in a job a task's, a tracker's."""
        given = {**self.settings.env, **self.secrets.env}
        tracked = build_rank_tracker_env_variables(self.settings.tracker, info.rank, given)
        own = rank_variables(info) | tracked
        if self.launch.cluster.kind is ClusterKind.local:
            return own
        return own | srun_rank_variables(info, order.nodes, count_cpus_per_rank(self.settings.resources))


def _build_network_interface_variables(order: messages.StartRound) -> dict[str, str]:
    """Return what tells gloo, and where it has to be told NCCL, by which interface ranks meet.

    Else gloo listens at the address of the host's name: on one node other hosts need not reach it,
    and on several nodes they have to.
    """
    if order.num_nodes == 1:
        return {"GLOO_SOCKET_IFNAME": "lo"}
    name = interface_if_hostname_unreachable(order.address) if order.address else None
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}


_NEW_NAMES = (2, 9)
"""From this torch on the flight recorder's variables begin with TORCH_FR."""

_COLLECTIVES = 2000
"""How many of its latest collectives each rank remembers: some steps of a large model."""


_SKIP_CLEAN_UP = "3"
"""The watchdog ends the process at a time-out without aborting NCCL first, which can hang and then
leaves no dump. It is torch's default since 2.1; some images set 1."""


def add_nccl_defaults(
    variables: Mapping[str, str], settings: LaunchConfig, paths: RoundPaths, rank: int
) -> dict[str, str]:
    """Return a rank's variables with those that nobody has set; on CPUs only how much gloo keeps.

    At a time-out of NCCL each rank writes what it was waiting for. Rank 0 alone writes which
    network NCCL chose, because every rank would write thousands of lines. Who sets NCCL_DEBUG wants
    its lines where they were: then none of the three is set.
    """
    new = _read_torch_version() >= _NEW_NAMES
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    old_names = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    size, prefix = names if new else old_names
    if settings.runtime.device is DeviceKind.cpu or not requested_gpus_per_node(settings.resources):
        alone = settings.resources.nodes * settings.resources.tasks_per_node == 1
        return {**({} if alone or not new else {size: str(_COLLECTIVES)}), **variables}
    defaults = {
        size: str(_COLLECTIVES),
        prefix: str(paths.rank_folder(rank) / NCCL_TRACE),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": _SKIP_CLEAN_UP,
    }
    told = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
    told["NCCL_DEBUG_FILE"] = str(paths.nccl_log)
    if rank == 0 and not told.keys() & variables.keys():
        defaults |= told
    return {**defaults, **variables}


@cache
def _read_torch_version() -> tuple[int, ...]:
    try:
        found = re.match(r"(\d+)\.(\d+)", version("torch"))
    except PackageNotFoundError:
        found = None
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


_PATIENCE_S = 5.0
"""For a driver; ranks start without a binding if it does not answer."""


async def choose_rank_cpus(settings: LaunchConfig, environ: Mapping[str, str], ranks: int) -> CpuBinding:
    """Return the CPUs of each rank; free of any if the run has no GPUs or does not want it."""
    free = CpuBinding(cpus=(frozenset(),) * ranks)
    if settings.runtime.numa_binding is NumaBinding.off or not requested_gpus_per_node(settings.resources):
        return free
    found = await run_in_thread_within(_PATIENCE_S, lambda: read_gpu_cpus(environ), None)
    return free if found is None else plan_cpu_binding(found, os.sched_getaffinity(0), ranks)


def pin_process_to_cpus(pid: int, cpus: frozenset[int]) -> None:
    """Let a process that has just started, and all that it will start, run on these CPUs only."""
    if cpus:
        with contextlib.suppress(OSError):  # it has ended, or its cgroup has lost these CPUs
            os.sched_setaffinity(pid, cpus)


def explain_poor_cpu_binding(binding: CpuBinding, first_rank: int, node: str) -> str:
    """Return the warning about ranks whose GPU has no, or too few, CPUs of the job next to it."""
    ranked = format_ranges(first_rank + place for place in binding.far or binding.scarce)
    if binding.far:
        problem = f"the job has no CPU on {node} next to the GPU of rank {ranked}"
        then = "its data goes through the other socket"
    elif binding.scarce:
        problem = f"the job has too few CPUs on {node} next to the GPUs of rank {ranked}"
        then = "all ranks there run on all of its CPUs"
    else:
        return ""
    return (
        f"{problem}: {then}; ask Slurm for CPUs next to GPUs "
        "(+resources.additional_parameters.gres_flags=enforce-binding), or for whole nodes "
        "(resources.exclusive=true)"
    )


RankChild = asyncio.subprocess.Process | ForkedRank


async def start_rank(
    start: RankStart,
    log: Path,
    variables: Mapping[str, str],
    lines: Mapping[str, int],
    cpus: frozenset[int],
    fork_server: ForkServerClient | None,
) -> tuple[RankChild, socket.socket]:
    """Start a rank that inherits these open files; `lines` are the variables that name them.

    Returns its process and this end of its line to the agent; raises OSError.
    """
    ours, theirs = socket.socketpair()
    terminal = copy_environment().get(TERMINAL)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = await run_in_thread(lambda: os.open(log, flags, PRIVATE_FILE))
    if terminal is not None:
        # The process that shows the terminal also writes the log.
        os.close(file)
        file = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    inherited = {rank_pipe.VARIABLE: theirs.fileno(), **lines}
    own = {**variables, **start.variables}
    try:
        process: RankChild | None = None
        if fork_server is not None and not start.words and terminal is None:
            process = await fork_server.start_rank(own, file, inherited, sorted(cpus))
        if process is None:  # without a fork server, or if it needs a process of its own
            named = {name: str(number) for name, number in inherited.items()}
            process = await asyncio.create_subprocess_exec(
                *start.words,
                *rank_command(sys.executable),
                stdin=asyncio.subprocess.DEVNULL if terminal is None else file,
                stdout=file,
                stderr=file,
                env={**variables, **named, **start.variables},
                pass_fds=tuple(inherited.values()),
                start_new_session=True,
            )
            pin_process_to_cpus(process.pid, cpus)
    finally:
        theirs.close()
        os.close(file)
    ours.setblocking(False)  # noqa: FBT003  # the socket's own signature
    return process, ours
