"""Describes a run or a launch: the frozen files, our record and Slurm's report combined."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from hpckit.context import Context
from hpckit.model import events
from hpckit.model.command import split_command
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.model.run import RunView
from hpckit.record.attempts import read_events_by_attempt
from hpckit.record.frozen import list_uncommitted_files
from hpckit.record.launches import Launch, checkpoint_folder, load_run_settings, read_launch_history
from hpckit.record.lookup import Selection
from hpckit.record.store import read_json_object
from hpckit.record.working import find_working_folder
from hpckit.report.description import (
    AttemptDescription,
    CodeDescription,
    EnvironmentDescription,
    LaunchDescription,
    RunDescription,
)
from hpckit.report.rows import build_run_row
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import LaunchView, build_launch_head, build_launch_view, print_view_warnings


def describe_selected_run_or_launch(
    selection: Selection, context: Context, freshness: Freshness
) -> LaunchDescription:
    """Return the description of the selected run, or of the launch if it has several."""
    view = build_launch_view(selection.launch, context, indices=selection.indices, freshness=freshness)
    print_view_warnings([view], context)
    return describe_viewed_run_or_launch(view)


def describe_viewed_run_or_launch(view: LaunchView) -> LaunchDescription:
    """Return the description of the run of this view, or of the launch if it has several."""
    launch = view.launch
    single = view.runs[0] if len(view.runs) == 1 else None
    first = view.runs[0].record.index
    settings, config = load_run_settings(launch, first)
    asked = to_plain(settings.resources).items()
    jobs = read_launch_history(launch).accepted.values() if single is None else [single.record.job]
    return LaunchDescription(
        head=build_launch_head(launch),
        arguments=launch.arguments,
        jobs=tuple(job for job in jobs if job is not None),
        rows=tuple(map(build_run_row, view.runs)),
        code=_describe_code(launch),
        environment=_describe_environment(launch),
        # Values that are null, off or empty were not requested.
        resources={name: value for name, value in asked if value},
        paths={"folder": str(launch.folder)} if single is None else _list_run_paths(launch, single, settings),
        run=None if single is None else _describe_run(launch, single, settings, config),
    )


def _describe_run(
    launch: Launch, view: RunView, settings: LaunchConfig, config: Mapping[str, Any]
) -> RunDescription:
    record = view.record
    program = settings.entry_point or format_program_command(settings)
    told = [(number, list(seen)) for number, seen in read_events_by_attempt(launch.paths.run(record.index))]
    checks = [event.found for _, seen in told for event in seen if isinstance(event, events.ContainerChecked)]
    return RunDescription(
        row=build_run_row(view),
        overrides=record.overrides,
        signature=launch.runs[record.index].signature,
        program=program,
        config=config,
        attempts=tuple(_describe_attempt(number, seen) for number, seen in told),
        settings_changes=launch.settings_changes.get(record.index, ()),
        inside=checks[-1] if checks else None,
    )


def format_program_command(settings: LaunchConfig) -> str:
    """Return the command of a run as a shell would take it; empty if it has none."""
    command = settings.command
    if command is None or isinstance(command, str):
        return command or ""
    return shlex.join(split_command(command))


def _describe_attempt(number: int, told: Iterable[events.Event]) -> AttemptDescription:
    began: events.AttemptStarted | None = None
    ended: events.AttemptEnded | None = None
    nodes: tuple[str, ...] = ()
    rounds = 0
    for event in told:
        match event:
            case events.AttemptStarted():
                began, nodes = event, (event.host,)
            case events.RoundStarted():
                nodes, rounds = event.nodes, rounds + 1
            case events.AttemptEnded():
                ended = event
    return AttemptDescription(
        attempt=number,
        job=None if began is None else began.job,
        nodes=nodes,
        rounds=rounds,
        state=None if ended is None else ended.state,
        exit_code=None if ended is None else ended.exit_code,
        started_at=None if began is None else began.at,
        ended_at=None if ended is None else ended.at,
    )


def _describe_code(launch: Launch) -> CodeDescription:
    record = read_json_object(launch.paths.code_record)
    return CodeDescription(
        project=launch.code.project,
        snapshot=launch.code.root != launch.code.project,
        commit=record.get("commit"),
        branch=record.get("branch"),
        dirty=record.get("dirty"),
        changed_files=list_uncommitted_files(launch.paths),
    )


def _describe_environment(launch: Launch) -> EnvironmentDescription:
    record = read_json_object(launch.paths.environment)
    python, packages = record.get("python") or {}, record.get("packages") or {}
    return EnvironmentDescription(
        python=python.get("version"),
        executable=launch.python,
        torch=packages.get("torch"),
        hpckit=record.get("hpckit"),
        host=record.get("host"),
        driver=record.get("driver"),
        modules=tuple(record.get("modules") or ()),
    )


def _list_run_paths(launch: Launch, view: RunView, settings: LaunchConfig) -> Mapping[str, str]:
    record = view.record
    run = launch.paths.run(record.index)
    paths = {
        "folder": run.folder,
        "work": find_working_folder(launch, record.index, settings.runtime.cwd),
        "checkpoints": checkpoint_folder(launch, record.index, settings),
        "frozen_in": launch.folder,
    }
    if record.attempt:
        paths["logs"] = run.attempt(record.attempt).folder
    job = read_launch_history(launch).find_job_of_run(record.index).index
    if record.job is not None:
        paths["batch_log"] = launch.paths.job_log(job, record.job)
    return {name: str(path) for name, path in paths.items()}
