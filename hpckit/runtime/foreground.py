"""A run that a user attends: its rank has the terminal of `hpckit launch --foreground`.

Holds what supervision does differently for such a run. The terminal itself is handled in
cli.terminal.foreground.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from collections.abc import Mapping

from hpckit.model.failure import RankExit
from hpckit.model.launch import LaunchConfig
from hpckit.runtime.environ import TERMINAL
from hpckit.values import replace

RELAY_S = 0.3
"""How long a rank's last output may take through the terminal into its log."""

_BY_KEYBOARD = frozenset({"SIGINT", "SIGQUIT", "SIGHUP"})
"""What a terminal sends for Ctrl-C, Ctrl-\\ and when it is closed."""


def disable_restarts_in_foreground(settings: LaunchConfig, environ: Mapping[str, str]) -> LaunchConfig:
    """Return the settings of a run, adapted if it runs in the foreground.

    The user sees a failure, so nothing is restarted; a breakpoint is not a hang.
    """
    if TERMINAL not in environ:
        return settings
    return replace(
        settings,
        recovery=replace(settings.recovery, restarts={}, command_silent_min=None),
        runtime=replace(settings.runtime, hang_min_s=0.0),
    )


def find_keyboard_signal(exit_: RankExit) -> str | None:
    """Return the signal by which the user at the terminal ended a rank; None otherwise."""
    return exit_.signal if exit_.signal in _BY_KEYBOARD else None


def take_controlling_terminal() -> None:
    """Make the terminal on standard input this process's own, so that Ctrl-C reaches it."""
    if os.isatty(sys.stdin.fileno()):
        fcntl.ioctl(sys.stdin.fileno(), termios.TIOCSCTTY, 0)
