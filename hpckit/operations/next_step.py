"""What somebody is told to type next, and how a view is left.

Responsible for naming a launch so that the next verb finds it, and for the last line after Ctrl-C;
it must not act on a launch: runs go on until they are cancelled by name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hpckit.context import Context, default_output_dir
from hpckit.record.launches import Launch


class LeftView(KeyboardInterrupt):
    """Ctrl-C ended a view, and that has been said."""


def reference(launch: Launch, context: Context) -> str:
    """Return what later verbs find the launch by: its folder where the default is elsewhere."""
    here = default_output_dir(context)
    return launch.id if launch.folder.parent == here else shlex.quote(str(launch.folder))


@contextmanager
def only_a_view(launch: Launch, context: Context) -> Iterator[None]:
    """Say after Ctrl-C that the runs go on, how to look again and how to cancel them.

    Raises LeftView after that. It belongs around the view: a line below one is overwritten.
    """
    try:
        yield
    except LeftView:
        raise
    except KeyboardInterrupt:
        named = reference(launch, context)
        context.note(
            f"stopped looking; the runs continue. `hpckit status {named} --watch` shows them, "
            f"`hpckit cancel {named}` cancels them"
        )
        raise LeftView from None


def all_results(launches: Sequence[Launch], others: Sequence[str], context: Context) -> str:
    """Return the command for the results of launches together with others next to them, by id."""
    folder = launches[0].folder.parent
    here = folder == default_output_dir(context)
    earlier = [one if here else shlex.quote(str(folder / one)) for one in others]
    return " ".join(
        ["hpckit results", *earlier, *(reference(launch, context) for launch in launches)]
    )
