"""Children of a rank (data-loader workers, pools) do not die of a notice meant for the rank.

Slurm may send a notice to every process of a job (proctrack/linuxproc always does, `scancel
--full` everywhere), and torch raises in a rank whose data-loader worker was killed: the steps
since the last save would be lost to a notice that was to save them.

Responsible for processes that `multiprocessing` starts: SIGTERM, SIGUSR1 and SIGUSR2 from outside
do nothing there, from their own family they do what they always did (`Process.terminate()`,
`Pool.terminate()`). It must not touch the rank's own signals, nor end anybody.

How: a child blocks these signals and takes them in a thread, which sees who sent each. Torch's
workers install a C handler of their own; a blocked signal reaches none. Family is the child itself
and all of its process group; an agent gives every rank a group. An orphan obeys everybody. A mask,
unlike a handler, is inherited by programs: those that a child starts by `subprocess`, and its
plain `os.fork()`s, get a free one (for that moment the child is without its shield). What C code
starts on its own (`os.system`) does not.

Fork is covered wholly; forkserver where nobody else chose what it preloads; spawn in ranks that
hpckit calls by name, not below `attach()`: there nothing of ours runs in the child. A spawned or
forkserver child comes with a resource tracker that ignores SIGTERM, and at SIGUSR1 warns and leaks.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess  # noqa: TID251  # starts nothing: lets those who do start it with a free mask
import threading
from dataclasses import dataclass
from multiprocessing import util
from types import FrameType
from typing import Any

from hpckit.runtime.signals import RANK_NOTICES

_WAKE = signal.SIGRTMIN + 4
"""Interrupts the main thread's system call, so that it runs a Python handler now."""

_BY_PROCESSES = frozenset({0, -1, -6})
"""SI_USER, SI_QUEUE, SI_TKILL: kill, sigqueue, tgkill. All others are timers and the kernel."""


@dataclass(slots=True, weakref_slot=True)
class _Shield:
    """What has been arranged in this process and, as it is inherited over fork, in its parents."""

    registered: bool = False
    program_starts_free: bool = False
    process: int = 0

    def raise_(self) -> None:
        """Shield this process, a child; once is enough."""
        if self.process == os.getpid():
            return
        self.process = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, RANK_NOTICES)
        for number in RANK_NOTICES:
            # A rank's own handler, inherited over fork, would keep even the parent from ending it.
            if _is_ours(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(_WAKE, ignore)
        if not self.program_starts_free:
            self.program_starts_free = True
            os.register_at_fork(after_in_child=_free)
            _start_programs_free()
        threading.Thread(
            target=_take_signals, args=(os.getppid(),), name="hpckit-notices", daemon=True
        ).start()


_SHIELD = _Shield()


def shield_children() -> None:
    """Let children that this process starts from now on survive notices from outside."""
    if _SHIELD.registered:
        return
    _SHIELD.registered = True
    # Runs in the child, fork or not, before its target does.
    util.register_after_fork(_SHIELD, _Shield.raise_)
    multiprocessing.set_forkserver_preload(["__main__", "hpckit.runtime.rank.forkserver"])


def shield_this_child() -> None:
    """Do the same in a child that was not forked by a rank, and for its own children."""
    shield_children()
    _SHIELD.raise_()


def ignore(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal by doing nothing."""


def _is_ours(handler: object) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("hpckit.runtime.")


def _take_signals(parent: int) -> None:
    """Judge every notice that reaches this process, for ever."""
    while True:
        info = signal.sigwaitinfo(RANK_NOTICES)
        if _from_family(info, parent):
            _obey(info.si_signo)


def _from_family(info: signal.struct_siginfo, parent: int) -> bool:
    if info.si_code not in _BY_PROCESSES or os.getppid() != parent:
        return True
    if info.si_pid in {parent, os.getpid()}:
        return True
    try:
        # 0: a sender outside of this PID namespace; to getpgid() it would mean ourselves.
        return info.si_pid > 0 and os.getpgid(info.si_pid) == os.getpgrp()
    except (ProcessLookupError, PermissionError):
        return False


def _obey(number: int) -> None:
    """Let the signal do in this process what it would have done unblocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    # Still here: it is ignored, or a Python handler waits for the main thread to run it.
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, _WAKE)


def _free() -> None:
    """Undo the mask in a fork that `multiprocessing` may know nothing of: it has no such thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RANK_NOTICES)


def _start_programs_free() -> None:
    begin = subprocess.Popen.__init__

    @functools.wraps(begin)
    def begin_free(process: subprocess.Popen[Any], *given: Any, **named: Any) -> None:
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, RANK_NOTICES)
        try:
            begin(process, *given, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    subprocess.Popen.__init__ = begin_free  # type: ignore[assignment,method-assign]
