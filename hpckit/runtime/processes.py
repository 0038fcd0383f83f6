"""Finds the processes of a run on this node by their own environment or words, and signals them.

Reads /proc of this node only. Other nodes are reached through a step of the job: `python -P -m
hpckit.runtime.processes …` prints which processes it signalled. Ranks are recognised by the variables their
agent gave them, agents by their words, a supervisor by pid and start mark. Only processes of this user count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpckit.model.fault import FaultTarget
from hpckit.record.layout import LaunchPaths
from hpckit.record.process import SESSION, read_proc_stat_fields, read_process_start_id
from hpckit.runtime.fork_server.protocol import read_process_environment
from hpckit.values import dataclass

_AGENT = "hpckit.runtime.agent"
_PYTHON_WORDS = 4
"""An agent is `python -P -m hpckit.runtime.agent …`; srun has the same words further right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQuery:
    """Which process: `attempt` is the attempt's folder, below its run and launch.

    `rank` is for ranks, `node` (Slurm's name, or None for any) for agents, `process` (pid and start
    mark) for a supervisor.
    """

    target: FaultTarget
    attempt: Path
    rank: int | None = None
    node: str | None = None
    process: tuple[int, str] | None = None

    def to_command_words(self) -> tuple[str, ...]:
        """Return the command-line words for this query."""
        rank = () if self.rank is None else (f"--rank={self.rank}",)
        node = () if self.node is None else (f"--node={self.node}",)
        process = () if self.process is None else tuple(f"--process={number}" for number in self.process)
        return (self.target.value, str(self.attempt), *rank, *node, *process)


def find_processes(wanted: ProcessQuery) -> tuple[int, ...]:
    """Return the matching pids on this host."""
    if wanted.target is FaultTarget.supervisor:
        pid, mark = wanted.process or (0, "")
        return (pid,) if mark and read_process_start_id(pid) == mark else ()
    fits = _is_wanted_rank if wanted.target is FaultTarget.rank else _is_wanted_agent
    return tuple(sorted(pid for pid in _list_processes_of_user() if fits(pid, wanted)))


def signal_processes(wanted: ProcessQuery, number: int) -> tuple[int, ...]:
    """Send a signal (0: none, only look) to the matching processes; return those that got it."""
    reached = []
    for pid in find_processes(wanted):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached.append(pid)
    return tuple(reached)


def find_rank_environment(attempt: Path, node: str | None) -> Mapping[str, str]:
    """Return the variables that an agent gave a rank of this attempt here; empty without a rank.

    `node` is Slurm's name of this node, None for any: one host may stand for several nodes.
    """
    for pid in sorted(_list_processes_of_user()):
        variables = _read_rank_variables(pid)
        is_here = node in {None, variables.get("SLURMD_NODENAME")}
        if variables and is_here and _is_same_folder(variables["HPCKIT_ATTEMPT_DIR"], attempt):
            return variables
    return {}


def map_run_folders_to_processes() -> Mapping[Path, tuple[int, ...]]:
    """Return the ranks and agents that live on this host, by the real path of their run's folder.

    What a rank has started by itself is not among them, if it has left the rank's session.
    """
    found: dict[Path, list[int]] = {}
    for pid in sorted(_list_processes_of_user()):
        attempt = _read_rank_variables(pid).get("HPCKIT_ATTEMPT_DIR")
        run = _find_run_of_agent(pid) if attempt is None else Path(attempt).parent.parent
        if run is not None and read_process_start_id(pid) is not None:
            found.setdefault(Path(os.path.realpath(run)), []).append(pid)
    return {run: tuple(pids) for run, pids in found.items()}


def _find_run_of_agent(pid: int) -> Path | None:
    words = _read_command_line(pid)
    if _AGENT not in words[:_PYTHON_WORDS] or not all(map(str.isdecimal, words[-2:])):
        return None
    return LaunchPaths(Path(words[-3])).run(int(words[-2])).folder


def _list_processes_of_user() -> Iterator[int]:
    own = os.geteuid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == own:
                    yield int(entry.name)


def _is_wanted_rank(pid: int, wanted: ProcessQuery) -> bool:
    variables = _read_rank_variables(pid)
    return variables.get("HPCKIT_RANK") == str(wanted.rank) and _is_same_folder(
        variables["HPCKIT_ATTEMPT_DIR"], wanted.attempt
    )


def _is_wanted_agent(pid: int, wanted: ProcessQuery) -> bool:
    run = wanted.attempt.parent.parent
    launch = run.parent.parent
    words = _read_command_line(pid)
    return (
        _AGENT in words[:_PYTHON_WORDS]
        and words[-2:] == [str(int(run.name)), str(int(wanted.attempt.name))]
        and _is_same_folder(words[-3], launch)
        and wanted.node in {None, read_process_environment(pid).get("SLURMD_NODENAME", wanted.node)}
    )


def _is_same_folder(said: str, folder: Path) -> bool:
    """Return whether two paths are the same folder: the user may have reached it through a link."""
    try:
        return said == str(folder) or folder.samefile(said)
    except OSError:
        return False


def _read_command_line(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        text = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes())
        return text.removesuffix("\0").split("\0")
    return []


def _read_rank_variables(pid: int) -> Mapping[str, str]:
    """Return a rank's variables; none of its child: an agent gives each rank its own session."""
    variables, fields = read_process_environment(pid), read_proc_stat_fields(pid)
    named = {"HPCKIT_RANK", "HPCKIT_ATTEMPT_DIR"} <= variables.keys()
    return variables if named and fields and fields[SESSION] == str(pid) else {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Send a signal as the words say, and print the pids as a JSON list."""
    parser = argparse.ArgumentParser(prog="python -m hpckit.runtime.processes")
    parser.add_argument("signal", type=int)
    parser.add_argument("target", type=FaultTarget)
    parser.add_argument("attempt", type=Path)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--node")
    parser.add_argument("--process", action="append")
    given = parser.parse_args(arguments)
    wanted = ProcessQuery(
        target=given.target,
        attempt=given.attempt,
        rank=given.rank,
        node=given.node,
        process=(int(given.process[0]), given.process[1]) if given.process else None,
    )
    print(json.dumps(signal_processes(wanted, signal.Signals(given.signal) if given.signal else 0)))  # noqa: T201


if __name__ == "__main__":
    main()
