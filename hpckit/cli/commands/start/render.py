"""`hpckit render`: writes the same frozen folder and scripts as `launch`, without submitting.

Prints how to submit by hand and starts nothing.
"""

from __future__ import annotations

import argparse
import shlex

from hpckit.cli.compose_options import add_composing, compose_request, recorded_words, show_instead
from hpckit.cli.launch_output import launch_document, script_paths
from hpckit.context import Context
from hpckit.model.counted import counted
from hpckit.model.plan import JobSpec
from hpckit.planning.jobs.stage_jobs import stage_dependency

TAKES_COMMAND = True
"""Words after `--` are a command to run, not overrides."""


EPILOG = """\
examples:
  hpckit render experiment=mine resources.nodes=2
  sbatch outputs/LAUNCH/job-0.sbatch           what it wrote, submitted by hand
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select a configuration."""
    add_composing(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Write the launch folder and print the paths of its scripts."""
    if show_instead(arguments, context):
        return 0
    from hpckit.operations import prepare  # noqa: PLC0415  # it imports Hydra

    request = compose_request(arguments, context)
    words = recorded_words(arguments, context)
    prepared = prepare.prepare(request, words, context, quiet=arguments.json)
    prepared = prepare.with_destinations(prepared, context)
    launch = prepare.write(prepared, context)
    scripts = script_paths(launch)
    if arguments.json:
        context.say_json({**launch_document(launch), "scripts": scripts})
        return 0
    context.say(f"rendered {launch.id}: {counted(len(launch.runs), 'run')}, nothing submitted")
    context.say(f"  folder  {launch.folder}")
    for job, script in zip(launch.jobs, scripts, strict=True):
        context.say(f"  {_command(job, script, chained=bool(launch.stages))}")
    return 0


def _command(job: JobSpec, script: str, *, chained: bool) -> str:
    """Return the command that submits a script; for stages, with the job's dependencies."""
    if not chained:
        return f"sbatch {script}"
    waits = stage_dependency(job)
    options = f" --dependency={waits} --kill-on-invalid-dep=yes" if waits else ""
    return f"JOB{job.index}=$(sbatch --parsable{options} {shlex.quote(script)})"
