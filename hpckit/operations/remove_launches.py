"""Deletes whole launches: the folder, and the checkpoints that its runs keep elsewhere.

The folder is renamed first: from then on the launch does not exist for any reader. Then what is
elsewhere is removed, then the rest. `launch.json` is the first file of the rest: while it exists,
an interrupted removal can still find what is elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import HpckitError, RunError, SchedulerError, UsageError
from hpckit.model.counted import format_count
from hpckit.model.launch import ClusterKind
from hpckit.operations.add_job import lock_launch_for_adding_jobs
from hpckit.planning.clean import explain_why_clean_keeps_run
from hpckit.record.launches import Launch, load_frozen_configs, load_launch, read_launch_history
from hpckit.record.layout import LaunchPaths
from hpckit.record.lock import hold_lock
from hpckit.record.ownership import check_folder_is_own
from hpckit.record.process import is_process_alive
from hpckit.record.remove import (
    count_freed_bytes,
    explain_possible_copy,
    is_reached_without_links,
    list_removal_leftovers,
    original_name_of_leftover,
    remove_path,
    rename_for_removal,
)
from hpckit.record.trials import apply_trial_to_config
from hpckit.runtime.checkpoint.errors import ForeignFolderError
from hpckit.runtime.checkpoint.folder import check_owner_of_each_level
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import ask_ids_of_queued_jobs
from hpckit.values import dataclass, replace
from hpckit.views.launch_view import (
    Ask,
    LaunchView,
    build_launch_views,
    list_unconfirmed_jobs,
    read_local_executors,
)
from hpckit.views.living_ranks import wait_and_name_living_rank

_Queued = Callable[[str | None], frozenset[str]]
"""The user's jobs in the queue of the Slurm with this folder of commands."""
_LOOKS, _LOOK_S = 20, 0.15
"""An executor or supervisor may take three seconds to leave after its runs have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPart:
    """A folder that is removed with a launch; `size` in bytes."""

    path: Path
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRemoval:
    """What is removed with a launch, its own folder first. `left` is what stays, and why.

    `refused` is why nothing may be removed, None if it may; `begun` is whether an earlier removal
    was interrupted. `launch` is None if that removal left only files.
    """

    id: str
    folder: Path
    launch: Launch | None
    parts: tuple[RemovalPart, ...]
    left: tuple[str, ...]
    refused: str | None = None
    begun: bool = False

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)


def plan_launch_removals(launches: Sequence[Launch], context: Context) -> list[LaunchRemoval]:
    """Return what is removed with these launches, or why not; query each Slurm once for all."""
    queued: _Queued = cache(
        lambda bin_dir: ask_ids_of_queued_jobs(SlurmCommands(bin_dir=bin_dir, environ=context.environ))
    )
    views = build_launch_views([(launch, None) for launch in launches], context, ask=Ask.all_runs)
    return [_plan_launch_removal(view, queued, context) for view in views]


def _plan_launch_removal(view: LaunchView, queued: _Queued, context: Context) -> LaunchRemoval:
    launch = view.launch
    try:
        return replace(_build_launch_removal(launch), refused=_explain_removal_refusal(view, queued, context))
    except (HpckitError, OSError, ValueError, TypeError) as error:
        why = f"what it keeps outside of its folder cannot be read: {error}"
        return replace(_plan_folder_only_removal(launch.id, launch.folder), begun=False, refused=why)


def plan_interrupted_removal(folder: Path) -> LaunchRemoval:
    """Return what is left of a launch after an interrupted removal; raises HpckitError."""
    try:
        check_folder_is_own(folder)
        if LaunchPaths(folder).launch.exists():
            return replace(_build_launch_removal(load_launch(folder)), begun=True)
        return _plan_folder_only_removal(original_name_of_leftover(folder) or folder.name, folder)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"what is left of {folder} cannot be read: {error}") from error


def _plan_folder_only_removal(name: str, folder: Path) -> LaunchRemoval:
    part = RemovalPart(path=folder, size=count_freed_bytes(folder))
    return LaunchRemoval(id=name, folder=folder, launch=None, parts=(part,), left=(), begun=True)


def remove_launch(agreed: LaunchRemoval, context: Context) -> None:
    """Remove what the user agreed to, after checking again; finishes an interrupted removal.

    Raises UsageError if the launch may no longer be removed, HeldError if another process works on
    it, OSError if something could not be removed.
    """
    if agreed.begun or agreed.launch is None:
        lock = LaunchPaths(agreed.folder).resume_lock
        with hold_lock(lock, at=context.now(), what=f"is removing {agreed.id}"):
            _remove_folder_and_checkpoints(agreed.folder, agreed.parts[1:])
        return
    with _lock_existing_launch(agreed.launch, context) as fresh:
        (now,) = plan_launch_removals([fresh], context)
        if now.refused is not None:
            raise UsageError(now.refused)
        offered = {part.path for part in agreed.parts}
        elsewhere = [part for part in now.parts[1:] if part.path in offered]
        _remove_folder_and_checkpoints(rename_for_removal(agreed.folder), elsewhere)


@contextmanager
def _lock_existing_launch(launch: Launch, context: Context) -> Iterator[Launch]:
    """Hold the launch's lock; raises UsageError if another process has just removed the launch."""
    try:
        with lock_launch_for_adding_jobs(launch, context) as fresh:
            yield fresh
    except HpckitError:
        if LaunchPaths(launch.folder).launch.exists():
            raise
        raise UsageError("another process has just removed it") from None


def _remove_folder_and_checkpoints(folder: Path, elsewhere: Sequence[RemovalPart]) -> None:
    for part in elsewhere:
        remove_path(part.path)
    LaunchPaths(folder).launch.unlink(missing_ok=True)
    remove_path(folder)


def _build_launch_removal(launch: Launch) -> LaunchRemoval:
    found = [
        one for given in _list_checkpoint_dirs(launch) for one in _find_checkpoints_elsewhere(launch, given)
    ]
    paths = [launch.folder, *(place for place in found if isinstance(place, Path))]
    return LaunchRemoval(
        id=launch.id,
        folder=launch.folder,
        launch=launch,
        parts=tuple(RemovalPart(path=path, size=count_freed_bytes(path)) for path in paths),
        left=tuple(place for place in found if isinstance(place, str)),
    )


def _list_checkpoint_dirs(launch: Launch) -> Sequence[str]:
    """Return every `checkpoint.dir` of the runs; raises FrozenFolderError."""
    found: dict[str, None] = {}
    for index, config in enumerate(load_frozen_configs(launch)):
        given = (apply_trial_to_config(launch.paths, index, config) if launch.searched else config).get(
            "checkpoint", {}
        )
        if given.get("dir"):
            found[str(given["dir"])] = None
    return tuple(found)


def _find_checkpoints_elsewhere(launch: Launch, given: str) -> Iterator[Path | str]:
    """Yield what the launch keeps below a `checkpoint.dir`, or why that stays."""
    base = Path(given).expanduser()
    if not base.is_absolute():
        yield f"checkpoint.dir={given} is relative to the ranks' working folder, not known here"
        return
    own = base / launch.id
    if own.is_relative_to(launch.folder):
        return  # removed with the launch folder
    if not base.is_dir():
        yield f"checkpoint.dir={given} is not a folder of this host; remove {own} where it is one"
        return
    if (doubt := explain_possible_copy(launch.folder, launch.origin)) is not None:
        yield f"{own}: it belongs to the original launch, and {doubt}"
        return
    for leftover in list_removal_leftovers(base):
        if original_name_of_leftover(leftover) == launch.id:
            yield (
                leftover
                if (reason := _explain_unremovable_folder(leftover, base)) is None
                else f"{leftover}: {reason}"
            )
    if os.path.lexists(own):
        yield own if (reason := _explain_unremovable_folder(own, base)) is None else f"{own}: {reason}"


def _explain_unremovable_folder(folder: Path, base: Path) -> str | None:
    """Return why a checkpoint folder must not be removed by the caller; None if it may be."""
    if not is_reached_without_links(folder, base) or not folder.is_dir():
        return "it is a link, or not a folder"
    try:
        check_owner_of_each_level(folder, base)
        for run in folder.iterdir():
            if not run.is_symlink():
                check_owner_of_each_level(run, base)
    except ForeignFolderError as error:
        return error.message
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    return None


def _explain_removal_refusal(view: LaunchView, queued: _Queued, context: Context) -> str | None:
    launch = view.launch
    doubtful = list_unconfirmed_jobs(launch)
    if doubtful:
        return f"it is not known whether Slurm accepted {doubtful[0].name}: see `hpckit doctor`"
    return (
        _explain_runs_not_ended(view)
        or _find_living_writer(view, context)
        or _explain_queued_jobs(launch, queued)
    )


def _explain_runs_not_ended(view: LaunchView) -> str | None:
    of_slurm = view.launch.cluster.kind is ClusterKind.slurm
    found = [
        (run, reason)
        for run in view.runs
        if (reason := explain_why_clean_keeps_run(run, of_slurm=of_slurm)) is not None
    ]
    if not found:
        return None
    (first, reason), more = found[0], len(found) - 1
    others = f" (and {format_count(more, 'more run')} like it)" if more else ""
    return (
        f"{first.record.id} is {first.state}, and {reason}{others}; `hpckit cancel {view.launch.id}` ends it"
    )


def _find_living_writer(view: LaunchView, context: Context) -> str | None:
    """Return the process on this host that may still write although all runs have ended."""
    supervisors = [run.record.supervisor for run in view.runs if run.record.supervisor]
    executors = {
        (executor.host, executor.pid, executor.started)
        for executor in read_local_executors(view.launch).values()
    }
    for name, known in (("supervisor", supervisors), ("local executor", executors)):
        for process in known:
            if not _await_process_end(process, context):
                return f"its {name} (process {process[1]}) has not ended yet; try again shortly"
    runs = range(len(view.launch.runs))
    stayed = wait_and_name_living_rank(view.launch, runs, context, limit_s=_LOOKS * _LOOK_S)
    return None if stayed is None else f"{stayed} has not ended yet; try again shortly"


def _await_process_end(process: tuple[str, int, str], context: Context) -> bool:
    """Wait a moment for a process that has nothing left to do; False if it stays."""
    for _ in range(_LOOKS):
        if not is_process_alive(*process):
            return True
        context.sleep(_LOOK_S)
    return False


def _explain_queued_jobs(launch: Launch, queued: _Queued) -> str | None:
    """Return which jobs are still in the queue, including those that resume or submit others."""
    if launch.cluster.kind is not ClusterKind.slurm:
        return None
    try:
        ours = read_launch_history(launch).accepted.values()
        living = [job for job in ours if job in queued(launch.cluster.bin_dir)]
    except SchedulerError as error:
        return f"Slurm has not said which of its jobs are left: {error.message}"
    if not living:
        return None
    return (
        f"Slurm still has {format_count(len(living), 'job')} of it ({', '.join(living[:5])}); "
        f"`hpckit cancel {launch.id}` ends them"
    )
