"""`hpckit top`: a launch on a whole terminal: its runs, and one of them in detail.

Without a terminal it prints what `status --watch` does. It changes nothing, unless the user cancels
a run and confirms that.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from types import ModuleType

from hpckit.cli.options import add_output_dir, add_reference, find_shown
from hpckit.cli.terminal.live_status import Look, follow
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.operations.cancel import cancel_runs, plan_cancellation
from hpckit.operations.next_step import only_a_view
from hpckit.record.lookup import Selection
from hpckit.report.live_view.top_detail import top_page
from hpckit.report.selection import Filter
from hpckit.values import dataclass, replace
from hpckit.views.launch_view import Ask, launch_view
from hpckit.views.top import TopReader, TopRequest

_ONCE = 50
"""Runs that `--once` lists."""

EPILOG = """\
examples:
  hpckit top            the latest launch
  hpckit top digits.3
  hpckit top --once     one look, as text

Keys: arrows select a run, / filters by words of overrides, s sorts, m changes the metric; l, g, e
show the log, the GPUs and ranks, the events of the run (those of all runs are shown at first);
c cancels it (asks first); q leaves. The runs continue when you leave.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `top`."""
    add_reference(parser)
    parser.add_argument("--once", action="store_true", help="print one look as text, and end")
    add_output_dir(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show a launch until the user leaves; returns 0."""
    selection = find_shown(arguments, context)
    if arguments.once:
        _once(selection, context)
    elif _on_terminal(context):
        _application(selection, context)
    else:
        look = Look(
            indices=_indices(selection),
            wanted=Filter(),
            key=None,
            limit=0,
            interval_s=None,
            as_json=False,
        )
        follow(selection.launch, look, context)
    return 0


def _indices(selection: Selection) -> tuple[int, ...] | None:
    return None if selection.index is None else (selection.index,)


def _on_terminal(context: Context) -> bool:
    """Whether a person sees the output and can press keys; Textual draws on standard error."""
    there = sys.stdin is not None and sys.stdin.isatty()
    return there and context.terminal and context.stderr.isatty()


def _once(selection: Selection, context: Context) -> None:
    reader = TopReader(launch=selection.launch, context=context, indices=_indices(selection))
    reader.watch.ask_soon()
    shown = reader.indices or range(min(_ONCE, len(selection.launch.runs)))
    request = TopRequest(visible=tuple(shown), selected=selection.index)
    reader.look(request)
    frame = reader.load(request)
    show_page(top_page(reader.head, frame, _ONCE, context.now()), context)


def _application(selection: Selection, context: Context) -> None:
    app = _app_module()
    quiet = replace(context, stderr=io.StringIO())  # a remark would be drawn over the screen
    reader = TopReader(launch=selection.launch, context=quiet, indices=_indices(selection))
    canceller = _Canceller(selection=selection, context=quiet)
    source = app.TopSource(
        look=reader.look, redraw=reader.redraw, load=reader.load, cancel=canceller.cancel
    )
    with only_a_view(selection.launch, context):
        app.run_top(source)


def _app_module() -> ModuleType:
    """Import the application; raises UsageError without Textual."""
    try:
        return importlib.import_module("hpckit.cli.terminal.top_app")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("hpckit"):
            raise
        raise UsageError(
            f"hpckit top needs {error.name}, which is not installed",
            hint="pip install '.[top]' in hpckit's checkout; `hpckit top --once` and `hpckit "
            "status --watch` need nothing",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Canceller:
    """Cancels runs of a launch, as `hpckit cancel` does."""

    selection: Selection
    context: Context

    def cancel(self, index: int) -> str:
        """Cancel a run and say what was done; raises HpckitError."""
        launch = self.selection.launch
        if launch.stranger is not None:
            raise UsageError(f"{launch.id} is not yours: {launch.stranger.reason}")
        view = launch_view(launch, self.context, ask=Ask.open_runs, indices=[index])
        one = Selection(launch=launch, index=index)
        asked = plan_cancellation(one, view, Filter())
        if not asked.targets:
            return f"{launch.runs[index].id} is over"
        cancel_runs([asked], self.context)
        return f"cancelling {launch.runs[index].id}"
