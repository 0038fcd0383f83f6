"""What ranks were doing when they hung: their stacks, and their state in the kernel.

Holds the request (the agent's side) and the answer (the rank's side). Imports no torch. The answer needs
neither the GIL nor a running interpreter: faulthandler writes it in a C signal handler. A rank that is
stopped or inside an uninterruptible system call cannot answer; the kernel's state shows that instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import re
import signal
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from hpckit.observe.sysfs import list_folder, read_small_file
from hpckit.patterns import lazy_pattern
from hpckit.record.store import PRIVATE_FILE

DUMP_SIGNAL = signal.SIGRTMIN + 3
"""Asks a rank for its stacks.

Every ordinary signal already has a meaning in a training process: USR1 and USR2 are notices (Slurm,
submitit) and profilers' triggers, QUIT belongs to the terminal. Real-time signals have none; the
first few are often taken (examples use SIGRTMIN itself).
"""

VARIABLE = "HPCKIT_STACKS"
"""Names the descriptor of the file that a rank answers into.

The file is in memory, because most ranks never answer, and because the ranks may hang on a file
system that does not answer.
"""

FILE_NAME = "hpckit-stacks"

_POLL_S = 0.05
_SETTLED_S = 0.2
"""A dump that has not grown for this long counts as complete: it has no end mark."""
_MOST_BYTES = 256 * 1024
"""Kept of one dump, from its end: the main thread comes last."""

_OWN_THREAD = lazy_pattern(
    r'^Thread 0x[0-9a-f]+.*\n  File "[^"\n]*/hpckit/runtime/rank/recorder\.py".*\n(?:  .*\n)*\n?',
    re.MULTILINE,
)
"""The thread in which a rank waits for its agent's questions: it is of no use to the reader."""

_files: list[TextIO] = []
"""Keeps the dump file open: faulthandler holds its descriptor only."""


def enable_stack_dumps(file: Path) -> None:
    """Answer DUMP_SIGNAL from now on by appending the stacks of all threads to this file.

    System calls that the kernel can restart continue (signal(7)). If the file cannot be opened, the
    rank stays unarmed and is not asked: a run is worth more than its stacks.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
        stream = os.fdopen(descriptor, "w")
        faulthandler.register(DUMP_SIGNAL, stream, all_threads=True, chain=False)
        stream.write("armed\n")
        stream.flush()
        for earlier in _files:
            earlier.close()
        _files[:] = [stream]


def enable_rank_stack_dumps(environ: Mapping[str, str]) -> None:
    """Arm this process with the file that its agent has handed it; without one, do nothing.

    A program between agent and rank may have closed the file, and its number be another one's.
    """
    file = Path(f"/proc/self/fd/{environ.get(VARIABLE, '')}")
    with contextlib.suppress(OSError):
        if file.readlink().name == f"memfd:{FILE_NAME} (deleted)":  # as Linux names it
            enable_stack_dumps(file)


def catches_dump_signal(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether this process catches DUMP_SIGNAL; the signal would end any other process."""
    caught = _read_status_fields(proc / str(pid)).get("SigCgt", "0")
    return bool(int(caught, 16) >> (DUMP_SIGNAL - 1) & 1)


async def collect_rank_stacks(
    pids: Mapping[int, int], files: Mapping[int, Path], wait: timedelta
) -> dict[int, str]:
    """Return each rank's stacks, by rank; empty for one that cannot answer within `wait`.

    `pids` and `files` are those of the ranks' processes and of their `enable_stack_dumps()`. All ranks that
    have called it are asked at once: a program that catches every signal may pass this one on to a process
    that it ends. A stopped process answers when it continues.
    """
    armed = {rank: size for rank in pids if (size := _file_size(files[rank]) if rank in files else 0)}
    sizes = {rank: size for rank, size in armed.items() if catches_dump_signal(pids[rank])}
    for rank in list(sizes):
        try:
            os.kill(pids[rank], DUMP_SIGNAL)
        except (ProcessLookupError, PermissionError):
            del sizes[rank]
    # A stopped process will not answer: do not let it use up the wait of all.
    running = [rank for rank in sizes if _read_process_state(Path("/proc") / str(pids[rank]))[:1] != "T"]
    await _await_dumps_complete({files[rank]: sizes[rank] for rank in running}, wait)
    texts = {
        rank: _read_file_after_offset(files[rank], sizes[rank]) if rank in sizes else "" for rank in pids
    }
    return {rank: _OWN_THREAD.sub("", text) for rank, text in texts.items()}


async def _await_dumps_complete(before: Mapping[Path, int], wait: timedelta) -> None:
    """Wait until every file has grown and stopped growing, or until the wait is over."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + wait.total_seconds()
    seen, since = dict(before), clock()
    while clock() < deadline:
        sizes = {file: _file_size(file) for file in before}
        if sizes != seen:
            seen, since = sizes, clock()
        grown = all(sizes[file] > size for file, size in before.items())
        if grown and (not before or clock() - since >= _SETTLED_S):
            return
        await asyncio.sleep(_POLL_S)


def _file_size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _read_file_after_offset(file: Path, size: int) -> str:
    try:
        with file.open("rb") as stream:
            stream.seek(max(size, _file_size(file) - _MOST_BYTES))
            return stream.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def describe_process_state(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the kernel's state of a process, such as `T (stopped)` or `S (sleeping) in …`.

    The words after `in` are the kernel function it waits in, if that is readable. Threads in an
    uninterruptible wait (D, usually for a file system) are listed next to the main thread.
    """
    folder = proc / str(pid)
    state = _read_process_state(folder)
    if not state:
        return "gone"
    others = [
        at
        for at in list_folder(folder / "task")
        if at.name != str(pid) and _read_process_state(at)[:1] == "D"
    ]
    text = state + _describe_kernel_wait(folder)
    if others:
        text += f"; {len(others)} of its threads D (disk sleep){_describe_kernel_wait(others[0])}"
    return text


def _describe_kernel_wait(folder: Path) -> str:
    """Return ` in FUNCTION`; empty if the thread runs (`0`) or the kernel does not say."""
    name = read_small_file(folder / "wchan") or "0"
    return "" if name == "0" else f" in {name}"


def _read_process_state(folder: Path) -> str:
    return _read_status_fields(folder).get("State", "")


def _read_status_fields(folder: Path) -> dict[str, str]:
    """Return the fields of a process's or thread's status; empty if it is gone."""
    lines = (read_small_file(folder / "status") or "").splitlines()
    fields = (line.partition(":") for line in lines)
    return {key: value.strip() for key, _, value in fields}
