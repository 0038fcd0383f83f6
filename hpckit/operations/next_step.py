"""The commands suggested to the user, and the message after Ctrl-C in a view.

Ctrl-C in a view never acts on the launch: runs continue until they are cancelled explicitly.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hpckit.context import Context, default_output_dir
from hpckit.record.launches import Launch


class LeftView(KeyboardInterrupt):
    """Ctrl-C ended a view, and the message for that has been printed."""


def launch_reference(launch: Launch, context: Context) -> str:
    """Return how to name the launch in commands: its id, or its folder if that is elsewhere."""
    here = default_output_dir(context)
    return launch.id if launch.folder.parent == here else shlex.quote(str(launch.folder))


@contextmanager
def say_runs_continue_on_ctrl_c(launch: Launch, context: Context) -> Iterator[None]:
    """After Ctrl-C, print that the runs continue and how to view or cancel them.

    Then raises LeftView. Use it around the view: a line printed below a view is overwritten.
    """
    try:
        yield
    except LeftView:
        raise
    except KeyboardInterrupt:
        named = launch_reference(launch, context)
        context.note(
            f"stopped looking; the runs continue. `hpckit status {named} --watch` shows them, "
            f"`hpckit cancel {named}` cancels them"
        )
        raise LeftView from None


def format_results_command(launches: Sequence[Launch], others: Sequence[str], context: Context) -> str:
    """Return the command for the results of launches together with others next to them, by id."""
    folder = launches[0].folder.parent
    here = folder == default_output_dir(context)
    earlier = [other if here else shlex.quote(str(folder / other)) for other in others]
    return " ".join(["hpckit results", *earlier, *(launch_reference(launch, context) for launch in launches)])
