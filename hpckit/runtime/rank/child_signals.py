"""Keep children of a rank (data-loader workers, pools) alive when the rank gets a notice.

Slurm may send a notice to every process of a job (proctrack/linuxproc always does, `scancel --full`
everywhere). Torch raises in a rank whose data-loader worker was killed, so the steps since the last
save would be lost to the very notice that should save them.

In processes that `multiprocessing` starts, SIGTERM, SIGUSR1 and SIGUSR2 from outside have no
effect. From their own family they work as usual (`Process.terminate()`, `Pool.terminate()`). The
rank's own signals are not touched, and this module ends no process.

How it works: a child blocks these signals and receives them in a thread, which sees the sender of
each. Torch's workers install their own C handler, which blocked signals never reach. The family is
the child itself and its whole process group; an agent gives every rank its own group. An orphan
obeys every sender. Unlike a handler, a mask is inherited by programs: those that a child starts
with `subprocess`, and its plain `os.fork()`s, get a free mask (for that moment the child is
unprotected). Programs that C code starts (`os.system`) keep the mask.

Fork is covered completely; forkserver unless other code chose what it preloads; spawn only in ranks that
hpckit calls by name, not below `attach()`, where none of our code runs in the child. A spawned or forkserver
child comes with a resource tracker that ignores SIGTERM, and at SIGUSR1 warns and leaks.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess  # noqa: TID251  # starts nothing: lets programs start with a free mask
import threading
from multiprocessing import util
from types import FrameType
from typing import Any

from hpckit.runtime.signals import RANK_NOTICES
from hpckit.values import dataclass

_WAKE = signal.SIGRTMIN + 4
"""Interrupts the main thread's system call, so that it runs a Python handler now."""

_BY_PROCESSES = frozenset({0, -1, -6})
"""SI_USER, SI_QUEUE, SI_TKILL: kill, sigqueue, tgkill. All others are timers and the kernel."""


@dataclass(slots=True, weakref_slot=True)
class _Shield:
    """What has been set up in this process and, because fork inherits it, in its parents."""

    registered: bool = False
    program_starts_free: bool = False
    process: int = 0

    def shield_process(self) -> None:
        """Shield this process, which is a child; a second call does nothing."""
        if self.process == os.getpid():
            return
        self.process = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, RANK_NOTICES)
        for number in RANK_NOTICES:
            # With a rank's own handler, inherited through fork, not even the parent could end it.
            if _is_hpckit_handler(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(_WAKE, ignore_signal)
        if not self.program_starts_free:
            self.program_starts_free = True
            os.register_at_fork(after_in_child=_unblock_signals_in_fork)
            _unblock_signals_for_subprocesses()
        threading.Thread(
            target=_deliver_only_family_signals, args=(os.getppid(),), name="hpckit-notices", daemon=True
        ).start()


_SHIELD = _Shield()


def shield_children_from_signals() -> None:
    """Protect children that this process starts from now on against notices from outside."""
    if _SHIELD.registered:
        return
    _SHIELD.registered = True
    # Runs in the child before its target, with fork and with the other start methods.
    util.register_after_fork(_SHIELD, _Shield.shield_process)
    multiprocessing.set_forkserver_preload(["__main__", "hpckit.runtime.rank.forkserver"])


def shield_this_child_from_signals() -> None:
    """Protect a child that was not forked by a rank, and its own children."""
    shield_children_from_signals()
    _SHIELD.shield_process()


def ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal by doing nothing."""


def _is_hpckit_handler(handler: object) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("hpckit.runtime.")


def _deliver_only_family_signals(parent: int) -> None:
    while True:
        info = signal.sigwaitinfo(RANK_NOTICES)
        if _is_signal_from_process_family(info, parent):
            _deliver_signal(info.si_signo)


def _is_signal_from_process_family(info: signal.struct_siginfo, parent: int) -> bool:
    if info.si_code not in _BY_PROCESSES or os.getppid() != parent:
        return True
    if info.si_pid in {parent, os.getpid()}:
        return True
    try:
        # 0: a sender outside this PID namespace; getpgid(0) would mean this process.
        return info.si_pid > 0 and os.getpgid(info.si_pid) == os.getpgrp()
    except (ProcessLookupError, PermissionError):
        return False


def _deliver_signal(number: int) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    # Still alive: the signal is ignored, or a Python handler waits for the main thread to run it.
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, _WAKE)


def _unblock_signals_in_fork() -> None:
    """Clear the mask in a fork: one that `multiprocessing` did not make has no receiving thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RANK_NOTICES)


def _unblock_signals_for_subprocesses() -> None:
    begin = subprocess.Popen.__init__

    @functools.wraps(begin)
    def start_unblocked(process: subprocess.Popen[Any], *given: Any, **named: Any) -> None:
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, RANK_NOTICES)
        try:
            begin(process, *given, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    subprocess.Popen.__init__ = start_unblocked  # type: ignore[assignment,method-assign]
