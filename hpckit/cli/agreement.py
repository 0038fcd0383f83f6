"""Asks before something is removed: a person on a terminal, `--yes` elsewhere."""

from __future__ import annotations

import argparse

from hpckit.context import Context


def is_agreed(arguments: argparse.Namespace, what: str, context: Context) -> bool:
    """Whether `what` may be removed; without a person to ask, only `--yes` says so."""
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
