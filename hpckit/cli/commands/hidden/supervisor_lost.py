"""`hpckit supervisor-lost`: what an agent runs when its supervisor is gone.

Hidden from `--help`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.batch import supervisor_lost
from hpckit.context import Context
from hpckit.record.launches import load_launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that an agent passes."""
    parser.add_argument("folder", type=Path, help="the launch folder")
    parser.add_argument("--job", type=int, required=True, help="index of the job in the launch")
    parser.add_argument("--run", type=int, required=True, help="index of the run")
    parser.add_argument("attempt", type=int, help="number of the attempt")


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Start the run again, or end its job; returns 0 also if there was nothing to do."""
    launch = load_launch(arguments.folder)
    supervisor_lost.rescue(launch, arguments.job, arguments.run, arguments.attempt, context)
    return 0
