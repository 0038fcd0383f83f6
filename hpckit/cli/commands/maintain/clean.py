"""`hpckit clean`: removes what is no longer needed, after showing what and how much.

Asks first and checks again before removing: only what the user agreed to is removed, and nothing of
a run that may be alive by then. operations/cleanup decides what may be removed.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from hpckit.cli.options import (
    add_common_options,
    add_confirmation_options,
    add_filter_options,
    add_flag,
    add_launches_or_runs_argument,
    build_filter,
    confirm_removal,
    select_launches_or_runs,
)
from hpckit.cli.parsing import OptionalValue
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import HpckitError, RunError, UsageError
from hpckit.model.counted import format_byte_size, format_count, format_short_list
from hpckit.model.plain import attributes_to_json
from hpckit.operations.add_job import lock_launch_for_adding_jobs
from hpckit.operations.cleanup import Category, Cleanup, CleanupRequest, Item, plan_cleanups
from hpckit.record.lookup import Selection
from hpckit.record.remove import remove_path
from hpckit.report.text import Page, TextTable
from hpckit.runtime.checkpoint.journal import RetentionExtent

_SHOWN_LEFT = 5


EPILOG = """\
examples:
  hpckit clean --dry-run   what could go of the latest launch
  hpckit clean digits --checkpoints --yes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `clean`."""
    add_launches_or_runs_argument(parser)
    parser.add_argument("--all", action="store_true", help="all launches there are, not one")
    add_filter_options(parser)
    add_flag(parser, "--attempts", "what attempts before the latest one printed")
    parser.add_argument(
        "--checkpoints",
        action=OptionalValue,
        takes=lambda word: word in RetentionExtent.__members__,
        const=RetentionExtent.unproved.value,
        metavar="EXTENT",
        help="unproved (the default): what no load would take; old: also what is older than the "
        "two newest; all: of completed runs, every one",
    )
    add_flag(parser, "--code", "the code snapshot, once all runs have completed")
    add_confirmation_options(parser)
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show what may be removed, ask, and remove it.

    Returns 0 also if there was nothing to remove or the answer was no. Raises RunError if something
    could not be removed.
    """
    request = _build_cleanup_request(arguments)
    found = plan_cleanups(list(select_launches_or_runs(arguments, context, all_of="clean")), request, context)
    items = [item for cleanup in found for item in cleanup.items]
    if not arguments.json:
        show_page(_build_cleanup_page(found), context)
    agreed = bool(items) and confirm_removal(arguments, _format_item_count_and_size(items), context)
    failed: list[str] = []
    removed = list(_remove_agreed_items(found, request, context, failed)) if agreed else []
    if failed:
        raise RunError(
            f"{format_count(len(failed), 'thing')} could not be removed: {failed[0]} "
            f"({_format_item_count_and_size(removed)} removed)",
            hint="run `hpckit clean` again to finish the interrupted removal",
        )
    if arguments.json:
        context.say_json(_cleanups_to_json(found, {item.path for item in removed}))
    elif agreed:
        context.say(f"removed {_format_item_count_and_size(removed)}")
    return 0


def _build_cleanup_request(arguments: argparse.Namespace) -> CleanupRequest:
    chosen = {category for category in Category if getattr(arguments, category)}
    word = arguments.checkpoints or RetentionExtent.unproved.value
    if word not in RetentionExtent.__members__:
        raise UsageError(
            f"--checkpoints is {word!r}; it must be {', '.join(RetentionExtent)}",
            hint="`old` keeps the two newest of each run; `all` none, of completed runs",
        )
    return CleanupRequest(
        categories=frozenset(chosen or Category), extent=RetentionExtent(word), wanted=build_filter(arguments)
    )


def _remove_agreed_items(
    found: Sequence[Cleanup], request: CleanupRequest, context: Context, failed: list[str]
) -> Iterator[Item]:
    """Remove what was found, if still allowed, and yield it; append failures to `failed`."""
    with ExitStack() as locks:
        held: list[tuple[Cleanup, Selection]] = []
        for cleanup in (some for some in found if some.items):
            try:
                fresh = locks.enter_context(lock_launch_for_adding_jobs(cleanup.selection.launch, context))
            except HpckitError as error:
                failed.append(error.message)
            else:
                held.append((cleanup, Selection(launch=fresh, index=cleanup.selection.index)))
        # Check again: a run may have been resumed while the user was thinking about it.
        again = plan_cleanups([selection for _, selection in held], request, context)
        for (cleanup, _), now in zip(held, again, strict=True):
            yield from _remove_items(now.items, {item.path for item in cleanup.items}, failed)


def _remove_items(items: Sequence[Item], agreed: Collection[Path], failed: list[str]) -> Iterator[Item]:
    for item in (offered for offered in items if offered.path in agreed):
        try:
            remove_path(item.path)
        except OSError as error:
            failed.append(f"{item.path}: {error.strerror or error}")
        else:
            yield item


def _format_item_count_and_size(items: Sequence[Item]) -> str:
    size = format_byte_size(sum(item.size for item in items))
    return f"{format_count(len(items), 'item')}, {size}"


def _build_cleanup_page(found: Sequence[Cleanup]) -> Page:
    cells = [
        (
            cleanup.selection.launch.id,
            category.value,
            *_format_category_count_and_size(cleanup.items, category),
        )
        for cleanup in found
        for category in Category
        if any(item.category is category for item in cleanup.items)
    ]
    items = [item for cleanup in found for item in cleanup.items]
    page: list[TextTable | str] = ["nothing to remove"]
    if items:
        total = ("all", "", str(len(items)), format_byte_size(sum(item.size for item in items)))
        header = ("launch", "what", "items", "size")
        page = [TextTable(header=header, rows=(*cells, *([total] if len(cells) > 1 else [])))]
    if any(item.category is Category.code for item in items):
        page.append(
            "note: a launch without code/ cannot be resumed; start a new launch from the project's "
            "own checkout"
        )
    return [*page, *_format_left_alone(found)]


def _format_category_count_and_size(items: Sequence[Item], category: Category) -> tuple[str, str]:
    some = [item for item in items if item.category is category]
    return str(len(some)), format_byte_size(sum(item.size for item in some))


def _format_left_alone(found: Sequence[Cleanup]) -> Iterator[str]:
    left = [one for cleanup in found for one in cleanup.left]
    for reason in dict.fromkeys(item.reason for item in left):
        names = [item.name for item in left if item.reason == reason]
        yield f"left alone: {format_short_list(names, _SHOWN_LEFT)}: {reason}"


def _cleanups_to_json(found: Sequence[Cleanup], removed: Collection[Path]) -> dict[str, object]:
    items = [item for cleanup in found for item in cleanup.items]
    return {
        "launches": [
            {
                **attributes_to_json(cleanup.selection.launch, "launch=id dir=folder"),
                "items": [
                    attributes_to_json(item, "category run path why bytes=size")
                    | {"removed": item.path in removed}
                    for item in cleanup.items
                ],
                "left": cleanup.left,
            }
            for cleanup in found
        ],
        "bytes": {
            category.value: sum(item.size for item in items if item.category is category)
            for category in Category
        },
        "total_bytes": sum(item.size for item in items),
        "removed_bytes": sum(item.size for item in items if item.path in removed),
    }
