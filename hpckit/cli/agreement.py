"""Asks for confirmation before something is removed: on a terminal, elsewhere by `--yes`."""

from __future__ import annotations

import argparse

from hpckit.context import Context


def is_agreed(arguments: argparse.Namespace, what: str, context: Context) -> bool:
    """Whether `what` may be removed; if no user can be asked, only with `--yes`."""
    if arguments.dry_run:
        return False
    if arguments.yes:
        return True
    if arguments.json or not context.terminal:
        context.note("nothing was removed; --yes removes it")
        return False
    context.stdout.write(f"remove {what}? [y/N] ")
    context.stdout.flush()
    if context.answer().strip().lower() in {"y", "yes"}:
        return True
    context.note("nothing was removed")
    return False
