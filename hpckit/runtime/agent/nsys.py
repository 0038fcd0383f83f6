"""Starts ranks below Nsight Systems (`nsys profile`), which has to be there from their start.

nsys is the rank's parent then, and a child of the agent: its exit code, its signals and its end have to mean
what the rank's mean. Run as `python -P -m hpckit.runtime.agent.nsys NSYS …`, this module becomes nsys.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from hpckit.model.failure import SHELL_SIGNAL, ExitReason, ExitStatement
from hpckit.model.launch import LaunchConfig
from hpckit.model.settings import ProfileTool
from hpckit.observe.sysfs import list_folder, read_small_file
from hpckit.record.layout import RoundPaths
from hpckit.runtime import stacks
from hpckit.runtime.environ import TERMINAL, copy_environment
from hpckit.runtime.left_behind import AGENT_VARIABLE, NSYS_VARIABLE, die_with_parent
from hpckit.values import dataclass, field

_OPTIONS = (
    # One window: from cudaProfilerStart to cudaProfilerStop; the rank outlives it.
    *("--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none"),
    "--wait=primary",  # data-loader workers and other children of the rank end later
    *("--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"),
    "--force-overwrite=true",
)
_DEEPEST = 4
_SUFFIX = ".nsys-rep"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """The words before a rank's own, and the variables it gets; `problem` if it has no nsys."""

    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


def plan_rank_start(
    settings: LaunchConfig, paths: RoundPaths, rank: int, variables: Mapping[str, str], node: str
) -> RankStart:
    """Return how to start a rank: below nsys if the configuration says so and the node has it."""
    planned = settings.observe.profile
    if planned.tool is not ProfileTool.nsys or rank not in planned.ranks:
        return RankStart()
    nsys = shutil.which("nsys", path=variables.get("PATH"))
    problem = ""
    if TERMINAL in copy_environment():
        problem = "a rank in the foreground uses the terminal, and starts without nsys"
    elif settings.command is not None:
        problem = "a command starts without nsys: write `nsys profile …` into the command itself"
    elif nsys is None:
        problem = f"nsys is not on the PATH of node {node}: its ranks start without it"
    if problem or nsys is None:
        return RankStart(variables={NSYS_VARIABLE: problem}, problem=problem)
    report = paths.nsys_report(rank)
    this_module = (sys.executable, "-P", "-m", "hpckit.runtime.agent.nsys")
    output = f"--output={str(report).removesuffix(_SUFFIX)}"
    return RankStart(
        words=(*this_module, nsys, "profile", *_OPTIONS, output),
        variables={NSYS_VARIABLE: str(report), AGENT_VARIABLE: str(os.getpid())},
    )


def unwrap_nsys_exit_code(code: int, said: ExitStatement | None) -> int:
    """Return the rank's own end from that of its nsys, as `Process.returncode` has it.

    A rank that has said that it returned has; what nsys reports after that is about its report. A
    shell's code for a signal (137) is that signal.
    """
    if said is not None and said.reason is ExitReason.returned:
        return 0
    number = code - SHELL_SIGNAL
    return -number if number in set(signal.Signals) else code


def find_rank_below_nsys(pid: int) -> int:
    """Return the process of a rank below this one: the one that answers a request for stacks."""
    if stacks.catches_dump_signal(pid):
        return pid
    return next(
        (child for child in _list_descendants(pid, _DEEPEST) if stacks.catches_dump_signal(child)), pid
    )


def find_process_groups(pid: int) -> set[int]:
    """Return the process groups of a process that leads its own, and of what is below it."""
    found = {pid}
    for child in _list_descendants(pid, _DEEPEST):
        try:
            found.add(os.getpgid(child))
        except OSError:
            continue
    return found


def _list_descendants(pid: int, deepest: int) -> Iterator[int]:
    for task in list_folder(Path(f"/proc/{pid}/task")):
        for child in map(int, (read_small_file(task / "children") or "").split()):
            yield child
            if deepest > 1:
                yield from _list_descendants(child, deepest - 1)


def main(words: list[str]) -> NoReturn:
    """Become nsys, which the kernel ends with the agent."""
    die_with_parent()
    os.execv(words[0], words)  # noqa: S606  # no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
