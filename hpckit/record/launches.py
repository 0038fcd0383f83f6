"""Reads launches back: what was frozen, and what has been recorded since.

Responsible for turning files into Launch and RunRecord, without anybody's help: no scheduler,
no process is asked. It must not write.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.goodput import StepProgress
from hpckit.model.history import LaunchHistory, read_history
from hpckit.model.launch import Checkpoint, LaunchConfig
from hpckit.model.plain import from_plain
from hpckit.model.run import RunRecord
from hpckit.model.states import RunState
from hpckit.record.frozen import (
    CodeRecord,
    FrozenFields,
    RunHead,
    check_numbers,
    code_record,
    no_launch,
    read_frozen,
    run_heads,
    unreadable_file,
)
from hpckit.record.index import RunIndex
from hpckit.record.launch_events import merged_events, renew_listing
from hpckit.record.layout import CONFIGS_PER_FILE, AttemptPaths, LaunchPaths, RunPaths
from hpckit.record.metrics import run_metrics
from hpckit.record.ownership import ForeignFolder, find_stranger, refused
from hpckit.record.store import open_plain, read_events, read_json
from hpckit.record.trials import asked_config, asked_overrides

NUMEROUS = frozenset({events.RankExited.kind, events.CheckpointSaved.kind})
"""Kinds of which an attempt may have a hundred thousand, and that a RunRecord does not tell of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(FrozenFields):
    """A launch as frozen, with the jobs that resumes added. `folder` is where it was found.

    `stranger` says why the folder is not the caller's own: then it is evidence, and names no
    program to run.
    """

    folder: Path
    runs: tuple[RunHead, ...]
    code: CodeRecord
    stranger: ForeignFolder | None = None

    @property
    def paths(self) -> LaunchPaths:
        """Where its files lie."""
        return LaunchPaths(self.folder)

    def command(self, *words: str) -> list[str]:
        """Return the words that start hpckit for this launch, by the Python it was frozen with.

        -P: the working folder must not stand on Python's path, where `code/` would hide hpckit.
        """
        return [self.python, "-P", "-m", "hpckit", *words]


def load_launch(folder: Path) -> Launch:
    """Read a launch folder that is the caller's own, to act on it.

    Raises ForeignError where it is not, NotFoundError where there is no launch, FrozenFolderError
    where it cannot be read.
    """
    paths = LaunchPaths(folder.absolute())
    stranger = _stranger(paths)
    if stranger is not None:
        raise refused(stranger)
    return _load(paths)


def load_evidence(folder: Path) -> Launch:
    """Read a launch folder, whoever it belongs to, only to show it. Raises likewise.

    No program that a stranger's folder names is left in what is returned.
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
        raise unreadable_file(paths.launch, f"it is not a launch record ({error})") from error
    frozen = {field.name: getattr(heads, field.name) for field in fields(heads)}
    jobs = tuple(read_history(heads.jobs, _told(paths)).jobs)
    return Launch(**(frozen | {"jobs": jobs}), folder=paths.folder, runs=runs, code=code)


def load_settings(launch: Launch, index: int) -> tuple[LaunchConfig, dict[str, Any]]:
    """Return the settings of a run and its whole configuration.

    Both are as frozen, with the values the run was given where it has asked for some.
    """
    path = launch.paths.configs(index)
    try:
        config = _read_config(path, index % CONFIGS_PER_FILE)
        if launch.searched:
            config = asked_config(launch.paths, index, config)
        return from_plain(LaunchConfig, config), config
    except FileNotFoundError:
        raise no_launch(launch.folder, f"{path.parent.name}/{path.name}") from None
    except OSError as error:
        raise unreadable_file(path, str(error)) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise unreadable_file(
            path, f"it holds no configuration of run {index} ({error})"
        ) from error


def load_configs(launch: Launch) -> Iterator[dict[str, Any]]:
    """Yield the configuration of every run as frozen, in order; each file is read once.

    Raises FrozenFolderError.
    """
    for first in range(0, len(launch.runs), CONFIGS_PER_FILE):
        path = launch.paths.configs(first)
        try:
            with open_plain(path) as file:
                configs = [json.loads(line) for line in file]
        except (OSError, ValueError, RecursionError) as error:
            raise unreadable_file(path, str(error)) from error
        if len(configs) < min(CONFIGS_PER_FILE, len(launch.runs) - first):
            raise unreadable_file(path, "it lacks the configuration of a run")
        yield from configs


def load_frozen(launch: Launch, index: int) -> dict[str, Any]:
    """Return the configuration of a run as frozen, whatever it was given since."""
    return load_settings(replace(launch, searched=False), index)[1]


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
    """Return the folder that the user states for checkpoints, which others may share."""
    return None if settings.dir is None else Path(settings.dir).expanduser()


def read_launch_events(launch: Launch) -> tuple[events.Event, ...]:
    """Return what the launcher and later verbs recorded, in order; raises FrozenFolderError."""
    return _told(launch.paths)


def _told(paths: LaunchPaths) -> tuple[events.Event, ...]:
    try:
        return tuple(merged_events(paths))
    except OSError as error:
        raise unreadable_file(paths.events, str(error)) from error


def read_launch_history(launch: Launch) -> LaunchHistory:
    """Return what its events say of its runs; jobs added since it was read are in."""
    return read_history(launch.jobs, read_launch_events(launch))


def read_runs(
    launch: Launch,
    indices: Iterable[int] | None = None,
    *,
    kept: RunIndex | None = None,
    metrics: bool = False,
) -> tuple[RunRecord, ...]:
    """Return the records of all runs, or of these, as they stand in the files now.

    Metrics are in only where they were asked for, or with `kept`: what that still holds is taken
    from there, and it takes what has ended since.
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
    """Whether the user has asked to cancel a run; read from the launch's events alone."""
    renew_listing(launch.paths)
    return index in read_launch_history(launch).cancelled


def read_attempts(launch: Launch, index: int) -> Iterator[tuple[int, tuple[events.Event, ...]]]:
    """Yield every attempt of a run, oldest first: its number, and its events in order.

    Each is read when it is asked for; one without events (its supervisor was killed at once, or
    could not write) has none.
    """
    attempts = launch.paths.run(index).attempts
    for number in attempt_numbers(attempts):
        yield number, tuple(_told_of(launch.paths.run(index).attempt(number)))


def _told_of(attempt: AttemptPaths, *, without: Collection[str] = ()) -> Iterator[events.Event]:
    try:
        yield from read_events(attempt.events, without=without)
    except OSError as error:
        raise unreadable_file(attempt.events, str(error)) from error


def read_progress(launch: Launch, index: int, attempt: int) -> StepProgress | None:
    """Return the latest step of an attempt, None where it began none or the file cannot be read."""
    try:
        return from_plain(
            StepProgress, read_json(launch.paths.run(index).attempt(attempt).progress)
        )
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One reading of several runs."""

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
            overrides=asked_overrides(launch.paths, index, head.overrides)
            if launch.searched
            else head.overrides,
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
        # Between the first listing and the stamp an attempt may have begun, which it then hides.
        if latest_attempt(paths.attempts) == number:
            self.kept.keep(found, number, stamp)
        return found

    def _waiting_again(self, record: RunRecord, paths: RunPaths, number: int) -> RunRecord:
        """Return a resumed run that has not begun anew: what it had reached, without its end."""
        earlier = self._attempt(record, paths, number)
        return replace(
            record,
            attempt=number,
            step=earlier.step,
            total=earlier.total,
            metrics=earlier.metrics,
        )

    def _attempt(self, record: RunRecord, paths: RunPaths, number: int) -> RunRecord:
        """Return a run as its latest attempt has left it, with what every attempt has logged."""
        attempt = paths.attempt(number)
        record = record.fold(_told_of(attempt, without=NUMEROUS))
        step, total = _progress(attempt)
        logged = run_metrics(paths, attempt_numbers(paths.attempts)) if self.metrics else {}
        return replace(
            record, step=record.step if step is None else step, total=total, metrics=logged
        )


def latest_attempt(attempts: Path) -> int:
    """Return the number of the latest attempt in a run's folder of attempts, 0 without one.

    Raises as `attempt_numbers`.
    """
    return max(attempt_numbers(attempts), default=0)


_LISTINGS, _LISTING_PAUSE_S = 3, 0.3


def is_latest(attempts: Path, number: int) -> bool:
    """Whether this attempt (or round) is the latest in the folder of all; it must be there.

    The fence: raises OSError where the listing cannot be read, which must never pass for "nothing
    newer". It is read again shortly, as a file system that moves to another server fails briefly.
    """
    return max(_listed(attempts), default=None) == number


def attempt_numbers(attempts: Path) -> tuple[int, ...]:
    """Return the numbers of the attempts in a run's folder of attempts, from the first.

    Raises FrozenFolderError where it is there and cannot be read: that must never pass for "no
    attempts yet", upon which a run would begin once more.
    """
    try:
        return tuple(sorted(_listed(attempts, final=FileNotFoundError)))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unreadable_file(attempts, str(error)) from error


def _listed(attempts: Path, *, final: type[OSError] | tuple[()] = ()) -> list[int]:
    """Return the numbers in a listing; an error that is not `final` may pass."""
    for _ in range(_LISTINGS - 1):
        try:
            return _numbers_in(attempts)
        except final:
            raise
        except OSError:
            time.sleep(_LISTING_PAUSE_S)
    return _numbers_in(attempts)


def _numbers_in(attempts: Path) -> list[int]:
    names = [entry.name for entry in attempts.iterdir()]
    return [int(name) for name in names if name.isdecimal()]


def progress_step(attempt: AttemptPaths) -> int | None:
    """Return the latest step an attempt has noted, None without one that can be read."""
    return _progress(attempt)[0]


def _progress(attempt: AttemptPaths) -> tuple[int | None, int | None]:
    """Return the latest step an attempt has noted, and how many there are; None if not known."""
    try:
        noted = read_json(attempt.progress)
        step, total = noted["step"], noted.get("total")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, None
    return step if isinstance(step, int) else None, total if isinstance(total, int) else None
