"""The options that verbs share: by which they choose and sort runs, and ask before they remove.

Their meaning is in report/selection.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from hpckit.context import Context, default_output_dir
from hpckit.errors import HpckitError, UsageError
from hpckit.patterns import lazy_pattern
from hpckit.planning.faults import parse_delay
from hpckit.record.launches import load_launch
from hpckit.record.lookup import Selection, find_launch_of_any_owner, find_launch_or_run, list_own_launches
from hpckit.report.selection import Filter, find_unknown_filter_keys, parse_overrides, parse_run_filter
from hpckit.views.freshness import LEAST, VARIABLE

T = TypeVar("T")
_SHOWN_KEYS = 12


def add_flag(parser: argparse._ActionsContainer, name: str, meaning: str) -> None:
    """Add an option that takes no value and is off unless given."""
    parser.add_argument(name, action="store_true", help=meaning)


def add_filter_options(parser: argparse.ArgumentParser) -> None:
    """Add `--state`, `--failed` and `--override`."""
    parser.add_argument(
        "--state",
        metavar="STATE[,STATE]",
        action="append",
        default=[],
        help="only runs in one of these states: pending, running, completed, failed, cancelled, "
        "interrupted, unknown",
    )
    add_flag(parser, "--failed", "only runs that ended and not well: failed, interrupted, unknown")
    parser.add_argument(
        "--override",
        metavar="KEY=GLOB",
        action="append",
        default=[],
        help="only runs with this override, such as 'lr=0.*'; of one key any may match, of "
        "several keys each has to",
    )


def build_filter(arguments: argparse.Namespace) -> Filter:
    """Return the filter from the options of `add_filter_options`; raises UsageError."""
    return parse_run_filter(arguments.state, arguments.override, failed=arguments.failed)


def warn_of_unknown_override_keys(
    wanted: Filter, overrides: Iterable[Sequence[str]], context: Context
) -> None:
    """Note keys of `--override` that no run sets, with those that some run does."""
    runs = list(overrides)
    known = sorted({key for run in runs for key in parse_overrides(run)})
    for key in find_unknown_filter_keys(wanted, runs):
        shown = f"; runs set {', '.join(known[:_SHOWN_KEYS])}" if known else "; no run sets any"
        context.note(f"warning: no run sets {key} (--override){shown}")


def add_sort_option(parser: argparse.ArgumentParser, columns: str) -> None:
    """Add `--sort`."""
    parser.add_argument(
        "--sort", metavar="[-]COLUMN", help=f"sort by a column; -COLUMN: largest first. {columns}"
    )


def add_limit_option(parser: argparse.ArgumentParser) -> None:
    """Add `--limit`."""
    parser.add_argument(
        "--limit", metavar="N", type=int, default=0, help="show the first N; 0: all (the default)"
    )


def limit_items(items: Sequence[T], limit: int) -> Sequence[T]:
    """Return the first `limit` items, all for 0; raises UsageError if `limit` is negative."""
    if limit < 0:
        raise UsageError(f"--limit is {limit}; it must be 0 (all) or more")
    return items[: limit or None]


def select_launches_or_runs(
    arguments: argparse.Namespace, context: Context, *, all_of: str
) -> Iterator[Selection]:
    """Yield what is named, launches or runs, or with `--all` every launch, newest first.

    Warns about launches that cannot be read and skips them. Raises UsageError and NotFoundError.
    """
    base, named = choose_output_dir(arguments, context), arguments.references
    if not arguments.all:
        names: list[str | None] = [*dict.fromkeys(named)] or [None]
        yield from (find_launch_or_run(name, base, cwd=context.cwd) for name in names)
        return
    if named:
        raise UsageError(
            f"cannot combine --all (every launch in {base}) with {named[0]}",
            hint=f"hpckit {all_of} {named[0]}, or hpckit {all_of} --all",
        )
    yield from load_readable_launches(list_own_launches(base), context)


def load_readable_launches(folders: Iterable[Path], context: Context) -> Iterator[Selection]:
    """Yield the launches of these folders; warns about those that cannot be read."""
    for folder in folders:
        try:
            launch = load_launch(folder)
        except HpckitError as error:
            context.note(f"warning: {error.message}")
        else:
            yield Selection(launch=launch, index=None)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--output-dir`, which most verbs have."""
    add_json_option(parser)
    add_output_dir_option(parser)


def add_output_dir_option(parser: argparse.ArgumentParser) -> None:
    """Add `--output-dir`, the folder to look for launches in."""
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="the folder of launches (default: $HPCKIT_OUTPUTS, else ./outputs)",
    )


def add_launch_or_run_argument(parser: argparse.ArgumentParser) -> None:
    """Add the positional argument that names a launch or a run."""
    parser.add_argument(
        "reference",
        nargs="?",
        metavar="LAUNCH|RUN",
        help="id, beginning of one, name, .3, @-2, or folder (default: latest launch)",
    )


def resolve_reference_to_change(arguments: argparse.Namespace, context: Context) -> Selection:
    """Return what the argument of `add_launch_or_run_argument` names, to act on; raises HpckitError."""
    return find_launch_or_run(arguments.reference, choose_output_dir(arguments, context), cwd=context.cwd)


def resolve_reference_to_show(arguments: argparse.Namespace, context: Context) -> Selection:
    """Return what `add_launch_or_run_argument` read, to look at it only; raises HpckitError."""
    return find_launch_of_any_owner(
        arguments.reference, choose_output_dir(arguments, context), cwd=context.cwd
    )


def choose_output_dir(arguments: argparse.Namespace, context: Context) -> Path:
    """Return the absolute folder of launches: the option, else $HPCKIT_OUTPUTS, else outputs."""
    chosen = arguments.output_dir
    return context.cwd / Path(chosen).expanduser() if chosen else default_output_dir(context)


def add_fresh_option(parser: argparse.ArgumentParser) -> None:
    """Add `--fresh`."""
    add_flag(
        parser,
        "--fresh",
        f"ask Slurm now, and read every run again (default: Slurm's answer may be "
        f"{LEAST.seconds} s old, ${VARIABLE}, and ended runs are taken from an index)",
    )


def add_launches_or_runs_argument(parser: argparse.ArgumentParser) -> None:
    """Add the launches or runs that are meant; the latest launch by default."""
    parser.add_argument(
        "references",
        nargs="*",
        default=[],  # else argparse says that it is required, if something else is missing
        metavar="LAUNCH|RUN",
        help="ids, unique beginnings of them, or folders of launches or runs (default: latest launch)",
    )


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the launches or runs to show, or the experiment."""
    add_launches_or_runs_argument(parser)
    parser.add_argument(
        "--experiment",
        metavar="NAME",
        help="all launches of this name, and runs with this experiment=NAME; may be a glob",
    )


def add_rerun_options(parser: argparse.ArgumentParser) -> None:
    """Add `--rerun`, `--any-code` and `--changed-code`."""
    add_flag(parser, "--rerun", "launch also what has completed, or waits or runs, in an earlier launch")
    add_flag(parser, "--any-code", "also count runs of earlier launches whose code has changed since")
    add_flag(
        parser,
        "--changed-code",
        "start again, without asking, the runs whose code has changed: completed or under way",
    )


def add_resume_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for which runs count, and whether changed code is accepted."""
    add_flag(parser, "--cancelled", "also resume cancelled runs (implied if you name one run)")
    add_flag(
        parser,
        "--changed-code",
        "continue even if the launch's own code, configuration or template was edited",
    )


def add_confirmation_options(parser: argparse.ArgumentParser) -> None:
    """Add `--yes` and `--dry-run`, for `confirm_removal`."""
    parser.add_argument("--yes", action="store_true", help="remove without asking")
    parser.add_argument("--dry-run", action="store_true", help="show, and remove nothing")


def confirm_removal(arguments: argparse.Namespace, what: str, context: Context) -> bool:
    """Whether `what` may be removed; if no user can be asked, only with `--yes`."""
    if arguments.dry_run:
        return False
    if arguments.yes:
        return True
    if arguments.json or not context.has_terminal:
        context.note("nothing was removed; --yes removes it")
        return False
    if ask_yes_or_no(f"remove {what}?", context):
        return True
    context.note("nothing was removed")
    return False


def ask_yes_or_no(question: str, context: Context) -> bool:
    """Ask the user at the terminal; return whether the answer is yes."""
    context.stdout.write(f"{question} [y/N] ")
    context.stdout.flush()
    return context.answer().strip().lower() in {"y", "yes"}


_DIGITS = lazy_pattern(r"-?[0-9]{1,4000}")


def parse_duration_to_seconds(text: str) -> float:
    """Return a time in seconds, as an argument's type: `90`, `90s`, `2m`."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_delay(text).total_seconds()
    except UsageError:
        raise ArgumentTypeError(f"is {text!r}; it takes a time, such as 60, 90s or 2m") from None


def is_duration_text(word: str) -> bool:
    """Return whether a word is a time as `seconds` takes it."""
    try:
        parse_duration_to_seconds(word)
    except ArgumentTypeError:
        return False
    return True


def whole_number_type(of: str, example: str) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number of something, written in digits.

    Example: `whole("sequences", "1024")("4M")` says that it takes a whole number of sequences.
    """

    def read(text: str) -> int:
        if _DIGITS.fullmatch(text):
            return int(text)
        raise ArgumentTypeError(
            f"is {text:.40}; it takes a whole number of {of} in digits, such as {example}"
        )

    return read
