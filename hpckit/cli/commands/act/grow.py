"""`hpckit grow`: more replicas for a running run, on the nodes of another job."""

from __future__ import annotations

import argparse
from datetime import timedelta

from hpckit.cli.launch_output import script_documents
from hpckit.cli.options import add_common, add_flag, add_reference, find_named
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.counted import counted
from hpckit.model.plain import plain_fields
from hpckit.operations.next_step import reference
from hpckit.operations.running.resize import Growth, grow_run, plan_growth
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
    add_reference(parser)
    parser.add_argument(
        "--replicas", metavar="N", type=int, required=True, help="how many replicas more"
    )
    parser.add_argument("--partition", metavar="NAME", help="of the job (default: the run's)")
    parser.add_argument("--qos", metavar="NAME", help="of the job (default: the run's)")
    parser.add_argument(
        "--time", metavar="MIN", type=int, help="time limit of the job in minutes (default: same)"
    )
    add_flag(parser, "--dry-run", "print the job's script, and change nothing")
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Have a run grow, or show the script; returns 0. Raises HpckitError."""
    if arguments.time is not None and arguments.time < 1:
        raise UsageError(f"--time is {arguments.time}; it is 1 minute or more")
    selection = find_named(arguments, context)
    order = GrowOrder(
        replicas=arguments.replicas,
        partition=arguments.partition,
        qos=arguments.qos,
        timeout=None if arguments.time is None else timedelta(minutes=arguments.time),
    )
    if arguments.dry_run:
        growth = plan_growth(selection, order, context)
        _show(growth, selection.launch, context, as_json=arguments.json)
        return 0
    growth = grow_run(selection, order, context)
    if arguments.json:
        context.say_json(_document(growth))
        return 0
    count, source = counted(arguments.replicas, "replica"), "nodes that stand ready"
    if growth.satellite is not None:
        nodes = counted(growth.satellite.job.resources.nodes, "node")
        source = f"satellite job {growth.slurm_job} of {nodes}, once it starts"
    context.say(f"run {growth.record.id} grows by {count}: {source}")
    context.say(f"  next    hpckit status {reference(selection.launch, context)}")
    return 0


def _document(growth: Growth) -> dict[str, object]:
    satellite = growth.satellite
    fields = "run=record.id replicas=answer.replicas standing=answer.standing job=slurm_job"
    nodes = 0 if satellite is None else satellite.job.resources.nodes
    return plain_fields(growth, fields) | {"nodes": nodes}


def _show(growth: Growth, launch: Launch, context: Context, *, as_json: bool) -> None:
    """Print the script that would be submitted."""
    satellite = growth.satellite
    assert satellite is not None, "nothing was asked, so nothing stands ready"  # noqa: S101
    scripts = {satellite.job.index: satellite.script}
    if as_json:
        context.say_json({**_document(growth), "scripts": script_documents(launch, scripts)})
        return
    context.say(f"--- {launch.paths.script(satellite.job.index).name}")
    context.stdout.write(satellite.script)
