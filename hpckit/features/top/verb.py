"""`hpckit top`: a launch on a whole terminal: its runs, and one of them in detail.

Without a terminal it prints what `status --watch` does. It changes nothing, unless the user cancels
a run and confirms that.
"""

from __future__ import annotations

import argparse
import io
import sys
from functools import partial

from hpckit.cli.options import add_launch_or_run_argument, add_output_dir_option, resolve_reference_to_show
from hpckit.cli.terminal.live_status import Look, show_status_until_over
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import UsageError, import_optional
from hpckit.features.top.detail import render_top_page
from hpckit.features.top.reader import TopReader, TopRequest
from hpckit.operations.cancel import cancel_runs, plan_cancellations
from hpckit.operations.next_step import say_runs_continue_on_ctrl_c
from hpckit.record.launches import Launch
from hpckit.record.lookup import Selection
from hpckit.report.selection import Filter
from hpckit.values import replace

_ONCE = 50
"""Runs that `--once` lists."""

EPILOG = """\
examples:
  hpckit top            the latest launch
  hpckit top digits.3
  hpckit top --once     one look, as text

Keys: arrows select a run, / filters by words of overrides, s sorts, m changes the metric; l, g, e
show the log, the GPUs and ranks, the events of the run (those of all runs are shown at first);
c cancels it (asks first); q quits. The runs continue.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `top`."""
    add_launch_or_run_argument(parser)
    parser.add_argument("--once", action="store_true", help="print one look as text, and exit")
    add_output_dir_option(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show a launch until the user leaves; returns 0."""
    selection = resolve_reference_to_show(arguments, context)
    if arguments.once:
        _print_single_frame(selection, context)
    elif _is_interactive(context):
        _run_application(selection, context)
    else:
        show_status_until_over(selection.launch, Look(indices=selection.indices), context)
    return 0


def _is_interactive(context: Context) -> bool:
    """Whether a person sees the output and can press keys; Textual draws on standard error."""
    there = sys.stdin is not None and sys.stdin.isatty()
    return there and context.has_terminal and context.stderr.isatty()


def _print_single_frame(selection: Selection, context: Context) -> None:
    reader = TopReader(launch=selection.launch, context=context, indices=selection.indices)
    reader.watch.ask_slurm_next_time()
    shown = reader.indices or range(min(_ONCE, len(selection.launch.runs)))
    request = TopRequest(visible=tuple(shown), selected=selection.index)
    reader.read_frame(request)
    frame = reader.load_selected_curve(request)
    show_page(render_top_page(reader.head, frame, _ONCE, context.now()), context)


def _run_application(selection: Selection, context: Context) -> None:
    app = import_optional(
        "hpckit.features.top.app",
        "hpckit top",
        "pip install '.[top]' in hpckit's checkout; `hpckit top --once` and `hpckit status "
        "--watch` need nothing",
    )
    quiet = replace(context, stderr=io.StringIO())  # a remark would be drawn over the screen
    reader = TopReader(launch=selection.launch, context=quiet, indices=selection.indices)
    cancel = partial(cancel_run, selection.launch, quiet)
    source = app.TopSource(reader.read_frame, reader.rebuild_frame, reader.load_selected_curve, cancel)
    with say_runs_continue_on_ctrl_c(selection.launch, context):
        app.run_top(source)


def cancel_run(launch: Launch, context: Context, index: int) -> str:
    """Cancel a run, as `hpckit cancel` does, and say what was done; raises HpckitError."""
    if launch.stranger is not None:
        raise UsageError(f"{launch.id} is not yours: {launch.stranger.reason}")
    (asked,) = plan_cancellations([Selection(launch=launch, index=index)], Filter(), context)
    if not asked.targets:
        return f"{launch.runs[index].id} is over"
    cancel_runs([asked], context)
    return f"cancelling {launch.runs[index].id}"
