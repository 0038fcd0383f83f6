"""`hpckit sandbox`: a real Slurm of several nodes on this machine, with faults to order."""

from __future__ import annotations

import argparse

from hpckit.context import Context
from hpckit.sandbox.actions import add_actions, run_action

INTERMIXED = False
"""Options belong to an action, and stand behind it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    add_actions(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:  # noqa: ARG001  # as every verb
    """Start, break, mend, show or remove the sandbox."""
    return run_action(arguments)
