"""A run in the foreground: copies its output and the user's input between two terminals.

The run has its own terminal behind the user's and is the leader of a session on it: Ctrl-C reaches only the
run, as a character, and not its supervisor or this process. The output is also copied to the run's log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.states import RunState
from hpckit.operations.cancel import cancel_runs, plan_cancellations
from hpckit.operations.next_step import launch_reference
from hpckit.record.launches import Launch
from hpckit.record.logs import find_rank_logs
from hpckit.record.lookup import Selection
from hpckit.report.selection import Filter
from hpckit.values import dataclass, field
from hpckit.views.poller import Poller

_LOOK_S = 0.2
_ATTACH_S = 0.02
_CHUNK = 65536
_INTERRUPTED = 130
_TERMINATED = 143
"""Exit codes, as in shells."""


@contextmanager
def open_foreground_terminal(context: Context) -> Iterator[Foreground]:
    """Give a terminal for a run, behind the terminal of this process (`require_terminal`)."""
    outer, (inner, slave) = sys.stdin.fileno(), pty.openpty()
    termios.tcsetattr(slave, termios.TCSANOW, termios.tcgetattr(outer))
    _copy_terminal_size(outer, slave)
    before = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: _copy_terminal_size(outer, slave)),
        signal.SIGTERM: signal.signal(signal.SIGTERM, _exit_terminated),
    }
    try:
        yield Foreground(context=context, outer=outer, inner=inner, device=os.ttyname(slave))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # If the run still exists, its terminal is now closed.
        os.close(slave)
        os.close(inner)


def _exit_terminated(*_: object) -> None:
    sys.exit(_TERMINATED)


def require_terminal(context: Context) -> None:
    """Raise UsageError if no user could type, or read the output."""
    for name, there in (
        ("input", sys.stdin is not None and sys.stdin.isatty()),
        ("output", context.has_terminal),
    ):
        if not there:
            raise UsageError(
                f"--foreground needs a terminal, but standard {name} is not one",
                hint="without one, --wait --follow prints what the run prints",
            )
    if os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        raise UsageError(
            "--foreground was started in the background, where a terminal cannot be read",
            hint="start it without `&`",
        )


def _copy_terminal_size(outer: int, slave: int) -> None:
    size = fcntl.ioctl(outer, termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size)


@dataclass(slots=True, kw_only=True)
class Foreground:
    """Two terminals: `outer` is the user's, `inner` this end of the run's, which is at `device`."""

    context: Context
    outer: int
    inner: int
    device: str
    log: int | None = field(default=None, init=False)
    attached: bool = field(default=False, init=False)
    in_line: bool = field(default=False, init=False)

    def relay_terminal_until_run_ends(self, launch: Launch) -> int:
        """Copy until the run has ended; returns 0 if it completed, 130 if cancelled, else 1."""
        self.context.note(f"{launch.runs[0].id} in {launch.folder}; Ctrl-C goes to your code")
        poller = Poller(launch=launch, context=self.context)
        before = termios.tcgetattr(self.outer)
        try:
            self._relay_terminal_while_running(poller)
        except KeyboardInterrupt:  # before the run had its terminal, or sent by another process
            whole = Selection(launch=launch, index=None)
            cancel_runs([*plan_cancellations([whole], Filter(), self.context)], self.context)
            self.context.note("cancelled" if self.attached else "cancelled before it began")
            raise
        finally:
            termios.tcsetattr(self.outer, termios.TCSADRAIN, before)
            if self.log is not None:
                os.close(self.log)
        return self._print_run_end(poller)

    def _relay_terminal_while_running(self, poller: Poller) -> None:
        looked = self.context.now()
        poller.poll_once()
        while not poller.are_all_runs_over:
            self._relay_available_data(poller.launch, _LOOK_S)
            if (self.context.now() - looked).total_seconds() >= _LOOK_S:
                poller.poll_once()
                looked = self.context.now()
        while self._relay_available_data(poller.launch, 0.0):
            pass

    def _relay_available_data(self, launch: Launch, wait_s: float) -> bool:
        """Wait for data and copy it; return whether the run has printed."""
        # Until the run can receive Ctrl-C, this process does, and typed input waits.
        listened = [self.inner, self.outer] if self.attached else [self.inner]
        ready, _, _ = select.select(listened, [], [], wait_s if self.attached else _ATTACH_S)
        if not self.attached and os.tcgetpgrp(self.inner) > 0:
            self.attached = True
            tty.setraw(self.outer, termios.TCSADRAIN)
        if self.outer in ready:
            typed = os.read(self.outer, _CHUNK)
            if not typed:
                _exit_terminated()
            _write_all_bytes(self.inner, typed)
        if self.inner not in ready:
            return False
        printed = os.read(self.inner, _CHUNK)
        _write_all_bytes(self.context.stdout.fileno(), printed)
        self.in_line = not printed.endswith(b"\n")
        self._append_to_log(launch, printed)
        return True

    def _append_to_log(self, launch: Launch, printed: bytes) -> None:
        """Append to the rank's log; a full disk may prevent that."""
        with contextlib.suppress(OSError):
            if self.log is None:
                logs: Any = find_rank_logs(launch, 0)
                if 0 in logs:
                    self.log = os.open(logs[0].path, os.O_WRONLY | os.O_APPEND)
            if self.log is not None:
                _write_all_bytes(self.log, printed.replace(b"\r\n", b"\n"))

    def _print_run_end(self, poller: Poller) -> int:
        (view,) = poller.views
        record = view.record
        cause = f" ({record.failure.cause})" if record.failure is not None else ""
        named = launch_reference(poller.launch, self.context)
        if self.in_line:  # for example after a prompt
            _write_all_bytes(self.context.stdout.fileno(), b"\n")
        self.context.note(f"{record.id} {view.state}{cause}; hpckit status {named}   (also: logs)")
        if view.state is RunState.cancelled:
            return _INTERRUPTED
        return int(view.state is not RunState.completed)


def _write_all_bytes(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
