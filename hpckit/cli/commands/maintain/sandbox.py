"""`hpckit sandbox`: a real Slurm with several nodes on this machine, with faults on demand."""

from __future__ import annotations

import argparse

from hpckit.context import Context
from hpckit.sandbox.actions import add_sandbox_actions, run_sandbox_action

INTERMIXED = False
"""Options belong to an action and follow it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    add_sandbox_actions(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:  # noqa: ARG001  # as every verb
    """Start, break, repair, show or remove the sandbox."""
    return run_sandbox_action(arguments)
