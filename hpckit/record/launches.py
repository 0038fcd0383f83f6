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
from hpckit.model.history import LaunchHistory, build_launch_history
from hpckit.model.launch import Checkpoint, LaunchConfig
from hpckit.model.parallel.layout import LayoutReport
from hpckit.model.parallel.settings import replace_superseded_overrides
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.run import RunRecord
from hpckit.model.states import RunState
from hpckit.record.attempts import (
    NUMEROUS,
    latest_attempt_number,
    read_attempt_events,
    read_step_and_total_steps,
)
from hpckit.record.frozen import (
    CodeRecord,
    FrozenFields,
    RunHead,
    check_jobs_cover_every_run,
    damaged_file_error,
    has_foreground_option,
    no_launch_error,
    parse_code_record,
    parse_launch_json_runs,
    read_launch_json,
    unreadable_file_error,
)
from hpckit.record.index import RunIndex
from hpckit.record.launch_events import read_merged_events, refresh_nfs_listing_of_events
from hpckit.record.layout import CONFIGS_PER_FILE, LaunchPaths, RunPaths
from hpckit.record.metrics.history import read_last_metrics
from hpckit.record.ownership import ForeignFolder, explain_foreign_launch, foreign_launch_error
from hpckit.record.store import open_regular_file
from hpckit.record.trials import add_trial_overrides, apply_trial_to_config
from hpckit.values import dataclass, field, field_names, replace

_LOOK_BACK = 8
"""In how many earlier attempts to look for what ranks report only when steps begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(FrozenFields):
    """A launch as frozen, with the jobs that resumes added. `folder` is where it was found.

    `settings_changes` are those that resumes gave its runs, the present one last. `stranger` is why the
    folder is not the caller's own. Such a launch is only shown: no program that it names is run.
    """

    folder: Path
    runs: tuple[RunHead, ...]
    code: CodeRecord
    stranger: ForeignFolder | None = None
    settings_changes: Mapping[int, tuple[events.SettingsChanged, ...]] = field(default_factory=dict)

    def overrides(self, index: int) -> tuple[str, ...]:
        """Return the overrides of a run, with those of its layout that a resume gave it."""
        words = [word for change in self.settings_changes.get(index, ()) for word in change.words]
        return replace_superseded_overrides(self.runs[index].overrides, words)

    @property
    def in_foreground(self) -> bool:
        """Whether it was launched with --foreground; what is behind `--` is the command's."""
        return has_foreground_option(self.arguments)

    @property
    def paths(self) -> LaunchPaths:
        """The paths of its files."""
        return LaunchPaths(self.folder)

    def build_hpckit_command(self, *words: str) -> list[str]:
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
    stranger = _explain_foreign_launch(paths)
    if stranger is not None:
        raise foreign_launch_error(stranger)
    return _read_launch(paths)


def load_launch_of_any_owner(folder: Path) -> Launch:
    """Read a launch folder of any owner, only to show it.

    Raises NotFoundError and FrozenFolderError as `load_launch` does. The result contains no program
    that another user's folder names.
    """
    paths = LaunchPaths(folder.absolute())
    stranger = _explain_foreign_launch(paths)
    launch = _read_launch(paths)
    if stranger is None:
        return launch
    return replace(launch, cluster=replace(launch.cluster, bin_dir=None), stranger=stranger)


def check_launch_exists(folder: Path) -> None:
    """Raise as `load_launch_of_any_owner` does if a launch is gone; of one that is there nothing is read."""
    if not LaunchPaths(folder).launch.exists():
        load_launch_of_any_owner(folder)


def _explain_foreign_launch(paths: LaunchPaths) -> ForeignFolder | None:
    try:
        return explain_foreign_launch(paths.folder)
    except (FileNotFoundError, NotADirectoryError):
        raise no_launch_error(paths.folder, paths.launch.name) from None
    except OSError as error:
        raise unreadable_file_error(paths.launch, str(error)) from error


def _read_launch(paths: LaunchPaths) -> Launch:
    record = read_launch_json(paths.launch)
    try:
        heads = from_plain(FrozenFields, record)
        runs = parse_launch_json_runs(record["runs"])
        check_jobs_cover_every_run(heads, len(runs))
        code = parse_code_record(paths, record["code"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged_file_error(paths.launch, f"it is not a launch record ({error})") from error
    frozen = {name: getattr(heads, name) for name in field_names(heads)}
    history = build_launch_history(heads.jobs, _read_events(paths))
    return Launch(
        **(frozen | {"jobs": tuple(history.jobs)}),
        folder=paths.folder,
        runs=runs,
        code=code,
        settings_changes=history.settings_changes,
    )


def load_run_settings(launch: Launch, index: int) -> tuple[LaunchConfig, dict[str, Any]]:
    """Return the settings of a run and its whole configuration.

    Both are as frozen, plus the values from an adaptive sweep once the run has asked for them, and
    the layout that a resume gave it.
    """
    path = launch.paths.configs_file_of_run(index)
    try:
        config = _read_config_line(path, index % CONFIGS_PER_FILE)
        if launch.searched:
            config = apply_trial_to_config(launch.paths, index, config)
        for change in launch.settings_changes.get(index, ())[-1:]:
            config |= {section: to_plain(getattr(change, section)) for section in ("parallel", "resources")}
        return from_plain(LaunchConfig, config), config
    except FileNotFoundError:
        raise no_launch_error(launch.folder, f"{path.parent.name}/{path.name}") from None
    except OSError as error:
        raise unreadable_file_error(path, str(error)) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged_file_error(path, f"it has no configuration for run {index} ({error})") from error


def load_frozen_configs(launch: Launch) -> Iterator[dict[str, Any]]:
    """Yield the configuration of every run as frozen, in order; each file is read once.

    Raises FrozenFolderError if a file cannot be read or lacks a run.
    """
    for first in range(0, len(launch.runs), CONFIGS_PER_FILE):
        path = launch.paths.configs_file_of_run(first)
        try:
            with open_regular_file(path) as file:
                configs = [json.loads(line) for line in file]
        except (OSError, ValueError, RecursionError) as error:
            raise unreadable_file_error(path, str(error)) from error
        if len(configs) < min(CONFIGS_PER_FILE, len(launch.runs) - first):
            raise damaged_file_error(path, "it lacks the configuration of a run")
        yield from configs


def load_frozen_config(launch: Launch, index: int) -> dict[str, Any]:
    """Return the configuration of a run as frozen, whatever it asked for or was given since."""
    return load_run_settings(replace(launch, searched=False, settings_changes={}), index)[1]


def _read_config_line(path: Path, line: int) -> dict[str, Any]:
    with open_regular_file(path) as file:
        config = json.loads(next(islice(file, line, None), b""))
    if not isinstance(config, dict):
        raise ValueError(f"line {line + 1} is not a JSON object")  # noqa: TRY004  # caught above
    return config


def checkpoint_folder(launch: Launch, index: int, settings: LaunchConfig) -> Path:
    """Return where a run keeps its checkpoints: its own folder, or one below `checkpoint.dir`."""
    base = configured_checkpoint_dir(settings.checkpoint)
    if base is None:
        return launch.paths.run(index).checkpoints
    return base / launch.id / f"{index:05d}"


def configured_checkpoint_dir(settings: Checkpoint) -> Path | None:
    """Return the user's checkpoint folder, which may be shared; None if not set."""
    return None if settings.dir is None else Path(settings.dir).expanduser()


def read_launch_events(launch: Launch) -> tuple[events.Event, ...]:
    """Return the events of the launcher and of later verbs, in order; raises FrozenFolderError."""
    return _read_events(launch.paths)


def _read_events(paths: LaunchPaths) -> tuple[events.Event, ...]:
    try:
        return tuple(read_merged_events(paths))
    except OSError as error:
        raise unreadable_file_error(paths.events, str(error)) from error


def read_launch_history(launch: Launch) -> LaunchHistory:
    """Return the runs' history from the launch's events, with jobs added since it was read."""
    return build_launch_history(launch.jobs, read_launch_events(launch))


def read_run_records(
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
        launch=launch, history=read_launch_history(launch), kept=kept, metrics=metrics or kept is not None
    )
    return tuple(reading.read_record_of_run(index) for index in wanted)


def is_cancel_requested(launch: Launch, index: int) -> bool:
    """Return whether the user asked to cancel a run; reads only the launch's events."""
    refresh_nfs_listing_of_events(launch.paths)
    return index in read_launch_history(launch).cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One read of several runs."""

    launch: Launch
    history: LaunchHistory
    kept: RunIndex | None
    metrics: bool

    def read_record_of_run(self, index: int) -> RunRecord:
        record = self._build_unstarted_run_record(index)
        after = self.history.count_attempts_before_job(index)
        if self.kept is not None and index not in self.history.successors:
            recalled = self.kept.find_up_to_date_record(record, after)
            if recalled is not None:
                return recalled
        paths = self.launch.paths.run(index)
        number = latest_attempt_number(paths.attempts)
        if number > after:
            return self._read_and_cache_attempt_record(record, paths, number)
        if number:
            return self._build_resumed_record(record, paths, number)
        if index in self.history.refused:
            failure = Failure(cause=Cause.scheduler, message=self.history.refused[index])
            return replace(record, state=RunState.failed, failure=failure)
        return record

    def _build_unstarted_run_record(self, index: int) -> RunRecord:
        head, launch = self.launch.runs[index], self.launch
        return RunRecord(
            id=head.id,
            index=index,
            overrides=add_trial_overrides(launch.paths, index, launch.overrides(index))
            if launch.searched
            else launch.overrides(index),
            folder=launch.paths.run_folder_text(index),
            job=self.history.slurm_jobs.get(index),
            cancel_requested=index in self.history.cancelled,
            stage=head.stage,
            container=launch.find_container(index),
            grown=tuple(change for change in launch.settings_changes.get(index, ()) if change.cause),
        )

    def _read_and_cache_attempt_record(self, record: RunRecord, paths: RunPaths, number: int) -> RunRecord:
        if self.kept is None:
            return self._read_attempt_record(record, paths, number)
        stamp = self.kept.stat_attempt_files(record.index, number)
        found = self._read_attempt_record(record, paths, number)
        # An attempt may have begun between the first listing and the stamp, which would hide it.
        if latest_attempt_number(paths.attempts) == number:
            self.kept.cache_record_of_ended_attempt(found, number, stamp)
        return found

    def _build_resumed_record(self, record: RunRecord, paths: RunPaths, number: int) -> RunRecord:
        """Return a resumed run that has not started again yet: its progress, but not its end."""
        earlier = self._read_attempt_record(record, paths, number)
        return replace(
            record,
            attempt=number,
            step=earlier.step,
            total=earlier.total,
            metrics=earlier.metrics,
            layout=earlier.layout,
        )

    def _read_attempt_record(self, record: RunRecord, paths: RunPaths, number: int) -> RunRecord:
        """Return a run as of its latest attempt, with the metrics of all attempts that hold."""
        attempt = paths.attempt(number)
        record = record.apply_events(read_attempt_events(attempt, without=NUMEROUS))
        if record.layout is None and record.step is None:
            record = replace(record, layout=_find_earlier_layout(paths, number))
        step, total = read_step_and_total_steps(attempt)
        newest = (number, record.round or 0)
        logged = read_last_metrics(paths, newest) if self.metrics else {}
        return replace(record, step=record.step if step is None else step, total=total, metrics=logged)


def _find_earlier_layout(paths: RunPaths, number: int) -> LayoutReport | None:
    """Return the layout that ranks reported last before this attempt, which came to no step.

    Ranks that came to a step without a report never report one.
    """
    blank = RunRecord(id="", index=0, overrides=(), folder="")
    for earlier in range(number - 1, max(0, number - 1 - _LOOK_BACK), -1):
        found = blank.apply_events(read_attempt_events(paths.attempt(earlier), without=NUMEROUS))
        if found.layout is not None or found.step is not None:
            return found.layout
    return None
