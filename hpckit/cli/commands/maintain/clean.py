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
    add_agreement,
    add_common,
    add_filters,
    add_flag,
    add_references,
    filter_of,
    is_agreed,
    launches_of,
)
from hpckit.cli.parsing import OptionalValue
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import HpckitError, RunError, UsageError
from hpckit.model.counted import counted, listed, size_text
from hpckit.model.plain import plain_fields
from hpckit.operations.add_job import alone
from hpckit.operations.cleanup import Category, Cleanup, CleanupRequest, Item, look
from hpckit.record.lookup import Selection
from hpckit.record.remove import remove
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
    add_references(parser)
    parser.add_argument("--all", action="store_true", help="all launches there are, not one")
    add_filters(parser)
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
    add_agreement(parser)
    add_common(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show what may be removed, ask, and remove it.

    Returns 0 also if there was nothing to remove or the answer was no. Raises RunError if something
    could not be removed.
    """
    request = _request(arguments)
    found = look(list(launches_of(arguments, context, all_of="clean")), request, context)
    items = [item for cleanup in found for item in cleanup.items]
    if not arguments.json:
        show_page(_page(found), context)
    agreed = bool(items) and is_agreed(arguments, _amount(items), context)
    failed: list[str] = []
    removed = list(_remove(found, request, context, failed)) if agreed else []
    if failed:
        raise RunError(
            f"{counted(len(failed), 'thing')} could not be removed: {failed[0]} "
            f"({_amount(removed)} removed)",
            hint="run `hpckit clean` again to finish the interrupted removal",
        )
    if arguments.json:
        context.say_json(_document(found, {item.path for item in removed}))
    elif agreed:
        context.say(f"removed {_amount(removed)}")
    return 0


def _request(arguments: argparse.Namespace) -> CleanupRequest:
    chosen = {category for category in Category if getattr(arguments, category)}
    word = arguments.checkpoints or RetentionExtent.unproved.value
    if word not in RetentionExtent.__members__:
        raise UsageError(
            f"--checkpoints is {word!r}; it has to be {', '.join(RetentionExtent)}",
            hint="`old` keeps the two newest of each run; `all` none, of completed runs",
        )
    return CleanupRequest(
        categories=frozenset(chosen or Category),
        extent=RetentionExtent(word),
        wanted=filter_of(arguments),
    )


def _remove(
    found: Sequence[Cleanup], request: CleanupRequest, context: Context, failed: list[str]
) -> Iterator[Item]:
    """Remove what was found, if still allowed, and yield it; append failures to `failed`."""
    with ExitStack() as locks:
        held: list[tuple[Cleanup, Selection]] = []
        for cleanup in (some for some in found if some.items):
            try:
                fresh = locks.enter_context(alone(cleanup.selection.launch, context))
            except HpckitError as error:
                failed.append(error.message)
            else:
                held.append((cleanup, Selection(launch=fresh, index=cleanup.selection.index)))
        # Check again: a run may have been resumed while the user was thinking about it.
        again = look([selection for _, selection in held], request, context)
        for (cleanup, _), now in zip(held, again, strict=True):
            yield from _gone(now.items, {item.path for item in cleanup.items}, failed)


def _gone(items: Sequence[Item], agreed: Collection[Path], failed: list[str]) -> Iterator[Item]:
    for item in (offered for offered in items if offered.path in agreed):
        try:
            remove(item.path)
        except OSError as error:
            failed.append(f"{item.path}: {error.strerror or error}")
        else:
            yield item


def _amount(items: Sequence[Item]) -> str:
    size = size_text(sum(item.size for item in items))
    return f"{counted(len(items), 'item')}, {size}"


def _page(found: Sequence[Cleanup]) -> Page:
    """Return how much may be removed of each launch, and what is left alone."""
    cells = [
        (cleanup.selection.launch.id, category.value, *_sums(cleanup.items, category))
        for cleanup in found
        for category in Category
        if any(item.category is category for item in cleanup.items)
    ]
    items = [item for cleanup in found for item in cleanup.items]
    page: list[TextTable | str] = ["nothing to remove"]
    if items:
        total = ("all", "", str(len(items)), size_text(sum(item.size for item in items)))
        header = ("launch", "what", "items", "size")
        page = [TextTable(header=header, rows=(*cells, *([total] if len(cells) > 1 else [])))]
    if any(item.category is Category.code for item in items):
        page.append(
            "note: a launch without code/ cannot be resumed; start a new launch from the project's "
            "own checkout"
        )
    return [*page, *_left(found)]


def _sums(items: Sequence[Item], category: Category) -> tuple[str, str]:
    some = [item for item in items if item.category is category]
    return str(len(some)), size_text(sum(item.size for item in some))


def _left(found: Sequence[Cleanup]) -> Iterator[str]:
    left = [one for cleanup in found for one in cleanup.left]
    for reason in dict.fromkeys(item.reason for item in left):
        names = [item.name for item in left if item.reason == reason]
        yield f"left alone: {listed(names, _SHOWN_LEFT)}: {reason}"


def _document(found: Sequence[Cleanup], removed: Collection[Path]) -> dict[str, object]:
    items = [item for cleanup in found for item in cleanup.items]
    return {
        "launches": [
            {
                **plain_fields(cleanup.selection.launch, "launch=id dir=folder"),
                "items": [
                    plain_fields(item, "category run path why bytes=size")
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
