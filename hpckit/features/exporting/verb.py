"""`hpckit export`: the metrics of runs for other programs, without what restarts have undone.

An export goes to a file, a stream or a tracker's folder, once or again and again. It is made from
the record alone and replaces an earlier one of its kind, so that it holds one value per step
however often, and after whatever restarts, it is made.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hpckit.cli.options import (
    add_flag,
    add_launches_or_runs_argument,
    add_output_dir_option,
    choose_output_dir,
)
from hpckit.context import Context
from hpckit.errors import OutputError, UsageError
from hpckit.features.exporting.documents import (
    ExportDocument,
    ExportKind,
    describe_marks_of_earlier_export,
    import_tracker_module,
)
from hpckit.features.exporting.exported_run import ExportedRun, Written
from hpckit.model.counted import format_count
from hpckit.operations.output_file import check_output_file, unwritable_file_error, write_output_file
from hpckit.record.lock import hold_lock
from hpckit.record.snapshot.collect import EXPORT_MARK
from hpckit.record.store import make_private_folder
from hpckit.values import dataclass, replace
from hpckit.views.across_launches import find_named_runs
from hpckit.views.freshness import Freshness
from hpckit.views.launch_view import Ask, build_launch_views, print_view_warnings

INTERVAL_S = 30.0
"""How often `--follow` looks for news."""

_SHARE = 10
"""Following takes at most one part in _SHARE of a processor's time."""

EPILOG = """\
examples:
  hpckit export csv > values.csv
  hpckit export tensorboard digits --follow   until all its runs have ended
  hpckit export trace digits.3 -o trace.json   opens in ui.perfetto.dev
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    parser.add_argument(
        "kind",
        metavar="KIND",
        choices=[kind.value for kind in ExportKind],
        help=f"one of {', '.join(ExportKind)}",
    )
    add_launches_or_runs_argument(parser)
    parser.add_argument(
        *("-o", "--to"),
        metavar="PATH",
        help="the file or folder to write (default: standard output; of tensorboard, wandb and "
        "mlflow a folder ./exports/KIND)",
    )
    add_flag(parser, "--follow", "repeat the export until all runs have ended")
    add_flag(parser, "--undone", "also values that a restart has undone, marked as such (csv, jsonl)")
    add_output_dir_option(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Export runs, and say on standard error what was written; always returns 0."""
    kind = ExportKind(arguments.kind)
    target = context.cwd / "exports" / kind if kind.is_tracker else None
    if arguments.to is not None:
        target = context.cwd / Path(arguments.to).expanduser()
    request = ExportRequest(
        kind=kind,
        references=arguments.references,
        base=choose_output_dir(arguments, context),
        target=target,
        undone=arguments.undone,
        follow=arguments.follow,
    )
    outcome = export_runs(request, context)
    if target is not None:
        values = "" if kind is ExportKind.trace else f", {format_count(outcome.values, 'value')}"
        context.note(f"exported {format_count(len(outcome.runs), 'run')}{values} to {target}")
    # Traces and OpenMetrics have more than values, and need none.
    empty = outcome.runs and not outcome.values and not outcome.left_out
    if empty and not arguments.follow and kind not in {ExportKind.trace, ExportKind.openmetrics}:
        have = "this run has" if len(outcome.runs) == 1 else "these runs have"
        context.note(f"{have} no metrics: run.log(loss=...) writes them")
    if outcome.left_out:
        context.note(
            f"left out {format_count(outcome.left_out, 'value')} that {kind} has no "
            "place for: texts, values without a whole step, names and steps that it does not take"
        )
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export; `target` is null for standard output, and absolute otherwise.

    `undone` also takes values that a restart has undone, marked as such. `follow` repeats the
    export until all runs have ended.
    """

    kind: ExportKind
    references: Sequence[str]
    base: Path
    target: Path | None
    undone: bool = False
    follow: bool = False


def export_runs(request: ExportRequest, context: Context) -> Written:
    """Export runs; raises UsageError, and HeldError if another process writes the same target.

    Raises OutputError where standard output, without a target, is closed or cannot be written.
    """
    _refuse_invalid_export_request(request)
    if request.target is None and not context.output_open:
        raise OutputError("standard output cannot be written: it is closed", hint="name a file with -o PATH")
    known: dict[str, Any] = {}
    find_named_runs(request.references, request.base, context)  # before a folder is made for nothing
    with _lock_export_target(request, context):
        while True:
            began = time.monotonic()
            named = find_named_runs(request.references, request.base, context)
            views = build_launch_views(named, context, ask=Ask.open_runs, freshness=Freshness())
            print_view_warnings(views, context)
            runs = [ExportedRun(launch=view.launch, view=run) for view in views for run in view.runs]
            ended = all(run.view.can_no_longer_change for run in runs)
            written = _export_what_changed(request, runs, known, context)
            if ended or not request.follow:
                return replace(written, runs=tuple(run.id for run in runs))
            took = time.monotonic() - began
            context.sleep(max(INTERVAL_S, (_SHARE - 1) * took))


def _refuse_invalid_export_request(request: ExportRequest) -> None:
    if request.kind.is_tracker:
        import_tracker_module(request.kind)
    if request.undone and request.kind not in {ExportKind.csv, ExportKind.jsonl}:
        raise UsageError(
            f"an export to {request.kind} has one value per step, without undone ones",
            hint="--undone is for csv and jsonl, which have a column for it",
        )
    if request.target is None and (request.follow or request.kind.is_tracker):
        raise UsageError("this export needs a place to write to", hint="name it with -o PATH")
    if request.target is not None and request.kind.is_tracker and request.target.is_file():
        raise UsageError(f"{request.target} is a file", hint=f"{request.kind} writes a folder")
    if request.target is not None and not request.kind.is_tracker:
        check_output_file(request.target, describe_marks_of_earlier_export(request.kind))


@contextmanager
def _lock_export_target(request: ExportRequest, context: Context) -> Iterator[None]:
    """Hold the target alone; raises UsageError if it cannot be written."""
    target = request.target
    if target is None:
        yield
        return
    try:
        if request.kind.is_tracker and not target.exists():
            (make_private_folder(target) / EXPORT_MARK).touch()
        with ExitStack() as stack:
            _take_target_lock(target, stack, context)
            yield
    except OSError as error:
        raise unwritable_file_error(target, error) from error


def _take_target_lock(target: Path, stack: ExitStack, context: Context) -> None:
    """Take the lock next to the target, so that other hosts that see the file see the lock, too."""
    lock = target.with_name(f".{target.name}.lock")
    what = f"has been exporting to {target}"
    try:
        stack.enter_context(hold_lock(lock, at=context.now(), what=what, passing=True))
    except UsageError as error:
        # Users do not know the lock: name the target next to it.
        if isinstance(error.__cause__, OSError):
            raise unwritable_file_error(target, error.__cause__) from error
        raise


def _export_what_changed(
    request: ExportRequest, runs: Sequence[ExportedRun], known: dict[str, Any], context: Context
) -> Written:
    """Write what changed since the last call: of a tracker the runs, of a text all of it."""
    stamps = {run.id: run.change_stamp() for run in runs}
    changed = [run for run in runs if known.get(run.id) != stamps[run.id]]
    known |= stamps
    if not changed:
        return Written()
    if request.kind.is_tracker:
        return _export_runs_to_tracker(request, changed)
    return _write_document(request, runs, context)


def _export_runs_to_tracker(request: ExportRequest, runs: Sequence[ExportedRun]) -> Written:
    """Write all runs; raises UsageError afterwards if the tracker refused some."""
    write = partial(import_tracker_module(request.kind).export_run, target=request.target)
    written, refused = Written(), list[UsageError]()
    for run in runs:
        try:
            written += write(run)
        except UsageError as error:
            refused.append(error)
    if refused:
        done = len(runs) - len(refused)
        others = f"; {format_count(done, 'other run')} {'is' if done == 1 else 'are'} exported"
        raise UsageError(f"{refused[0]}{others if done else ''}", hint=refused[0].hint)
    return written


def _write_document(request: ExportRequest, runs: Sequence[ExportedRun], context: Context) -> Written:
    document = ExportDocument(request.kind, runs, context.now(), undone=request.undone)
    if request.target is None:
        context.stdout.writelines(document)
        context.stdout.flush()
    else:
        write_output_file(request.target, document, describe_marks_of_earlier_export(request.kind))
    return document.written
