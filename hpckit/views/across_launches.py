"""Selects runs of launches or of an experiment, one for each identical computation."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.errors import HpckitError, NotFoundError, UsageError
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RunState
from hpckit.planning.printed_metrics import Patterns, compile_metric_patterns, parse_printed_metrics
from hpckit.record.frozen import RunHead
from hpckit.record.launches import (
    Launch,
    load_frozen_configs,
    load_launch,
    load_run_settings,
    read_launch_history,
)
from hpckit.record.logs import LogTail, find_rank_logs, list_attempt_rounds
from hpckit.record.lookup import find_launch_of_any_owner, list_own_launches
from hpckit.record.snapshot.identity import read_frozen_identity
from hpckit.record.snapshot.outside import parse_outside_code_paths, read_outside_code_checksums
from hpckit.report.results import Results, build_results, count_runs_by_key
from hpckit.report.rows import RunRow, build_run_row
from hpckit.report.selection import Filter, parse_override_value, parse_overrides
from hpckit.values import replace
from hpckit.views.accounts import compute_goodput_by_run
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import Ask, LaunchView, build_launch_views, print_view_warnings

ChosenRuns = tuple[LaunchView, Sequence[RunView]]
"""A launch, and the selected ones of its runs."""


_GROUP = "experiment"


def select_runs_across_launches(
    references: Sequence[str],
    experiment: str | None,
    base: Path,
    context: Context,
    freshness: Freshness,
    *,
    reruns: bool = False,
) -> Sequence[ChosenRuns]:
    """Return the selected runs, oldest launch first; raises NotFoundError and UsageError.

    They are selected by name or experiment; the latest launch's by default. With `reruns`, later
    launches that started these runs again count, too.

    Of runs with the same computation in several launches, those of the newest launch that completed
    them are used, else those of the newest launch. Each scheduler is asked once.
    """
    if experiment is None:
        questions = find_named_runs(references, base, context)
    elif references:
        raise UsageError(
            "--experiment searches all launches, but some are given by name as well",
            hint="leave one of the two out",
        )
    else:
        questions = list(_find_experiment_runs(experiment, base, context))
    again = _add_reruns_of_named_runs(questions, context) if reruns else set[tuple[str, int]]()
    views = build_launch_views(questions, context, ask=Ask.open_runs, freshness=freshness)
    print_view_warnings(views, context)
    if len(views) == 1:
        return [(view, view.runs) for view in views]
    kept = (_drop_superseded_runs(view, again) for view in views)
    chosen = _select_launch_for_each_signature(
        sorted(kept, key=lambda view: view.launch.created_at, reverse=True)
    )[::-1]
    launches = [view.launch for view, _ in chosen]
    identities = {read_frozen_identity(launch.paths) for launch in launches}
    lines = frozenset[str]().union(*(read_outside_code_checksums(launch.paths) for launch in launches))
    if len(identities) > 1 or None in identities or len(parse_outside_code_paths(lines)) < len(lines):
        context.note(f"the code of these {len(launches)} launches differs, or was not recorded")
    return chosen


def find_named_runs(
    references: Sequence[str], base: Path, context: Context
) -> list[tuple[Launch, Sequence[int] | None]]:
    """Return each named launch once, with its named runs, None for all; raises NotFoundError.

    Without a reference it is the latest launch.
    """
    found: dict[Path, tuple[Launch, set[int]]] = {}
    for name in dict.fromkeys(references) or [None]:
        selection = find_launch_of_any_owner(name, base, cwd=context.cwd)
        folder = selection.launch.folder.resolve()
        launch, indices = found.setdefault(folder, (selection.launch, set()))
        indices.update(range(len(launch.runs)) if selection.index is None else (selection.index,))
    return [
        (launch, None if len(indices) == len(launch.runs) else sorted(indices))
        for launch, indices in found.values()
    ]


def _add_reruns_of_named_runs(
    questions: list[tuple[Launch, Sequence[int] | None]], context: Context
) -> set[tuple[str, int]]:
    """Add the runs that are one of these again, by `rerun` or the same words; return which were."""
    wanted = {
        (launch.id, index): launch.runs[index].signature
        for launch, indices in questions
        for index in (range(len(launch.runs)) if indices is None else indices)
    }
    again: set[tuple[str, int]] = set()
    named = {launch.id for launch, _ in questions}
    later = _load_readable_launches(list_own_launches(questions[0][0].folder.parent), context)
    for launch in sorted(later, key=lambda launch: launch.created_at):
        history = read_launch_history(launch)
        signatures = {wanted[key] for key in wanted if key[0] in history.known}
        found = [
            run
            for run in launch.runs
            if history.rerun_of.get(run.index) in wanted or run.signature in signatures
        ]
        if not found or launch.id in named:
            continue
        questions.append((launch, [run.index for run in found]))
        again |= {history.rerun_of[run.index] for run in found if run.index in history.rerun_of}
        wanted |= {(launch.id, run.index): run.signature for run in found}
    return again


def _drop_superseded_runs(view: LaunchView, again: Collection[tuple[str, int]]) -> LaunchView:
    """Return the view without runs that did not complete and were started again elsewhere."""
    kept = (
        run
        for run in view.runs
        if run.state is RunState.completed or (view.launch.id, run.record.index) not in again
    )
    return replace(view, runs=tuple(kept))


def _find_experiment_runs(
    name: str, base: Path, context: Context
) -> Iterator[tuple[Launch, Sequence[int] | None]]:
    launches = list(_load_readable_launches(list_own_launches(base), context))
    found = [
        (launch, indices)
        for launch in launches
        if (indices := [run.index for run in launch.runs if _belongs_to_experiment(launch, run, name)])
    ]
    if not found:
        there = ", ".join(sorted({launch.name for launch in launches})) or "none"
        raise NotFoundError(
            f"no launch in {base} is named {name!r}, and no run has experiment={name}",
            hint=f"names there are: {there}",
        )
    yield from found


def _belongs_to_experiment(launch: Launch, run: RunHead, name: str) -> bool:
    chosen = parse_overrides(run.overrides).get(_GROUP)
    return fnmatchcase(launch.name, name) or (chosen is not None and fnmatchcase(chosen, name))


def build_results_of_runs(
    chosen: Sequence[ChosenRuns], context: Context, *, spans: bool, wanted: Filter | None = None
) -> Results:
    """Return the results of the chosen runs that match `wanted`; with `spans` rows name their launch."""
    now, rows = context.now(), list[RunRow]()
    for view, runs in chosen:
        some = [one for one in runs if wanted is None or wanted.matches_run(one.state, one.record.overrides)]
        kept = compute_goodput_by_run(view.launch, some, now, view.kept)
        rows += [build_run_row(one, kept.get(one.record.index)) for one in some]
    swept = [key for view, _ in chosen for key in view.launch.swept]
    sweep = collect_overrides_by_run(chosen, context)
    return build_results(rows, now, sweep=sweep, swept=swept, spans=spans)


def collect_overrides_by_run(
    chosen: Sequence[ChosenRuns], context: Context
) -> Mapping[str, Mapping[str, str]]:
    """Return the overrides of each run by its id, with those of others that it shares.

    Where only some runs override a key, another one has the value in its own configuration.
    """
    found = {run.record.id: parse_overrides(run.record.overrides) for _, runs in chosen for run in runs}
    keys = [key for key, count in count_runs_by_key(found.values()).items() if count < len(found)]
    spelled: dict[tuple[str, str], str] = {}
    lacking: list[tuple[dict[str, str], str, str]] = []
    for run, config in _read_run_configs(chosen, context) if keys else ():
        given = found[run.id]
        for key in keys:
            text = _format_config_value(config, key)
            if text is not None and key in given:
                spelled.setdefault((key, text), given[key])
            elif text is not None:
                lacking.append((given, key, text))
    for given, key, text in lacking:
        given[key] = spelled.get((key, text), text)
    return found


def _read_run_configs(
    chosen: Sequence[ChosenRuns], context: Context
) -> Iterator[tuple[RunRecord, Mapping[str, Any]]]:
    """Yield runs with their configuration, but not those that still have to ask for values."""
    for view, runs in chosen:
        launch, records = view.launch, {run.record.index: run.record for run in runs}
        try:
            for index, config in enumerate(load_frozen_configs(launch)):
                run, asks = records.get(index), launch.searched
                if run is None or (asks and run.overrides == launch.overrides(index)):
                    continue
                changed = asks or index in launch.settings_changes
                yield run, load_run_settings(launch, index)[1] if changed else config
        except HpckitError as error:
            context.note(f"warning: {error.message}")


def _format_config_value(config: Any, key: str) -> str | None:
    """Return a value of a configuration as an override has it; None for a group, or no value."""
    for part in key.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return None
        config = config[part]
    if isinstance(config, Mapping):
        return None
    plain = isinstance(config, str) and parse_override_value(config) == config
    return config if plain else json.dumps(config, ensure_ascii=False)


def add_printed_metrics(chosen: Sequence[ChosenRuns], wanted: Sequence[str]) -> Sequence[ChosenRuns]:
    """Return the runs with metrics of what their rank 0 printed in its latest attempt.

    `wanted` has names, with commas between them, or expressions as `observe.printed_metrics`.
    The last value of each counts. Raises ConfigError.
    """
    names = (text.split(",") if "(?P<" not in text else [text] for text in wanted)
    patterns = compile_metric_patterns([*chain.from_iterable(names)])
    return [
        (view, [_add_printed_metrics(view.launch, run, patterns) for run in runs]) for view, runs in chosen
    ]


def _add_printed_metrics(launch: Launch, run: RunView, patterns: Patterns) -> RunView:
    index, found = run.record.index, dict(run.record.metrics)
    for number in list_attempt_rounds(launch, index):
        if (log := find_rank_logs(launch, index, round_number=number).get(0)) is not None:
            tail = LogTail(log.path)
            for line in chain(tail.read_new_lines(), tail.read_unfinished_line()):
                row = parse_printed_metrics(line, patterns)
                found |= {name: value for name, value in row.items() if name != "step"}
    return replace(run, record=replace(run.record, metrics=found))


def find_unlogged_metrics(launch: Launch, runs: Sequence[RunView]) -> Sequence[str]:
    """Return the names in `observe.printed_metrics` that none of these runs of a launch logged."""
    found = {name for run in runs for name in run.record.metrics}
    first: dict[tuple[str | None, ...], int] = {}
    for record in (run.record for run in runs):
        given = parse_overrides(record.overrides).items()
        words = (f"{key}={text}" for key, text in given if key.startswith(("observe", _GROUP)))
        first.setdefault((record.stage, *words), record.index)
    wanted: dict[str, None] = {}
    with suppress(HpckitError):  # a table needs no configuration
        for index in first.values():
            printed = load_run_settings(launch, index)[0].observe.printed_metrics
            wanted |= dict.fromkeys(chain(*(names for _, names, _ in compile_metric_patterns(printed))))
    return [name for name in wanted if name not in found and name != "step"]


def _load_readable_launches(folders: Iterable[Path], context: Context) -> Iterator[Launch]:
    for folder in folders:
        try:
            yield load_launch(folder)
        except HpckitError as error:
            context.note(f"warning: {error.message}")


def _select_launch_for_each_signature(views: Sequence[LaunchView]) -> list[ChosenRuns]:
    """Return the runs of one launch for each signature; `views` are newest first."""
    winners: dict[str, tuple[str, bool]] = {}
    for view in views:
        for run in view.runs:
            signature, completed = _run_signature(view, run), run.state is RunState.completed
            if signature not in winners or (completed and not winners[signature][1]):
                winners[signature] = (view.launch.id, completed)
    chosen = [
        (view, [run for run in view.runs if winners[_run_signature(view, run)][0] == view.launch.id])
        for view in views
    ]
    return [(view, runs) for view, runs in chosen if runs]


def _run_signature(view: LaunchView, run: RunView) -> str:
    return view.launch.runs[run.record.index].signature
