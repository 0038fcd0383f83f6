"""`hpckit shell`: a shell, or a command, inside the allocation of a running run."""

from __future__ import annotations

import argparse
import sys

from hpckit.cli.options import add_launch_or_run_argument, add_output_dir_option, resolve_reference_to_change
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.operations.running.enter_run import exec_shell_in_run, locate_running_run

TAKES_COMMAND = True
"""Words after `--` are a command of the user and are not parsed."""

EPILOG = """\
examples:
  hpckit shell digits.3                       an interactive shell, on the run's first node
  hpckit shell digits.3 --node n2 -- nvidia-smi
  hpckit shell digits.3 -- sh -c 'py-spy dump --pid "$(pgrep -u "$USER" -n python)"'

The shell has the environment and the working folder of the run's ranks, but is not a rank. It
shares their CPUs, memory and GPUs, and ends with the job. The exit code is that of the command.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `shell`."""
    add_launch_or_run_argument(parser)
    parser.add_argument("--node", metavar="NAME", help="one of the run's nodes (default: that of rank 0)")
    add_output_dir_option(parser)
    parser.set_defaults(command=None)
    parser.usage = "hpckit shell [LAUNCH|RUN] [--node NAME] [--output-dir DIR] [-- CMD ...]"


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Replace this process by a shell or the command, next to the run; raises HpckitError."""
    command = arguments.command
    if command == []:
        raise UsageError("no command follows --", hint="leave -- out for a shell")
    if command and not command[0]:
        raise UsageError("the command after -- is an empty word", hint="leave -- out for a shell")
    selection = resolve_reference_to_change(arguments, context)
    entrance = locate_running_run(selection, arguments.node, context)
    terminal = command is None and sys.stdin is not None and sys.stdin.isatty()
    if terminal:
        context.note(f"{entrance.description}; `exit` leaves it, and the run continues")
    context.stdout.flush()
    exec_shell_in_run(entrance, command or (), context, terminal=terminal)
