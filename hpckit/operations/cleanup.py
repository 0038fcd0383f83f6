"""Finds what `hpckit clean` may remove of a launch, with its size; removes nothing.

Files that a run chose to write are not removed: only names that hpckit creates are considered, and
nothing behind a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path

from hpckit.context import Context
from hpckit.model.counted import format_count
from hpckit.model.launch import ClusterKind
from hpckit.model.run import RunRecord, RunView
from hpckit.model.states import RunState
from hpckit.planning.clean import explain_why_clean_keeps_run
from hpckit.record.attempts import list_attempt_numbers
from hpckit.record.launches import Launch, checkpoint_folder, configured_checkpoint_dir, load_run_settings
from hpckit.record.lookup import Selection
from hpckit.record.remove import (
    count_freed_bytes,
    explain_possible_copy,
    is_reached_without_links,
    list_removal_leftovers,
)
from hpckit.record.snapshot.changes import list_modified_snapshot_files
from hpckit.report.selection import Filter
from hpckit.runtime.checkpoint import journal
from hpckit.runtime.checkpoint.errors import ForeignFolderError
from hpckit.runtime.checkpoint.folder import CheckpointEntry, CheckpointFolder
from hpckit.runtime.checkpoint.journal import CheckpointHistory, RetentionExtent, find_removable_checkpoints
from hpckit.values import dataclass
from hpckit.views.launch_view import (
    Ask,
    LaunchView,
    build_launch_views,
    list_unconfirmed_jobs,
    print_view_warnings,
)

_CUT_OFF = "an earlier clean was interrupted"


class Category(StrEnum):
    """What can be cleaned; the options have the same names."""

    attempts = "attempts"
    checkpoints = "checkpoints"
    code = "code"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupRequest:
    """What to clean, for which runs, and which checkpoints."""

    categories: frozenset[Category]
    extent: RetentionExtent
    wanted: Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to remove, `size` in bytes; `run` is None if it belongs to the whole launch."""

    category: Category
    run: str | None
    path: Path
    why: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A run, or the code of a launch, that is left alone, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What may be removed of a launch, and what is left alone."""

    selection: Selection
    items: tuple[Item, ...]
    left: tuple[Left, ...]


def plan_cleanups(
    selections: Sequence[Selection], request: CleanupRequest, context: Context
) -> list[Cleanup]:
    """Return what may be removed of launches, or of one run of each; skips runs that may be alive.

    Slurm is queried once for all of them.
    """
    questions = [(selection.launch, None) for selection in selections]
    views = build_launch_views(questions, context, ask=Ask.open_runs)
    print_view_warnings(views, context)
    return [_plan_launch_cleanup(one, view, request) for one, view in zip(selections, views, strict=True)]


def _plan_launch_cleanup(selection: Selection, view: LaunchView, request: CleanupRequest) -> Cleanup:
    launch = selection.launch
    meant = [
        run
        for run in view.runs
        if selection.index in {None, run.record.index}
        and request.wanted.matches_run(run.state, run.record.overrides)
    ]
    found: list[Item | Left] = list(_find_items_of_runs(launch, meant, request))
    if Category.code in request.categories and len(meant) == len(view.runs):
        found += _find_removable_code(launch, meant)
    return Cleanup(
        selection=selection,
        items=tuple(item for item in found if isinstance(item, Item)),
        left=tuple(item for item in found if isinstance(item, Left)),
    )


def _find_items_of_runs(
    launch: Launch, views: Sequence[RunView], request: CleanupRequest
) -> Iterator[Item | Left]:
    of_slurm = launch.cluster.kind is ClusterKind.slurm
    doubtful = {run for job in list_unconfirmed_jobs(launch) for run in job.runs}
    for view in views:
        reason = explain_why_clean_keeps_run(view, of_slurm=of_slurm, doubtful=doubtful)
        if reason is not None:
            yield Left(name=view.record.id, reason=reason)
            continue
        try:
            yield from list(_find_items_of_run(launch, view, request))
        except OSError as error:
            yield Left(name=view.record.id, reason=f"it cannot be read: {error}")


def _find_items_of_run(launch: Launch, view: RunView, request: CleanupRequest) -> Iterator[Item | Left]:
    if Category.attempts in request.categories:
        yield from _find_old_attempt_files(launch, view.record)
    if Category.checkpoints in request.categories:
        completed = view.state is RunState.completed
        extent = min(
            request.extent, RetentionExtent.all if completed else RetentionExtent.old, key=_EXTENTS.index
        )
        yield from _find_removable_checkpoints(launch, view.record, extent)


_EXTENTS = list(RetentionExtent)


def _find_old_attempt_files(launch: Launch, record: RunRecord) -> Iterator[Item]:
    """Yield the output of earlier attempts; their events and metrics are the record and stay."""
    run = launch.paths.run(record.index)
    for number in list_attempt_numbers(run.attempts):
        attempt = run.attempt(number)
        if number >= record.attempt or not is_reached_without_links(attempt.folder, launch.folder):
            continue
        known = (attempt.rounds, attempt.agents_log, attempt.secret, attempt.address)
        items = [
            (path, f"of attempt {number}") for path in known if is_reached_without_links(path, launch.folder)
        ]
        items += [(path, _CUT_OFF) for path in list_removal_leftovers(attempt.folder)]
        yield from (_build_cleanup_item(Category.attempts, path, why, record.id) for path, why in items)


def _find_removable_checkpoints(
    launch: Launch, record: RunRecord, extent: RetentionExtent
) -> Iterator[Item | Left]:
    settings, _ = load_run_settings(launch, record.index)
    given = settings.checkpoint.dir
    base = launch.folder if given is None else Path(given).expanduser()
    folder = checkpoint_folder(launch, record.index, settings)
    if not base.is_absolute():
        reason = f"checkpoint.dir={given} is relative to the working folder of its process"
        yield Left(name=record.id, reason=reason)
        return
    doubt = None if given is None else explain_possible_copy(launch.folder, launch.origin)
    if doubt is not None and folder.exists():
        reason = f"{folder} belongs to the original launch, and {doubt}"
        yield Left(name=record.id, reason=reason)
        return
    if not is_reached_without_links(folder, base):
        if folder.exists():
            yield Left(name=record.id, reason="its checkpoints are behind a link")
        return
    checkpoints = CheckpointFolder(folder, configured_checkpoint_dir(settings.checkpoint))
    try:
        found = checkpoints.list_entries()
    except ForeignFolderError as error:
        yield Left(name=record.id, reason=error.message)
        return
    # An attempt that began after the run was read may be saving right now.
    mine = (checkpoint for checkpoint in found if checkpoint.epoch <= record.attempt)
    entries = [entry for entry in mine if is_reached_without_links(entry.folder, base)]
    history = journal.read_journal(checkpoints.journal_path)
    for entry in find_removable_checkpoints(entries, history, extent):
        yield _build_cleanup_item(
            Category.checkpoints, entry.folder, _explain_checkpoint_removal(entry, history), record.id
        )
    for path in list_removal_leftovers(folder):
        yield _build_cleanup_item(Category.checkpoints, path, _CUT_OFF, record.id)


def _explain_checkpoint_removal(entry: CheckpointEntry, history: CheckpointHistory) -> str:
    if entry.is_uncommitted:
        return "never committed"
    if entry.damage:
        return f"damaged: {entry.damage}"
    if entry.name in history.rejected and not history.is_healthy(entry.name):
        return "rejected when a run tried to load it"
    return "older" if history.is_healthy(entry.name) else "loaded again and again without progress"


def _find_removable_code(launch: Launch, views: Sequence[RunView]) -> Iterator[Item | Left]:
    paths = launch.paths
    for path in list_removal_leftovers(launch.folder):
        yield _build_cleanup_item(Category.code, path, _CUT_OFF)
    if not is_reached_without_links(paths.code, launch.folder):
        return
    name, open_runs = f"{launch.id} code/", [view for view in views if _run_needs_code(view)]
    if open_runs:
        yield Left(name=name, reason=f"{format_count(len(open_runs), 'run')} still to complete")
        return
    foreign = list(islice(list_modified_snapshot_files(paths), 2))
    if foreign:
        more = ", and more" if len(foreign) > 1 else ""
        yield Left(name=name, reason=f"runs wrote into it: {foreign[0]}{more}")
        return
    yield _build_cleanup_item(Category.code, paths.code, "all runs have completed")


def _run_needs_code(view: RunView) -> bool:
    seen = view.observation
    over = seen is None or seen.state.ended
    return view.state is not RunState.completed or not view.can_no_longer_change or not over


def _build_cleanup_item(category: Category, path: Path, why: str, run: str | None = None) -> Item:
    return Item(category=category, run=run, path=path, why=why, size=count_freed_bytes(path))
