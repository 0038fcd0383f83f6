"""`hpckit doctor --env`: looks here and on a compute node, and prints both; imports Hydra."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hpckit.cli.compose_options import build_compose_request, list_words_to_record
from hpckit.cli.launch_output import print_check_findings
from hpckit.cli.terminal.pager import show_page
from hpckit.config.request import add_placeholder_command
from hpckit.context import Context
from hpckit.errors import SchedulerError
from hpckit.model.environment.facts import AskedOfNode, EnvironmentComparison, EnvironmentFacts
from hpckit.model.launch import ClusterKind, LaunchConfig, Resources
from hpckit.operations import check
from hpckit.operations.environment import (
    collect_machine_facts,
    compose_settings_of_single_run,
    fetch_node_facts,
    output_dir_override,
    prepare_node_facts_run,
)
from hpckit.planning.compatibility.judge import find_environment_problems
from hpckit.planning.preflight.judge import list_node_requirements
from hpckit.report.environment import environment_to_json, render_environment_page
from hpckit.values import replace

_REFUSED = 2


def show_environment(arguments: argparse.Namespace, context: Context) -> int:
    """Look, judge and print; returns 1 if something will surely not work, else 0."""
    compared = _compare_with_node(arguments, context)
    if compared is None:
        return _REFUSED
    findings = find_environment_problems(compared)
    if arguments.json:
        context.say_json(environment_to_json(compared, findings))
    else:
        show_page(render_environment_page(compared, findings), context)
    return int(any(finding.is_error for finding in findings))


def _compare_with_node(arguments: argparse.Namespace, context: Context) -> EnvironmentComparison | None:
    """Return both machines, or this one alone; None if the launch is refused, with a message."""
    more = output_dir_override(arguments.output_dir, context.cwd)
    request = build_compose_request(arguments, context, more=more)
    # What chooses nothing to run gets a command, so that no experiment need be complete.
    settings = compose_settings_of_single_run(
        add_placeholder_command(request), "doctor --env looks at one run's node"
    )
    asked, elsewhere = list_node_requirements(settings), settings.cluster.kind is ClusterKind.slurm
    if arguments.here and elsewhere:
        # Runs would not be here: what they ask for says nothing about this machine.
        if asked != list_node_requirements(replace(settings, resources=Resources())):
            context.note("--here: what runs ask of their nodes is not compared with this machine")
        asked = AskedOfNode()
    if arguments.here or not elsewhere:
        return EnvironmentComparison(here=_collect_local_facts(settings, context), node=None, asked=asked)
    words = list_words_to_record(arguments, context)
    prepared = prepare_node_facts_run(request, settings, words, context, quiet=arguments.json)
    if not print_check_findings(check.check_launch(prepared, context), context, may_insist=False):
        context.note_more("hpckit doctor --env --here looks at this machine alone")
        return None
    try:
        node, token, clock = fetch_node_facts(prepared, context)
    except SchedulerError as error:
        hint = f"{error.hint}; hpckit doctor --env --here looks at this machine alone"
        raise type(error)(error.message, hint=hint.removeprefix("; ")) from error
    here = _collect_local_facts(settings, context)
    return EnvironmentComparison(here=here, node=node, asked=asked, clock=clock, token=token)


def _collect_local_facts(settings: LaunchConfig, context: Context) -> EnvironmentFacts:
    return collect_machine_facts(
        context,
        output=Path(os.path.normpath(context.cwd / Path(settings.output_dir).expanduser())),
        project=context.cwd,
        bin_dir=settings.cluster.bin_dir,
        token=None,
    )
