"""`hpckit local`: the local executor, which runs the jobs of a launch on this machine.

Hidden from `--help`: `launch` starts it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.batch import local_executor
from hpckit.context import Context
from hpckit.record.launches import load_launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `launch` passes."""
    parser.add_argument("folder", type=Path, help="the launch folder")
    parser.add_argument(
        "--job", type=int, action="append", help="a job to work through (default: those frozen)"
    )


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run jobs of a launch; returns 0 if every run of them completed, else 1."""
    launch = load_launch(arguments.folder)
    return local_executor.run_jobs(launch, tuple(arguments.job or ()), context, arguments.program)
