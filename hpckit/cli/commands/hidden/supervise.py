"""`hpckit supervise`: what a batch script runs.

Hidden from `--help`: users launch, scripts supervise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.batch import supervise
from hpckit.batch.shared_job import executor
from hpckit.context import Context
from hpckit.record.launches import load_launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that a batch script passes."""
    parser.add_argument("folder", type=Path, help="the launch folder")
    parser.add_argument("--job", type=int, required=True, help="index of the job in the launch")
    parser.add_argument("--run", type=int, help="index of the run; else the array element's")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Supervise one attempt of one run, or all runs that share this job; return the exit code."""
    launch = load_launch(arguments.folder)
    job = supervise.job_of(launch, arguments.job)
    if job.shared_job is not None and arguments.run is None:
        return executor.run_shared_job(launch, job, context, arguments.program)
    return supervise.supervise_run(launch, job, arguments.run, context)
