"""`hpckit doctor --env`: looks here and on a compute node, and prints both; imports Hydra."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hpckit.cli.compose_options import compose_request, recorded_words
from hpckit.cli.launch_output import say_checked
from hpckit.cli.terminal.pager import show_page
from hpckit.config.request import with_something_to_run
from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.environment.facts import AskedOfNode, EnvironmentComparison, EnvironmentFacts
from hpckit.model.launch import ClusterKind, LaunchConfig, Resources
from hpckit.operations import check
from hpckit.operations.environment import (
    collect_facts,
    compose_one,
    look_at_node,
    output_overrides,
    prepare_look,
)
from hpckit.planning.compatibility.judge import judge_environment
from hpckit.planning.preflight.judge import asked_of_node
from hpckit.report.environment import environment_document, environment_page
from hpckit.values import replace

_REFUSED = 2


def show_environment(arguments: argparse.Namespace, context: Context) -> int:
    """Look, judge and print; returns 1 if something will surely not work, else 0."""
    compared = _compare(arguments, context)
    if compared is None:
        return _REFUSED
    findings = judge_environment(compared)
    if arguments.json:
        context.say_json(environment_document(compared, findings))
    else:
        show_page(environment_page(compared, findings), context)
    return int(any(finding.is_error for finding in findings))


def _compare(arguments: argparse.Namespace, context: Context) -> EnvironmentComparison | None:
    """Return both machines, or this one alone; None if the launch is refused, and told why."""
    more = output_overrides(arguments.output_dir, context.cwd)
    request = compose_request(arguments, context, more=more)
    # What chooses nothing to run gets a command, so that no experiment need be complete.
    settings = compose_one(with_something_to_run(request), "doctor --env looks at the node of one")
    asked, elsewhere = asked_of_node(settings), settings.cluster.kind is ClusterKind.slurm
    if arguments.here and elsewhere:
        # Runs would not be here: what they ask for says nothing about this machine.
        if asked != asked_of_node(replace(settings, resources=Resources())):
            context.note("--here: what runs ask of their nodes is not compared with this machine")
        asked = AskedOfNode()
    if arguments.here or not elsewhere:
        return EnvironmentComparison(here=_here(settings, context), node=None, asked=asked)
    words = recorded_words(arguments, context)
    prepared = prepare_look(request, settings, words, context, quiet=arguments.json)
    if not say_checked(check.check_launch(prepared, context), context, may_insist=False):
        context.note_more("hpckit doctor --env --here looks at this machine alone")
        return None
    try:
        node, token, clock = look_at_node(prepared, context)
    except SchedulerError as error:
        hint = f"{error.hint}; hpckit doctor --env --here looks at this machine alone"
        raise type(error)(error.message, hint=hint.removeprefix("; ")) from error
    here = _here(settings, context)
    return EnvironmentComparison(here=here, node=node, asked=asked, clock=clock, token=token)


def _here(settings: LaunchConfig, context: Context) -> EnvironmentFacts:
    return collect_facts(
        context,
        output=Path(os.path.normpath(context.cwd / Path(settings.output_dir).expanduser())),
        project=context.cwd,
        bin_dir=settings.cluster.bin_dir,
        token=None,
    )
