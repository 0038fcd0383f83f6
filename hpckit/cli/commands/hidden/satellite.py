"""`hpckit satellite`: what the batch script of a satellite job runs.

Hidden from `--help`: users grow a run, the job joins it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.batch.satellite import join_run
from hpckit.batch.supervise import job_of
from hpckit.context import Context
from hpckit.record.launches import load_launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that a batch script passes."""
    parser.add_argument("folder", type=Path, help="the launch folder")
    parser.add_argument("--job", type=int, required=True, help="index of the job in the launch")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Bring this job's nodes to a running run; return the exit code."""
    launch = load_launch(arguments.folder)
    return join_run(launch, job_of(launch, arguments.job), context)
