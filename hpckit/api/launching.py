"""`hpckit.launch`: the words of the command line, from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.api.handles import Launch
from hpckit.api.invocation import build_python_context, explain_errors
from hpckit.api.plain import make_plain_command, make_plain_mapping, make_plain_points
from hpckit.cli.gc_pause import pause_garbage_collector
from hpckit.cli.launch_output import explain_repeated_runs, tell_which_runs_are_not_launched
from hpckit.config.points import encode_hydra_value
from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.model.finding import CheckReport
from hpckit.operations.check import ModelDepth
from hpckit.operations.launch import (
    LaunchOptions,
    PlannedLaunch,
    check_planned_launch,
    plan_launch,
    start_planned_launch,
)
from hpckit.record.launches import Launch as LaunchRecord


@explain_errors
def launch(  # noqa: PLR0913  # the options of the verb
    *words: str | Mapping[str, Any],
    multirun: bool = False,
    points: Iterable[Mapping[str, Any]] | None = None,
    command: Sequence[str | os.PathLike[str]] | None = None,
    cwd: Path | str | None = None,
    config_dir: Path | str | None = None,
    config_name: str | None = None,
    rerun: bool = False,
    any_code: bool = False,
    changed_code: bool = False,
    auto_resume: bool = False,
    check: bool = True,
    **settings: Any,
) -> Launch:
    """Start runs as `hpckit launch` does, and return a handle on them at once.

    `words` are overrides in Hydra's grammar, as typed on the command line, or mappings of keys to
    values: numbers, texts, paths, enumerations by their value, numpy's and lists of these; `settings`
    are more of them: `cluster="lab"`. With `multirun` words with several values are a sweep. `points`
    are the runs of a sweep, one mapping of keys to values each, of any number, without a file.
    `command` is run in place of an entry point. The project is `cwd`, by default the current folder,
    with its `conf/`.

    Runs that are known from earlier launches do not start again: the handle has them, too. The
    options `rerun`, `any_code`, `changed_code` and `auto_resume` are those of the command line, and
    `check=False` is `--no-check`. Nothing asks a question.

    Raises UsageError if runs would be repeated without leave, ConfigError if something is wrong with
    the configuration or a check finds an error, SchedulerError if Slurm refuses. Nothing is then
    left behind.

    Example:
        launch = hpckit.launch("experiment=digits", "lr=0.1,0.2", multirun=True, cluster="local")
        if launch.wait():
            print(launch.results())

    """
    context = build_python_context(cwd)
    listed = None if points is None else make_plain_points(points)
    request = ComposeRequest(
        overrides=tuple(_list_overrides(words, settings)),
        command=None if command is None else make_plain_command(command),
        config_dir=None if config_dir is None else Path(config_dir),
        config_name=config_name or context.environ.get("HPCKIT_CONFIG_NAME") or None,
        multirun=multirun or listed is not None,
        points=listed,
        environ=context.environ,
        cwd=context.cwd,
    )
    options = LaunchOptions(
        checks=ModelDepth.sure if check else None,
        rerun=rerun,
        any_code=any_code,
        changed_code=changed_code,
        auto_resume=auto_resume,
        quiet=True,
    )
    with pause_garbage_collector():
        planned = plan_launch(request, _list_words_to_record(request, multirun=multirun), options, context)
    tell_which_runs_are_not_launched(planned.known, context, planned.whole.plan.cluster.kind)
    return _start(planned, context)


def _list_overrides(words: Iterable[str | Mapping[str, Any]], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield words in Hydra's grammar; raises UsageError for a word or key of another type."""
    for word in (*words, settings):
        if isinstance(word, str):
            yield word
        elif isinstance(word, Mapping):
            for key, value in make_plain_mapping(word, "a word").items():
                yield f"{key}={_encode_value(key, value)}"
        else:
            raise UsageError(
                f"hpckit.launch got {word!r}; words are texts such as 'lr=0.1', or mappings",
                hint="hpckit.launch('experiment=digits', {'lr': 0.1}, cluster='local')",
            )


def _list_words_to_record(request: ComposeRequest, *, multirun: bool) -> list[str]:
    """Return the words of the command line that ask for the same; a rerun reads where files come from."""
    places = {"--config-dir": request.config_dir, "--config-name": request.config_name}
    options = [f"{option}={said}" for option, said in places.items() if said]
    command = ["--", *request.command] if request.command else []
    return ["launch", *request.overrides, *options, *(["-m"] if multirun else []), *command]


def _encode_value(key: str, value: Any) -> str:
    try:
        return encode_hydra_value(value)
    except ValueError as error:
        raise UsageError(
            f"the value of {key} is one that no override can write: {error}",
            hint="put it into a file of conf/, and choose it from there",
        ) from error


def _start(planned: PlannedLaunch, context: Context) -> Launch:
    explained = explain_repeated_runs(planned.known)
    if explained is not None and not planned.options.changed_code:
        told, ways = explained
        raise UsageError(f"{told}; nothing was written or submitted", hint=ways)
    _raise_check_errors(check_planned_launch(planned, context), context)
    started = None
    if planned.left is not None:
        started = start_planned_launch(planned.left, planned, context).launch
    return Launch(_list_places(planned, started), _folder=None if started is None else started.folder)


def _raise_check_errors(report: CheckReport | None, context: Context) -> None:
    """Log what the checks only warn of, and raise ConfigError for the rest."""
    if report is None:
        return
    for reason in report.unchecked:
        context.note(f"not checked: {reason}")
    for finding in report.warnings:
        context.note(f"warning: {finding.message}")
    if report.errors:
        hints = "; ".join(finding.hint for finding in report.errors if finding.hint)
        raise ConfigError(
            f"{'; '.join(finding.message for finding in report.errors)}; nothing was written or submitted",
            hint=f"{hints}; check=False launches anyway".removeprefix("; "),
        )


def _list_places(planned: PlannedLaunch, started: LaunchRecord | None) -> list[tuple[Path, int]]:
    """Return the folder and index of each run that was asked for, in order: new ones, and known ones."""
    known = {run.index: (run.folder, run.earlier) for run in (*planned.known.skipped, *planned.known.adopted)}
    fresh = iter(range(0 if started is None else len(started.runs)))
    wanted = len(planned.whole.plan.runs)
    folder = Path(planned.whole.plan.folder) if started is None else started.folder
    return [known[index] if index in known else (folder, next(fresh)) for index in range(wanted)]
