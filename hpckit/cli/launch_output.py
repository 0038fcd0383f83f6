"""Common output of the verbs that launch: what starts, what is already known, what to do next."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpckit.cli.options import ask_yes_or_no
from hpckit.context import Context
from hpckit.errors import HpckitError, UsageError
from hpckit.model.counted import format_count, format_ranges, format_short_list
from hpckit.model.finding import CheckReport
from hpckit.model.ids import split_run_id
from hpckit.model.launch import ClusterKind
from hpckit.model.plain import MASK, attributes_to_json
from hpckit.model.plan import LaunchPlan
from hpckit.model.states import RunState
from hpckit.operations.next_step import launch_reference
from hpckit.planning.layout import describe_layouts
from hpckit.record.launches import Launch, load_launch
from hpckit.record.layout import LaunchPaths
from hpckit.report.escape import escape_table_cell
from hpckit.values import replace

if TYPE_CHECKING:  # they import Hydra, which --help does not need
    from hpckit.operations.known_runs import KnownRun, KnownRuns
    from hpckit.operations.prepare import Prepared
    from hpckit.operations.started import Started

WOULD_ASK = "launch would ask first, and refuse without a terminal: see --changed-code"

_SHOWN = 3


def report_nothing_to_launch(
    prepared: Prepared, division: KnownRuns, context: Context, arguments: argparse.Namespace
) -> int:
    """Print that there is nothing to launch; with --wait, wait for the adopted runs."""
    count = len(prepared.plan.runs)
    what = "the run is" if count == 1 else f"all {count} runs are"
    if arguments.json:
        nobody = dict.fromkeys(("launch", "dir", "auto_resume_job", "backlog_job"))
        more = left_out_to_json(prepared, division)
        context.say_json({**nobody, "runs": [], "jobs": [], **more})
    else:
        context.say(f"nothing to launch: {what} known already (--rerun launches anyway)")
        context.note(
            "a run is known by its configuration, its code and its staged data; the shell's variables, "
            "packages and other data do not count, nor do name, tracker, notices, telemetry, printed "
            "metrics and injected faults"
        )
    if not arguments.wait or arguments.dry_run:
        return 0
    return wait_for_new_and_adopted_runs(None, division, context, arguments)


def left_out_to_json(prepared: Prepared, division: KnownRuns) -> dict[str, object]:
    """Return the JSON fields for what is not launched and what is not in the snapshot."""
    return {**division.json_fields, "left_out": prepared.snapshot.left_out}


def wait_for_new_and_adopted_runs(
    started: Launch | None, division: KnownRuns, context: Context, arguments: argparse.Namespace
) -> int:
    """Wait for the runs of a new launch, and for those adopted from others; return as `wait`."""
    # A fifth of the time from the command to sbatch goes into imports: this comes after it.
    from hpckit.cli.terminal.waiting import Waiting, wait_for_launch  # noqa: PLC0415

    how = Waiting(quiet=arguments.json, follow=arguments.follow)
    codes = [] if started is None else [wait_for_launch(started, context, how)]
    for folder, given in _group_by_launch(division.adopted).items():
        indices = [known.earlier for known in given]
        codes.append(wait_for_launch(load_launch(folder), context, replace(how, indices=indices)))
    return max(codes, default=0)


def tell_which_runs_are_not_launched(
    division: KnownRuns, context: Context, kind: ClusterKind, *, dry: bool = False
) -> None:
    """Note on standard error which runs are not launched; `kind` is where the others go.

    With `dry` also which are launched because their code has changed.
    """
    skip = "would be skipped" if dry else "skipped"
    for what, found in (
        (f"{skip}: already completed", division.skipped),
        ("not submitted again: under way", division.adopted),
    ):
        for folder, given in _group_by_launch(found).items():
            which = f", runs {format_ranges(run.earlier for run in given)}"
            if len(given) == 1:
                which = f".{given[0].earlier}"
            if _moved_from_local_to_slurm(folder, kind):
                which += ", on this machine (--rerun runs it on Slurm)"
            context.note(f"{format_count(len(given), 'run')} {what} as {folder.name}{which}")
            _warn_of_differing_settings(given, context)
    known = [*division.skipped, *division.adopted]
    given_words = {word.partition("=") for run in known for word in run.overrides}
    if masked := sorted(key.lstrip("+") for key, _, value in given_words if MASK in value):
        context.note(
            f"warning: {format_short_list(masked, _SHOWN)} counts as a secret by its name, so its "
            "value was not compared; --rerun launches such runs anyway"
        )
    if division.environment:
        differing = format_short_list(division.environment, _SHOWN)
        context.note(f"the environment differs, which is ignored: {differing}")
    for run, words in division.elsewhere.items():
        context.note(
            f"{run} completed, but in another layout since its resume ({' '.join(words)}): that "
            "does not count"
        )
    if dry:
        _tell_which_runs_do_not_count(division, context)


def _warn_of_differing_settings(given: Iterable[KnownRun], context: Context) -> None:
    """Note settings of adopted runs that differ from what is asked for now."""
    told: dict[tuple[str, ...], list[str]] = {}
    for run in given:
        each = (f"{key.key}={_format_value(key.old)}, not {_format_value(key.new)}" for key in run.differs)
        told.setdefault(tuple(each), []).append(run.id)
    for words, runs in told.items():
        if words:
            has = f"{runs[0]} has" if len(runs) == 1 else f"{len(runs)} of them have"
            context.note(
                f"warning: {has} {format_short_list(words, _SHOWN)}, as launched; to change that, "
                f"`{_format_cancel_command(runs)}` and launch again, or --rerun launches a second "
                "one"
            )


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _format_cancel_command(runs: Sequence[str]) -> str:
    launches = dict.fromkeys(split_run_id(run)[0] for run in runs)
    return f"hpckit cancel {' '.join(runs if len(runs) <= _SHOWN else launches)}"


def _list_repeats_by_reason(division: KnownRuns) -> Sequence[tuple[int, Sequence[str], str]]:
    """Return how many completed runs are launched once more, which runs under way are, and why."""
    going = [run.id for run in division.apart if run.state is not RunState.completed]
    coded, apart = division.changed - len(division.changed_open), len(division.apart) - len(going)
    found = (
        (coded, division.changed_open, f"with other code{_format_code_differences(division)}"),
        (apart, going, division.needs),
    )
    return [pair for pair in found if pair[0] or pair[1]]


def _tell_which_runs_do_not_count(division: KnownRuns, context: Context) -> None:
    for completed, going, why in _list_repeats_by_reason(division):
        parts = [f"{completed} completed"] if completed else []
        parts += [f"{len(going)} {'is' if len(going) == 1 else 'are'} under way"] if going else []
        context.note(
            f"{' and '.join(parts)} {why}: that does not count"
            + (" (--any-code counts them)" if division.changed else "")
        )


def explain_repeated_runs(division: KnownRuns) -> tuple[str, str] | None:
    """Return which runs that completed or are under way would start again, and what to do; None if none."""
    repeats, told, ways = _list_repeats_by_reason(division), [], []
    for completed, going, why in repeats:
        parts = [f"{format_count(completed, 'completed run')} would run again"] if completed else []
        more = f"{format_count(len(going), 'run')} under way would be launched a second time"
        parts += [more] if going else []
        told.append(f"{' and '.join(parts)}, {why}")
    if division.changed:
        ways = ["--changed-code runs what has changed again, --any-code counts it as completed"]
    elif repeats:
        ways = ["--changed-code launches all of it"]
    going = [run for _, runs, _ in repeats for run in runs]
    ways += [f"`{_format_cancel_command(going)}` ends what is under way"] if going else []
    return ("; ".join(told), "; ".join(ways)) if repeats else None


def confirm_repeated_runs(division: KnownRuns, arguments: argparse.Namespace, context: Context) -> bool:
    """Whether runs that completed or are under way may be launched again: says so, and asks.

    Raises UsageError if no user can be asked.
    """
    explained, repeats = explain_repeated_runs(division), _list_repeats_by_reason(division)
    if explained is None:
        return True
    told, ways = explained
    if not arguments.changed_code and (arguments.json or not context.has_terminal):
        raise UsageError(f"{told}; nothing was written or submitted", hint=ways)
    _tell_which_runs_do_not_count(division, context)
    completed, going = sum(count for count, _, _ in repeats), sum(len(runs) for _, runs, _ in repeats)
    parts = [format_count(completed, "completed run")] if completed else []
    parts += [f"{format_count(going, 'run')} under way"] if going else []
    if arguments.changed_code or ask_yes_or_no(f"run {' and '.join(parts)} again?", context):
        return True
    context.note(f"nothing was written or submitted; {ways}")
    return False


def _moved_from_local_to_slurm(folder: Path, kind: ClusterKind) -> bool:
    """Return whether runs of an earlier launch were on this machine, and now Slurm is asked for."""
    if kind is not ClusterKind.slurm:
        return False
    try:
        return load_launch(folder).cluster.kind is not kind
    except HpckitError:
        return False


def _format_code_differences(division: KnownRuns) -> str:
    """Return how code differs: the first files, and the latest launch with other code."""
    files, latest = division.changed_files, f", the latest in {division.changed_in}"
    if not files:
        return f", or code that was not recorded{latest}"
    names = format_short_list([*map(escape_table_cell, files)], _SHOWN)
    return f" ({names} {'differs' if len(files) == 1 else 'differ'}){latest}"


def _group_by_launch(found: Iterable[KnownRun]) -> Mapping[Path, list[KnownRun]]:
    launches: dict[Path, list[KnownRun]] = {}
    for run in found:
        launches.setdefault(run.folder, []).append(run)
    return launches


def launch_to_json(launch: Launch | LaunchPlan, started: Started | None = None) -> dict[str, object]:
    """Return the fields that `--json` has in each verb that launches; nothing may be started."""
    jobs = {} if started is None else started.jobs
    runs = [
        attributes_to_json(run, "run=id index overrides") | {"job": jobs.get(run.index), "stage": run.stage}
        for run in launch.runs
    ]
    return {
        **attributes_to_json(launch, "launch=id dir=folder"),
        "runs": runs,
        "jobs": [] if started is None else list(started.main_jobs),
        **attributes_to_json(started, "auto_resume_job backlog_job"),
    }


def list_script_paths(launch: Launch | LaunchPlan) -> list[str]:
    """Return the paths of the rendered scripts, by job."""
    paths = LaunchPaths(Path(launch.folder))
    return [str(paths.script(job.index)) for job in launch.jobs]


def scripts_to_json(launch: Launch | LaunchPlan, scripts: Mapping[int, str]) -> list[dict[str, str]]:
    """Return the scripts as `--dry-run --json` prints them, by job index."""
    paths = LaunchPaths(Path(launch.folder))
    return [{"path": str(paths.script(index)), "text": text} for index, text in scripts.items()]


def print_scripts(prepared: Prepared, context: Context, *, as_json: bool, more: Mapping[str, object]) -> None:
    """Print what would be submitted; `more` are further fields of the JSON object.

    A local launch prints its runs instead of the script, which is for `sbatch` by hand and says
    little about them.
    """
    local = prepared.plan.cluster.kind is ClusterKind.local
    layouts = describe_layouts(run.settings for run in prepared.plan.runs)
    if as_json:
        shown = scripts_to_json(prepared.plan, {} if local else prepared.scripts)
        context.say_json({**launch_to_json(prepared.plan), **more, "layouts": layouts, "scripts": shown})
        return
    for layout in layouts:  # not among the scripts: standard output is what would be submitted
        context.note(f"layout: {layout}")
    if local:
        context.say(f"{format_count(len(prepared.plan.runs), 'run')} on this machine")
        for run in prepared.plan.runs:
            context.say(f"  {run.id}  {shlex.join(run.overrides)}".rstrip())
        return
    for text in prepared.scripts.values():
        context.stdout.write(text)


def print_check_findings(checked: CheckReport, context: Context, *, may_insist: bool = True) -> bool:
    """Print the findings about a launch; return whether it may start.

    `may_insist`: the verb has the option that launches in spite of errors.
    """
    for reason in checked.unchecked:
        context.note(f"not checked: {reason}")
    for finding in (*checked.warnings, *checked.errors):
        context.note(f"{finding.severity}: {finding.message}")
        context.note_more(finding.hint)
    if checked.errors:
        insist = "; --no-check launches anyway" if may_insist else ""
        context.note(f"nothing was written or submitted{insist}")
    return not checked.errors


def print_started_launch(
    started: Started, context: Context, *, as_json: bool, more: Mapping[str, object]
) -> None:
    """Print what was launched; `more` are further fields of the JSON object."""
    launch = started.launch
    if as_json:
        context.say_json({**launch_to_json(launch, started), **more})
        return
    count = len(launch.runs)
    context.say(f"launched {launch.id}: {format_count(count, 'run')}")
    context.say(f"  folder  {launch.folder}")
    context.say(f"  on      {started.where}")
    if started.backlog_job is not None:
        context.say(f"  later   {started.left} runs: job {started.backlog_job} submits them")
    if started.auto_resume_job is not None:
        context.say(f"  then    auto-resume job {started.auto_resume_job} resumes interrupted runs")
    context.say(f"  next    hpckit status {launch_reference(launch, context)}   (also: logs, cancel)")
