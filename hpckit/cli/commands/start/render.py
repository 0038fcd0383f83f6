"""`hpckit render`: writes the same frozen folder and scripts as `launch`, without submitting.

Prints how to submit by hand and starts nothing.
"""

from __future__ import annotations

import argparse
import shlex

from hpckit.cli.compose_options import (
    add_compose_arguments,
    build_compose_request,
    list_words_to_record,
    show_config_if_asked,
)
from hpckit.cli.launch_output import launch_to_json, list_script_paths
from hpckit.context import Context
from hpckit.model.counted import format_count
from hpckit.model.plan import JobSpec
from hpckit.planning.jobs.stage_jobs import format_dependency_template

TAKES_COMMAND = True
"""Words after `--` are a command to run, not overrides."""


EPILOG = """\
examples:
  hpckit render experiment=mine resources.nodes=2
  sbatch outputs/LAUNCH/job-0.sbatch           what it wrote, submitted by hand
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select a configuration."""
    add_compose_arguments(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Write the launch folder and print the paths of its scripts."""
    if show_config_if_asked(arguments, context):
        return 0
    from hpckit.operations import prepare  # noqa: PLC0415  # it imports Hydra

    request = build_compose_request(arguments, context)
    words = list_words_to_record(arguments, context)
    prepared = prepare.prepare_launch(request, words, context, quiet=arguments.json)
    prepared = prepare.add_notice_destinations(prepared, context)
    launch = prepare.write_launch_folder(prepared, context)
    scripts = list_script_paths(launch)
    if arguments.json:
        context.say_json({**launch_to_json(launch), "scripts": scripts})
        return 0
    context.say(f"rendered {launch.id}: {format_count(len(launch.runs), 'run')}, nothing submitted")
    context.say(f"  folder  {launch.folder}")
    for job, script in zip(launch.jobs, scripts, strict=True):
        context.say(f"  {_format_sbatch_command(job, script, chained=bool(launch.stages))}")
    return 0


def _format_sbatch_command(job: JobSpec, script: str, *, chained: bool) -> str:
    """Return the command that submits a script; for stages, with the job's dependencies."""
    if not chained:
        return f"sbatch {script}"
    waits = format_dependency_template(job)
    options = f" --dependency={waits} --kill-on-invalid-dep=yes" if waits else ""
    return f"JOB{job.index}=$(sbatch --parsable{options} {shlex.quote(script)})"
