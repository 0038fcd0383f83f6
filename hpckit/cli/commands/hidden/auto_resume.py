"""`hpckit auto-resume`: what the batch script of an auto-resume job runs.

Hidden from `--help`: `launch --auto-resume` queues the first one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.batch import auto_resume
from hpckit.context import Context
from hpckit.record.launches import load_launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that a batch script passes."""
    parser.add_argument("folder", type=Path, help="the launch folder")
    parser.add_argument("--job", type=int, required=True, help="index of this job in the launch")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Resume what may be resumed, once; returns 0 also if there was nothing to do."""
    auto_resume.resume_once(load_launch(arguments.folder), arguments.job, context)
    return 0
