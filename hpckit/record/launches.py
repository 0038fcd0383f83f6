"""Reads launches back: the frozen plan, and everything recorded since.

It reads files only, and asks neither the scheduler nor any process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.history import LaunchHistory, read_history
from hpckit.model.launch import Checkpoint, LaunchConfig
from hpckit.model.parallel.layout import LayoutReport
from hpckit.model.parallel.settings import with_layout_words
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.run import RunRecord
from hpckit.model.states import RunState
from hpckit.record.attempts import NUMEROUS, latest_attempt, progress_of, told_of
from hpckit.record.frozen import (
    CodeRecord,
    FrozenFields,
    RunHead,
    check_numbers,
    code_record,
    damaged_file,
    foreground_asked,
    no_launch,
    read_frozen,
    run_heads,
    unreadable_file,
)
from hpckit.record.index import RunIndex
from hpckit.record.launch_events import merged_events, renew_listing
from hpckit.record.layout import CONFIGS_PER_FILE, LaunchPaths, RunPaths
from hpckit.record.metrics.history import run_metrics
from hpckit.record.ownership import ForeignFolder, find_stranger, refused
from hpckit.record.store import open_plain
from hpckit.record.trials import asked_config, asked_overrides
from hpckit.values import dataclass, field, field_names, replace

_LOOK_BACK = 8
"""In how many earlier attempts to look for what ranks report only when steps begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(FrozenFields):
    """A launch as frozen, with the jobs that resumes added. `folder` is where it was found.

    `settings_changes` are those that resumes gave its runs, the present one last.
    `stranger` is why the folder is not the caller's own. Such a launch is only shown: no program
    that it names is run.
    """

    folder: Path
    runs: tuple[RunHead, ...]
    code: CodeRecord
    stranger: ForeignFolder | None = None
    settings_changes: Mapping[int, tuple[events.SettingsChanged, ...]] = field(default_factory=dict)

    def overrides(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a run, with those of its layout that a resume gave it."""
        words = [word for change in self.settings_changes.get(index, ()) for word in change.words]
        return with_layout_words(self.runs[index].overrides, words)

    @property
    def in_foreground(self) -> bool:
        """Whether it was launched with --foreground; what is behind `--` is the command's."""
        return foreground_asked(self.arguments)

    @property
    def paths(self) -> LaunchPaths:
        """The paths of its files."""
        return LaunchPaths(self.folder)

    def command(self, *words: str) -> list[str]:
        """Return the command that starts hpckit for this launch, with the Python frozen in it.

        -P keeps the working folder off Python's path, where `code/` would hide hpckit.
        """
        return [self.python, "-P", "-m", "hpckit", *words]


def load_launch(folder: Path) -> Launch:
    """Read a launch folder that is the caller's own, to act on it.

    Raises ForeignError if it belongs to another user, NotFoundError if there is no launch,
    FrozenFolderError if it cannot be read.
    """
    paths = LaunchPaths(folder.absolute())
    stranger = _stranger(paths)
    if stranger is not None:
        raise refused(stranger)
    return _load(paths)


def load_evidence(folder: Path) -> Launch:
    """Read a launch folder of any owner, only to show it.

    Raises NotFoundError and FrozenFolderError as `load_launch` does. The result contains no program
    that another user's folder names.
    """
    paths = LaunchPaths(folder.absolute())
    stranger = _stranger(paths)
    launch = _load(paths)
    if stranger is None:
        return launch
    return replace(launch, cluster=replace(launch.cluster, bin_dir=None), stranger=stranger)


def _stranger(paths: LaunchPaths) -> ForeignFolder | None:
    try:
        return find_stranger(paths.folder)
    except (FileNotFoundError, NotADirectoryError):
        raise no_launch(paths.folder, paths.launch.name) from None
    except OSError as error:
        raise unreadable_file(paths.launch, str(error)) from error


def _load(paths: LaunchPaths) -> Launch:
    record = read_frozen(paths.launch)
    try:
        heads = from_plain(FrozenFields, record)
        runs = run_heads(record["runs"])
        check_numbers(heads, len(runs))
        code = code_record(paths, record["code"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged_file(paths.launch, f"it is not a launch record ({error})") from error
    frozen = {name: getattr(heads, name) for name in field_names(heads)}
    history = read_history(heads.jobs, _told(paths))
    return Launch(
        **(frozen | {"jobs": tuple(history.jobs)}),
        folder=paths.folder,
        runs=runs,
        code=code,
        settings_changes=history.settings_changes,
    )


def load_settings(launch: Launch, index: int) -> tuple[LaunchConfig, dict[str, Any]]:
    """Return the settings of a run and its whole configuration.

    Both are as frozen, plus the values from an adaptive sweep once the run has asked for them, and
    the layout that a resume gave it.
    """
    path = launch.paths.configs(index)
    try:
        config = _read_config(path, index % CONFIGS_PER_FILE)
        if launch.searched:
            config = asked_config(launch.paths, index, config)
        for change in launch.settings_changes.get(index, ())[-1:]:
            config |= {
                section: to_plain(getattr(change, section)) for section in ("parallel", "resources")
            }
        return from_plain(LaunchConfig, config), config
    except FileNotFoundError:
        raise no_launch(launch.folder, f"{path.parent.name}/{path.name}") from None
    except OSError as error:
        raise unreadable_file(path, str(error)) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged_file(path, f"it holds no configuration of run {index} ({error})") from error


def load_configs(launch: Launch) -> Iterator[dict[str, Any]]:
    """Yield the configuration of every run as frozen, in order; each file is read once.

    Raises FrozenFolderError if a file cannot be read or lacks a run.
    """
    for first in range(0, len(launch.runs), CONFIGS_PER_FILE):
        path = launch.paths.configs(first)
        try:
            with open_plain(path) as file:
                configs = [json.loads(line) for line in file]
        except (OSError, ValueError, RecursionError) as error:
            raise unreadable_file(path, str(error)) from error
        if len(configs) < min(CONFIGS_PER_FILE, len(launch.runs) - first):
            raise damaged_file(path, "it lacks the configuration of a run")
        yield from configs


def load_frozen(launch: Launch, index: int) -> dict[str, Any]:
    """Return the configuration of a run as frozen, whatever it asked for or was given since."""
    return load_settings(replace(launch, searched=False, settings_changes={}), index)[1]


def _read_config(path: Path, line: int) -> dict[str, Any]:
    with open_plain(path) as file:
        config = json.loads(next(islice(file, line, None), b""))
    if not isinstance(config, dict):
        raise ValueError(f"line {line + 1} is no JSON object")  # noqa: TRY004  # caught above
    return config


def checkpoint_folder(launch: Launch, index: int, settings: LaunchConfig) -> Path:
    """Return where a run keeps its checkpoints: its own folder, or one below `checkpoint.dir`."""
    base = checkpoint_base(settings.checkpoint)
    if base is None:
        return launch.paths.run(index).checkpoints
    return base / launch.id / f"{index:05d}"


def checkpoint_base(settings: Checkpoint) -> Path | None:
    """Return the user's checkpoint folder, which may be shared; None if not set."""
    return None if settings.dir is None else Path(settings.dir).expanduser()


def read_launch_events(launch: Launch) -> tuple[events.Event, ...]:
    """Return the events of the launcher and of later verbs, in order; raises FrozenFolderError."""
    return _told(launch.paths)


def _told(paths: LaunchPaths) -> tuple[events.Event, ...]:
    try:
        return tuple(merged_events(paths))
    except OSError as error:
        raise unreadable_file(paths.events, str(error)) from error


def read_launch_history(launch: Launch) -> LaunchHistory:
    """Return the runs' history from the launch's events, with jobs added since it was read."""
    return read_history(launch.jobs, read_launch_events(launch))


def read_runs(
    launch: Launch,
    indices: Iterable[int] | None = None,
    *,
    kept: RunIndex | None = None,
    metrics: bool = False,
) -> tuple[RunRecord, ...]:
    """Return the records of all runs, or of `indices`, from the files as they are now.

    Metrics are included with `metrics` or `kept`. Records still valid in `kept` are taken from it,
    and runs that have ended since are added to it.
    """
    wanted = range(len(launch.runs)) if indices is None else indices
    reading = _Reading(
        launch=launch,
        history=read_launch_history(launch),
        kept=kept,
        metrics=metrics or kept is not None,
    )
    return tuple(reading.run(index) for index in wanted)


def is_cancelled(launch: Launch, index: int) -> bool:
    """Return whether the user asked to cancel a run; reads only the launch's events."""
    renew_listing(launch.paths)
    return index in read_launch_history(launch).cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One read of several runs."""

    launch: Launch
    history: LaunchHistory
    kept: RunIndex | None
    metrics: bool

    def run(self, index: int) -> RunRecord:
        record = self._waiting(index)
        after = self.history.attempts_before(index)
        if self.kept is not None and index not in self.history.successors:
            recalled = self.kept.recall(record, after)
            if recalled is not None:
                return recalled
        paths = self.launch.paths.run(index)
        number = latest_attempt(paths.attempts)
        if number > after:
            return self._latest(record, paths, number)
        if number:
            return self._waiting_again(record, paths, number)
        if index in self.history.refused:
            failure = Failure(cause=Cause.scheduler, message=self.history.refused[index])
            return replace(record, state=RunState.failed, failure=failure)
        return record

    def _waiting(self, index: int) -> RunRecord:
        head, launch = self.launch.runs[index], self.launch
        return RunRecord(
            id=head.id,
            index=index,
            overrides=asked_overrides(launch.paths, index, launch.overrides(index))
            if launch.searched
            else launch.overrides(index),
            folder=launch.paths.run_text(index),
            job=self.history.slurm_jobs.get(index),
            cancel_requested=index in self.history.cancelled,
            stage=head.stage,
        )

    def _latest(self, record: RunRecord, paths: RunPaths, number: int) -> RunRecord:
        if self.kept is None:
            return self._attempt(record, paths, number)
        stamp = self.kept.stamp(record.index, number)
        found = self._attempt(record, paths, number)
        # An attempt may have begun between the first listing and the stamp, which would hide it.
        if latest_attempt(paths.attempts) == number:
            self.kept.keep(found, number, stamp)
        return found

    def _waiting_again(self, record: RunRecord, paths: RunPaths, number: int) -> RunRecord:
        """Return a resumed run that has not started again yet: its progress, but not its end."""
        earlier = self._attempt(record, paths, number)
        return replace(
            record,
            attempt=number,
            step=earlier.step,
            total=earlier.total,
            metrics=earlier.metrics,
            layout=earlier.layout,
        )

    def _attempt(self, record: RunRecord, paths: RunPaths, number: int) -> RunRecord:
        """Return a run as of its latest attempt, with the metrics of all attempts that hold."""
        attempt = paths.attempt(number)
        record = record.fold(told_of(attempt, without=NUMEROUS))
        if record.layout is None and record.step is None:
            record = replace(record, layout=_layout_before(paths, number))
        step, total = progress_of(attempt)
        newest = (number, record.round or 0)
        logged = run_metrics(paths, newest) if self.metrics else {}
        return replace(
            record, step=record.step if step is None else step, total=total, metrics=logged
        )


def _layout_before(paths: RunPaths, number: int) -> LayoutReport | None:
    """Return the layout that ranks reported last before this attempt, which came to no step.

    Ranks that came to a step without a report never report one.
    """
    blank = RunRecord(id="", index=0, overrides=(), folder="")
    for earlier in range(number - 1, max(0, number - 1 - _LOOK_BACK), -1):
        found = blank.fold(told_of(paths.attempt(earlier), without=NUMEROUS))
        if found.layout is not None or found.step is not None:
            return found.layout
    return None
