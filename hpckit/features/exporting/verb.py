"""`hpckit export`: the metrics of runs for other programs, without what restarts have undone."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpckit.cli.options import add_output_dir, add_references, output_dir
from hpckit.context import Context
from hpckit.features.exporting.documents import ExportKind
from hpckit.features.exporting.export_runs import ExportOutcome, ExportRequest, export_runs
from hpckit.model.counted import counted

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
    add_references(parser)
    parser.add_argument(
        *("-o", "--to"),
        metavar="PATH",
        help="the file or folder to write (default: standard output; of tensorboard, wandb and "
        "mlflow a folder ./exports/KIND)",
    )
    parser.add_argument(
        "--follow", action="store_true", help="repeat the export until all runs have ended"
    )
    parser.add_argument(
        "--undone",
        action="store_true",
        help="also values that a restart has undone, marked as such (csv, jsonl)",
    )
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Export runs, and say on standard error what was written; always returns 0."""
    request = ExportRequest(
        kind=ExportKind(arguments.kind),
        references=arguments.references,
        base=output_dir(arguments, context),
        target=_target(arguments, context),
        undone=arguments.undone,
        follow=arguments.follow,
    )
    outcome = export_runs(request, context)
    if request.target is not None:
        context.note(f"exported {_summary(outcome, request.kind)} to {request.target}")
    if outcome.runs and not arguments.follow and not outcome.written.values:
        _remark_nothing(outcome, request.kind, context)
    if outcome.written.left_out:
        context.note(
            f"left out {counted(outcome.written.left_out, 'value')} that {request.kind} has no "
            "place for: texts, values without a whole step, names and steps that it does not take"
        )
    return 0


def _remark_nothing(outcome: ExportOutcome, kind: ExportKind, context: Context) -> None:
    """Say why there is nothing; traces and OpenMetrics have more than values, and need none."""
    if kind not in {ExportKind.trace, ExportKind.openmetrics} and not outcome.written.left_out:
        context.note(
            f"{'this run has' if len(outcome.runs) == 1 else 'these runs have'} no metrics: "
            "run.log(loss=...) writes them"
        )


def _target(arguments: argparse.Namespace, context: Context) -> Path | None:
    if arguments.to is not None:
        return context.cwd / Path(arguments.to).expanduser()
    kind = ExportKind(arguments.kind)
    return context.cwd / "exports" / kind if kind.is_tracker else None


def _summary(outcome: ExportOutcome, kind: ExportKind) -> str:
    runs = counted(len(outcome.runs), "run")
    return (
        runs if kind is ExportKind.trace else f"{runs}, {counted(outcome.written.values, 'value')}"
    )
