"""`hpckit rm`: deletes whole launches, after showing what is removed and how much.

operations/remove_launches decides what belongs to a launch and when it may be removed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpckit.cli.options import (
    add_common_options,
    add_confirmation_options,
    choose_output_dir,
    confirm_removal,
)
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import RunError, UsageError
from hpckit.model.counted import format_byte_size, format_count
from hpckit.model.plain import attributes_to_json
from hpckit.operations.remove_launches import (
    LaunchRemoval,
    plan_interrupted_removal,
    plan_launch_removals,
    remove_launch,
)
from hpckit.record.launches import Launch
from hpckit.record.lookup import find_launch_or_run, find_unfinished_removal
from hpckit.report.text import Page, TextTable

EPILOG = """\
examples:
  hpckit rm digits-20260102 --dry-run   what would go, and how much
  hpckit rm digits-20260102 charlm --yes

`hpckit clean` makes a launch smaller and keeps its record; `rm` leaves nothing of it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rm`."""
    parser.add_argument(
        "references",
        nargs="+",
        metavar="LAUNCH",
        help="ids, unique beginnings of them, names (the latest launch), or folders",
    )
    add_confirmation_options(parser)
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show what will be removed, ask, and remove it.

    Returns 2 if a launch must not be removed; the others are removed anyway. Raises RunError if
    something could not be removed.
    """
    found = list(_plan_named_removals(arguments, context))
    free = [removal for removal in found if removal.refused is None]
    if not arguments.json:
        show_page(_build_removal_page(found), context)
    what = f"{format_count(len(free), 'launch')}, {format_byte_size(sum(removal.size for removal in free))}"
    agreed = bool(free) and confirm_removal(arguments, what, context)
    refused = {removal.id: removal.refused for removal in found if removal.refused is not None}
    removed, failed = _remove_launches(free if agreed else [], refused, context)
    for name, reason in refused.items():
        context.note(f"error: {name} was not removed: {reason}")
    if failed:
        raise RunError(
            f"{format_count(len(failed), 'launch')} could not be removed as a whole: {failed[0]}",
            hint="run the same `hpckit rm` again: it finishes the removal",
        )
    if arguments.json:
        context.say_json(_removals_to_json(found, removed, refused))
    elif agreed:
        size = format_byte_size(sum(removal.size for removal in removed))
        context.say(f"removed {format_count(len(removed), 'launch')}, {size}")
    return UsageError.exit_code if refused else 0


def _plan_named_removals(arguments: argparse.Namespace, context: Context) -> Iterator[LaunchRemoval]:
    """Yield each launch once: those with an interrupted removal first, then the others."""
    base = choose_output_dir(arguments, context)
    launches: dict[Path, Launch] = {}
    begun: dict[Path, None] = {}
    for reference in arguments.references:
        cut_off = find_unfinished_removal(reference, base, cwd=context.cwd)
        if cut_off is not None:
            begun[cut_off] = None
            continue
        launch = _find_whole_launch(reference, base, context)
        launches[launch.folder] = launch
    yield from map(plan_interrupted_removal, begun)
    yield from plan_launch_removals(list(launches.values()), context)


def _find_whole_launch(reference: str, base: Path, context: Context) -> Launch:
    selection = find_launch_or_run(reference, base, cwd=context.cwd)
    _check_named_folder(context.cwd / reference, selection.launch)
    if selection.index is not None:
        run = selection.launch.runs[selection.index].id
        raise UsageError(
            f"{reference!r} means the run {run}, and rm deletes whole launches",
            hint=f"hpckit rm {selection.launch.id}, or `hpckit clean {run}` for what it no longer needs",
        )
    return selection.launch


def _check_named_folder(named: Path, launch: Launch) -> None:
    """Raise UsageError if the named folder is only part of a launch, or a link to it."""
    for place in (named, launch.folder):
        if place.is_symlink():
            raise UsageError(
                f"{place} is a link to {place.resolve()}, and rm does not follow links",
                hint="name that folder itself, then remove the link",
            )
    if named.is_dir() and not named.samefile(launch.folder):
        raise UsageError(
            f"{named} is only a part of the launch {launch.id}, and rm deletes whole launches",
            hint=f"hpckit rm {launch.folder}",
        )


def _remove_launches(
    agreed: Sequence[LaunchRemoval], refused: dict[str, str], context: Context
) -> tuple[list[LaunchRemoval], list[str]]:
    """Remove launches; return which are removed, and the errors of the others."""
    removed, failed = [], []
    for removal in agreed:
        try:
            remove_launch(removal, context)
        except UsageError as error:
            refused[removal.id] = error.message
        except OSError as error:
            failed.append(f"{removal.id}: {error.filename or removal.folder}: {error.strerror or error}")
        else:
            removed.append(removal)
    return removed, failed


def _build_removal_page(found: Sequence[LaunchRemoval]) -> Page:
    cells = [
        (removal.id, str(part.path), format_byte_size(part.size))
        for removal in found
        if removal.refused is None
        for part in removal.parts
    ]
    page: list[TextTable | str] = ["nothing to remove"]
    if cells:
        total = format_byte_size(sum(removal.size for removal in found if removal.refused is None))
        more = [("all", "", total)] if len(cells) > 1 else []
        page = [TextTable(header=("launch", "folder", "size"), rows=(*cells, *more))]
    page += [f"{removal.id}: an earlier removal was cut off" for removal in found if removal.begun]
    page += [
        f"{removal.id}: stays: {left}" for removal in found for left in removal.left if not removal.refused
    ]
    return page


def _removals_to_json(
    found: Sequence[LaunchRemoval], removed: Sequence[LaunchRemoval], refused: dict[str, str]
) -> dict[str, object]:
    gone = {removal.folder for removal in removed}
    return {
        "launches": [
            {
                **attributes_to_json(removal, "launch=id dir=folder"),
                "paths": [attributes_to_json(part, "path bytes=size") for part in removal.parts],
                **attributes_to_json(removal, "bytes=size left"),
                "refused": refused.get(removal.id),
                "removed": removal.folder in gone,
            }
            for removal in found
        ],
        "total_bytes": sum(removal.size for removal in found),
        "removed_bytes": sum(removal.size for removal in removed),
    }
