"""`hpckit grow`: more replicas for a running run, on the nodes of another job."""

from __future__ import annotations

import argparse
from datetime import timedelta

from hpckit.cli.launch_output import scripts_to_json
from hpckit.cli.options import (
    add_common_options,
    add_flag,
    add_launch_or_run_argument,
    resolve_reference_to_change,
)
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.counted import format_count
from hpckit.model.plain import attributes_to_json
from hpckit.operations.next_step import launch_reference
from hpckit.operations.running.resize import Growth, grow_run, plan_run_growth
from hpckit.operations.running.satellites import GrowOrder
from hpckit.record.launches import Launch

EPILOG = """\
examples:
  hpckit grow charlm.0 --replicas 1
  hpckit grow charlm.0 --replicas 2 --partition spot --time 120
  hpckit grow charlm.0 --replicas 1 --dry-run     the script of the job that would be submitted

A satellite job brings the nodes. Once they complete a replica, the run saves at a step boundary and
continues on all of them, with the same batches. The job ends with the run; if it is preempted,
cancelled or over its time, the run saves and continues without it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `grow`."""
    add_launch_or_run_argument(parser)
    parser.add_argument("--replicas", metavar="N", type=int, required=True, help="how many replicas more")
    parser.add_argument("--partition", metavar="NAME", help="of the job (default: the run's)")
    parser.add_argument("--qos", metavar="NAME", help="of the job (default: the run's)")
    parser.add_argument(
        "--time", metavar="MIN", type=int, help="time limit of the job in minutes (default: same)"
    )
    add_flag(parser, "--dry-run", "print the job's script, and change nothing")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Have a run grow, or show the script; returns 0. Raises HpckitError."""
    if arguments.time is not None and arguments.time < 1:
        raise UsageError(f"--time is {arguments.time}; it must be 1 minute or more")
    selection = resolve_reference_to_change(arguments, context)
    order = GrowOrder(
        replicas=arguments.replicas,
        partition=arguments.partition,
        qos=arguments.qos,
        timeout=None if arguments.time is None else timedelta(minutes=arguments.time),
    )
    if arguments.dry_run:
        growth = plan_run_growth(selection, order, context)
        _print_satellite_script(growth, selection.launch, context, as_json=arguments.json)
        return 0
    growth = grow_run(selection, order, context)
    if arguments.json:
        context.say_json(_growth_to_json(growth))
        return 0
    count, source = format_count(arguments.replicas, "replica"), "nodes that are ready"
    if growth.satellite is not None:
        nodes = format_count(growth.satellite.job.resources.nodes, "node")
        source = f"satellite job {growth.slurm_job} of {nodes}, once it starts"
    context.say(f"run {growth.record.id} grows by {count}: {source}")
    context.say(f"  next    hpckit status {launch_reference(selection.launch, context)}")
    return 0


def _growth_to_json(growth: Growth) -> dict[str, object]:
    satellite = growth.satellite
    fields = "run=record.id replicas=answer.replicas standing=answer.standing job=slurm_job"
    nodes = 0 if satellite is None else satellite.job.resources.nodes
    return attributes_to_json(growth, fields) | {"nodes": nodes}


def _print_satellite_script(growth: Growth, launch: Launch, context: Context, *, as_json: bool) -> None:
    satellite = growth.satellite
    assert satellite is not None, "nothing was asked, so nothing stands ready"  # noqa: S101
    scripts = {satellite.job.index: satellite.script}
    if as_json:
        context.say_json({**_growth_to_json(growth), "scripts": scripts_to_json(launch, scripts)})
        return
    context.say(f"--- {launch.paths.script(satellite.job.index).name}")
    context.stdout.write(satellite.script)
