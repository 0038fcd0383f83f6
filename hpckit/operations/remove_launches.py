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
from hpckit.model.counted import counted
from hpckit.model.launch import ClusterKind
from hpckit.operations.add_job import alone
from hpckit.planning.clean import spared
from hpckit.record.launches import Launch, load_configs, load_launch, read_launch_history
from hpckit.record.layout import LaunchPaths
from hpckit.record.lock import exclusive
from hpckit.record.ownership import check_place
from hpckit.record.process import alive
from hpckit.record.remove import (
    begin_removal,
    is_plain,
    leftovers,
    remove,
    removed_name,
    size_of,
    why_copy,
)
from hpckit.record.trials import asked_config
from hpckit.runtime.checkpoint.errors import ForeignFolderError
from hpckit.runtime.checkpoint.folder import check_checkpoint_owner
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import queued_jobs
from hpckit.values import dataclass, replace
from hpckit.views.launch_view import Ask, LaunchView, launch_views, local_executors, unconfirmed
from hpckit.views.living_ranks import outliving_rank

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


def plan_removals(launches: Sequence[Launch], context: Context) -> list[LaunchRemoval]:
    """Return what is removed with these launches, or why not; query each Slurm once for all."""
    queued: _Queued = cache(
        lambda bin_dir: queued_jobs(SlurmCommands(bin_dir=bin_dir, environ=context.environ))
    )
    views = launch_views([(launch, None) for launch in launches], context, ask=Ask.all_runs)
    return [_planned(view, queued, context) for view in views]


def _planned(view: LaunchView, queued: _Queued, context: Context) -> LaunchRemoval:
    launch = view.launch
    try:
        return replace(_removal(launch), refused=_refusal(view, queued, context))
    except (HpckitError, OSError, ValueError, TypeError) as error:
        why = f"what it keeps outside of its folder cannot be read: {error}"
        return replace(_bare(launch.id, launch.folder), begun=False, refused=why)


def plan_begun_removal(folder: Path) -> LaunchRemoval:
    """Return what is left of a launch after an interrupted removal; raises HpckitError."""
    try:
        check_place(folder)
        if LaunchPaths(folder).launch.exists():
            return replace(_removal(load_launch(folder)), begun=True)
        return _bare(removed_name(folder) or folder.name, folder)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"what is left of {folder} cannot be read: {error}") from error


def _bare(name: str, folder: Path) -> LaunchRemoval:
    """Return the removal of only a folder."""
    part = RemovalPart(path=folder, size=size_of(folder))
    return LaunchRemoval(id=name, folder=folder, launch=None, parts=(part,), left=(), begun=True)


def remove_launch(agreed: LaunchRemoval, context: Context) -> None:
    """Remove what the user agreed to, after checking again; finishes an interrupted removal.

    Raises UsageError if the launch may no longer be removed, HeldError if another process works on
    it, OSError if something could not be removed.
    """
    if agreed.begun or agreed.launch is None:
        lock = LaunchPaths(agreed.folder).resume_lock
        with exclusive(lock, at=context.now(), what=f"is removing {agreed.id}"):
            _finish(agreed.folder, agreed.parts[1:])
        return
    with _alone(agreed.launch, context) as fresh:
        (now,) = plan_removals([fresh], context)
        if now.refused is not None:
            raise UsageError(now.refused)
        offered = {part.path for part in agreed.parts}
        elsewhere = [part for part in now.parts[1:] if part.path in offered]
        _finish(begin_removal(agreed.folder), elsewhere)


@contextmanager
def _alone(launch: Launch, context: Context) -> Iterator[Launch]:
    """Hold the launch's lock; raises UsageError if another process has just removed the launch."""
    try:
        with alone(launch, context) as fresh:
            yield fresh
    except HpckitError:
        if LaunchPaths(launch.folder).launch.exists():
            raise
        raise UsageError("another process has just removed it") from None


def _finish(folder: Path, elsewhere: Sequence[RemovalPart]) -> None:
    for part in elsewhere:
        remove(part.path)
    LaunchPaths(folder).launch.unlink(missing_ok=True)
    remove(folder)


def _removal(launch: Launch) -> LaunchRemoval:
    found = [one for given in _checkpoint_dirs(launch) for one in _elsewhere(launch, given)]
    paths = [launch.folder, *(place for place in found if isinstance(place, Path))]
    return LaunchRemoval(
        id=launch.id,
        folder=launch.folder,
        launch=launch,
        parts=tuple(RemovalPart(path=path, size=size_of(path)) for path in paths),
        left=tuple(place for place in found if isinstance(place, str)),
    )


def _checkpoint_dirs(launch: Launch) -> Sequence[str]:
    """Return every `checkpoint.dir` of the runs; raises FrozenFolderError."""
    found: dict[str, None] = {}
    for index, config in enumerate(load_configs(launch)):
        given = (asked_config(launch.paths, index, config) if launch.searched else config).get(
            "checkpoint", {}
        )
        if given.get("dir"):
            found[str(given["dir"])] = None
    return tuple(found)


def _elsewhere(launch: Launch, given: str) -> Iterator[Path | str]:
    """Yield what the launch keeps below a `checkpoint.dir`, or why that stays."""
    base = Path(given).expanduser()
    if not base.is_absolute():
        yield f"checkpoint.dir={given} is relative to wherever the ranks were, unless that is here"
        return
    own = base / launch.id
    if own.is_relative_to(launch.folder):
        return  # removed with the launch folder
    if not base.is_dir():
        yield f"checkpoint.dir={given} is not a folder of this host; remove {own} where it is one"
        return
    if (doubt := why_copy(launch.folder, launch.origin)) is not None:
        yield f"{own}: it belongs to the original launch, and {doubt}"
        return
    for leftover in leftovers(base):
        if removed_name(leftover) == launch.id:
            yield (
                leftover
                if (reason := _foreign(leftover, base)) is None
                else f"{leftover}: {reason}"
            )
    if os.path.lexists(own):
        yield own if (reason := _foreign(own, base)) is None else f"{own}: {reason}"


def _foreign(folder: Path, base: Path) -> str | None:
    """Return why a checkpoint folder must not be removed by the caller; None if it may be."""
    if not is_plain(folder, base) or not folder.is_dir():
        return "it is a link, or no folder"
    try:
        check_checkpoint_owner(folder, base)
        for run in folder.iterdir():
            if not run.is_symlink():
                check_checkpoint_owner(run, base)
    except ForeignFolderError as error:
        return error.message
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    return None


def _refusal(view: LaunchView, queued: _Queued, context: Context) -> str | None:
    """Return why a launch must not be removed: the first reason, and what to do about it."""
    launch = view.launch
    doubtful = unconfirmed(launch)
    if doubtful:
        return f"it is not known whether Slurm accepted {doubtful[0].name}: see `hpckit doctor`"
    return _open_run(view) or _writer(view, context) or _left_in_queue(launch, queued)


def _open_run(view: LaunchView) -> str | None:
    of_slurm = view.launch.cluster.kind is ClusterKind.slurm
    found = [
        (run, reason) for run in view.runs if (reason := spared(run, of_slurm=of_slurm)) is not None
    ]
    if not found:
        return None
    (first, reason), more = found[0], len(found) - 1
    others = f" (and {counted(more, 'more run')} like it)" if more else ""
    return (
        f"{first.record.id} is {first.state}, and {reason}{others}; `hpckit cancel "
        f"{view.launch.id}` ends it"
    )


def _writer(view: LaunchView, context: Context) -> str | None:
    """Return the process on this host that may still write although all runs have ended."""
    supervisors = [run.record.supervisor for run in view.runs if run.record.supervisor]
    executors = {
        (executor.host, executor.pid, executor.started)
        for executor in local_executors(view.launch).values()
    }
    for name, known in (("supervisor", supervisors), ("local executor", executors)):
        for process in known:
            if not _ended(process, context):
                return f"its {name} (process {process[1]}) has not ended yet; try again shortly"
    runs = range(len(view.launch.runs))
    stayed = outliving_rank(view.launch, runs, context, limit_s=_LOOKS * _LOOK_S)
    return None if stayed is None else f"{stayed} has not ended yet; try again shortly"


def _ended(process: tuple[str, int, str], context: Context) -> bool:
    """Wait a moment for a process that has nothing left to do; False if it stays."""
    for _ in range(_LOOKS):
        if not alive(*process):
            return True
        context.sleep(_LOOK_S)
    return False


def _left_in_queue(launch: Launch, queued: _Queued) -> str | None:
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
        f"Slurm still has {counted(len(living), 'job')} of it ({', '.join(living[:5])}); "
        f"`hpckit cancel {launch.id}` ends them"
    )
