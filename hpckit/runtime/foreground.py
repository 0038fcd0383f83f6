"""A run that a person sits at: its rank has the terminal of `hpckit launch --foreground`.

Responsible for what is different of such a run where it is supervised; it must not touch the
terminal (cli.terminal.foreground does).
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from collections.abc import Mapping
from dataclasses import replace

from hpckit.model.failure import RankExit
from hpckit.model.launch import LaunchConfig
from hpckit.runtime.environ import TERMINAL

RELAY_S = 0.3
"""How long what a rank printed last may take through the terminal into its log."""

_BY_KEYBOARD = frozenset({"SIGINT", "SIGQUIT", "SIGHUP"})
"""What a terminal sends for Ctrl-C, Ctrl-\\ and when it is closed."""


def in_foreground(settings: LaunchConfig, environ: Mapping[str, str]) -> LaunchConfig:
    """Return the settings of a run as they hold in the foreground, if that is where it runs.

    A person sees a failure, so that nothing starts again; a breakpoint is no hang.
    """
    if TERMINAL not in environ:
        return settings
    return replace(
        settings,
        recovery=replace(settings.recovery, restarts={}),
        runtime=replace(settings.runtime, hang_min_s=0.0),
    )


def ended_by_keyboard(exit_: RankExit) -> str | None:
    """Return the signal by which somebody at the terminal ended a rank, null if nobody did."""
    return exit_.signal if exit_.signal in _BY_KEYBOARD else None


def take_terminal() -> None:
    """Make the terminal this process was given its own, so that Ctrl-C reaches it."""
    if os.isatty(sys.stdin.fileno()):
        fcntl.ioctl(sys.stdin.fileno(), termios.TIOCSCTTY, 0)
