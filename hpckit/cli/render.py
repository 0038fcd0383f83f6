"""`hpckit render`: the same frozen folder and scripts as `launch`, without submitting.

Responsible for saying how to go on by hand; it must not start anything.
"""

from __future__ import annotations

import argparse

from hpckit.cli.context import Context
from hpckit.cli.prepare import (
    add_composing,
    launch_document,
    prepare,
    script_paths,
    show_instead,
    write,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which configuration is meant."""
    add_composing(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Write the launch folder and say where its scripts are."""
    if show_instead(arguments, context):
        return 0
    launch = write(prepare(arguments, context), context)
    scripts = script_paths(launch)
    if arguments.json:
        context.say_json({**launch_document(launch, {}, ()), "scripts": scripts})
        return 0
    context.say(f"rendered {launch.id}: {len(launch.runs)} run(s), nothing submitted")
    context.say(f"  folder  {launch.folder}")
    for script in scripts:
        context.say(f"  sbatch {script}")
    return 0
