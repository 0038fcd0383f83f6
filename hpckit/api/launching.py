"""`hpckit.launch`: the words of the command line, and values of Python, as a configuration holds them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

from hpckit.api.handles import Launch
from hpckit.api.invocation import build_python_context, explain_errors
from hpckit.cli import launch_output
from hpckit.cli.gc_pause import pause_garbage_collector
from hpckit.config.points import encode_hydra_value
from hpckit.config.request import ComposeRequest
from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.operations.check import ModelDepth
from hpckit.operations.launch import (
    LaunchOptions,
    PlannedLaunch,
    RunsStartedMeanwhileError,
    check_planned_launch,
    plan_launch,
    start_planned_launch,
)
from hpckit.planning.sweep.points import MAX_POINTS
from hpckit.values import replace

_SCALARS = (bool, int, float, str, type(None))
_MOST_DIGITS = 4000
"""Python converts no longer whole numbers to text by itself."""
_POINTS = "give a list of mappings, one for each run: points=[{'lr': 0.1}, {'lr': 0.2}]"


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

    `words` are overrides in Hydra's grammar, as typed on the command line, or mappings of keys to values:
    numbers, texts, paths, enumerations by their value, numpy's and lists of these; `settings` are more of
    them: `cluster="lab"`. With `multirun` words with several values are a sweep. `points` are the runs of a
    sweep, one mapping of keys to values each, of any number, without a file. `command` is run in place of an
    entry point. The project is `cwd`, by default the current folder, with its `conf/`.

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
    with pause_garbage_collector(freeze=False):
        planned = plan_launch(request, _list_typed_words(request, multirun=multirun), options, context)
    return _start(planned, context)


def _list_typed_words(request: ComposeRequest, *, multirun: bool) -> list[str]:
    """Return what asks for the same on the command line; a rerun reads from it where files come from."""
    said = {"--config-dir": request.config_dir, "--config-name": request.config_name}
    options = (f"{option}={value}" for option, value in said.items() if value)
    command = ["--", *request.command] if request.command else []
    return ["launch", *request.overrides, *options, *(["-m"] if multirun else []), *command]


def _list_overrides(words: Iterable[str | Mapping[str, Any]], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield words in Hydra's grammar; raises UsageError for a word or key of another type."""
    for word in (*words, settings):
        if isinstance(word, str):
            yield word
        elif isinstance(word, Mapping):
            for key, value in make_plain_mapping(word, "a word").items():
                try:
                    text = encode_hydra_value(value)
                except ValueError as error:
                    raise UsageError(
                        f"the value of {key} is one that no override can write: {error}",
                        hint="put it into a file of conf/, and choose it from there",
                    ) from error
                yield f"{key}={text}"
        else:
            raise UsageError(
                f"hpckit.launch got {word!r}; words are texts such as 'lr=0.1', or mappings",
                hint="hpckit.launch('experiment=digits', {'lr': 0.1}, cluster='local')",
            )


def make_plain_points(points: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the points of a sweep, at most one more than a launch may have; raises UsageError."""
    if isinstance(points, str | bytes | Mapping) or not isinstance(points, Iterable):
        raise UsageError(f"points is {points!r}", hint=_POINTS)
    if hasattr(points, "to_dict"):
        raise UsageError("points is a data frame", hint="points=frame.to_dict('records')")
    numbered = enumerate(islice(points, MAX_POINTS + 1))
    return tuple(make_plain_mapping(point, f"points[{number}]") for number, point in numbered)


def make_plain_mapping(value: Any, what: str) -> dict[str, Any]:
    """Return a mapping of keys to plain values; raises UsageError, naming the key."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} is {value!r}; it must be a mapping of keys to values", hint=_POINTS)
    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"{what} has the key {key!r}; keys are texts", hint="such as 'optimizer.lr'")
    try:
        return {key: _make_plain(one, key) for key, one in value.items()}
    except RecursionError:
        raise UsageError(f"{what} contains itself, or is nested too deeply") from None


def make_plain_command(command: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the words of a command; raises UsageError."""
    if isinstance(command, str | bytes):
        hint = "give its words: command=['python', 'train.py'], or shlex.split(text)"
        raise UsageError(f"command is the one text {command!r}", hint=hint)
    words: list[Any] = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    for word in words:
        if type(word) not in (str, int, float):
            raise UsageError(f"command has the word {word!r}; words are texts, numbers and paths")
    return tuple(map(str, words))


def _make_plain(value: Any, key: str) -> Any:
    value = value.value if isinstance(value, Enum) else value
    if type(value) in _SCALARS:
        if type(value) is int and value.bit_length() > 3 * _MOST_DIGITS:
            raise UsageError(f"{key} is a whole number of more than {_MOST_DIGITS} digits")
        return value
    if hasattr(value, "tolist"):  # scalars and arrays of numpy, tensors
        return _make_plain(value.tolist(), key)
    if isinstance(value, Mapping):
        return {_make_plain(inner, key): _make_plain(one, f"{key}.{inner}") for inner, one in value.items()}
    if isinstance(value, list | tuple):
        return [_make_plain(one, key) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for kind in (int, float, str):
        if isinstance(value, kind):  # of a subclass
            return kind(value)
    raise UsageError(
        f"the value of {key} is {value!r}, of type {type(value).__name__}, which no configuration can hold",
        hint="give numbers, texts, booleans, None, paths, or lists and mappings of these",
    )


def _start(planned: PlannedLaunch, context: Context) -> Launch:
    """Check and start what is left of a launch; the handle has its runs and known ones, as asked for."""
    launch_output.tell_which_runs_are_not_launched(planned.known, context, planned.whole.plan.cluster.kind)
    explained = launch_output.explain_repeated_runs(planned.known)
    if explained is not None and not planned.options.changed_code:
        raise UsageError(f"{explained[0]}; nothing was written or submitted", hint=explained[1])
    report = check_planned_launch(planned, context)
    if report is not None:
        launch_output.print_check_findings(replace(report, findings=report.warnings), context)
    if report is not None and report.errors:
        hints = [finding.hint for finding in report.errors if finding.hint]
        raise ConfigError(
            f"{'; '.join(finding.message for finding in report.errors)}; nothing was written or submitted",
            hint="; ".join([*hints, "check=False launches anyway"]),
        )
    known = {run.index: (run.folder, run.earlier) for run in (*planned.known.skipped, *planned.known.adopted)}
    if planned.left is None:
        return Launch([known[run.index] for run in planned.whole.plan.runs])
    try:
        started = start_planned_launch(planned.left, planned, context).launch
    except RunsStartedMeanwhileError:
        return _start(plan_launch(planned.request, planned.words, planned.options, context), context)
    fresh = ((started.folder, run.index) for run in started.runs)
    places = [known.get(run.index) or next(fresh) for run in planned.whole.plan.runs]
    return Launch(places, started.folder)
