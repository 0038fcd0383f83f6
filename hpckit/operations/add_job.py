"""Adds a job to a frozen launch, under a lock: its script, then its record.

The lock ensures that no two processes, on one host or many, add a job under the same index.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from hpckit.context import Context
from hpckit.errors import HeldError, UsageError
from hpckit.model.events import JobAdded
from hpckit.record.launch_events import record_event, renew_listing
from hpckit.record.launches import Launch, load_launch
from hpckit.record.lock import exclusive
from hpckit.record.store import write_text

_LOOK_S = 0.5


@contextmanager
def alone(
    launch: Launch, context: Context, *, patience: timedelta = timedelta()
) -> Iterator[Launch]:
    """Hold the launch's lock for adding jobs; give the launch, read again under the lock.

    Waits up to `patience` for other processes. Raises HeldError if one still holds the lock after
    that.
    """
    with ExitStack() as stack:
        deadline = context.now() + patience
        while not _taken(stack, launch, context, final=context.now() >= deadline):
            # Supervisors of an array begin at the same moment: the waits differ so that they do not
            # collide.
            context.sleep(_LOOK_S + context.now().microsecond / 1e6)
        renew_listing(launch.paths)
        yield load_launch(launch.folder)


def _taken(stack: ExitStack, launch: Launch, context: Context, *, final: bool) -> bool:
    what = f"is resuming {launch.id}"
    try:
        stack.enter_context(exclusive(launch.paths.resume_lock, at=context.now(), what=what))
    except HeldError:
        if final:
            raise
        return False
    return True


def add_job(launch: Launch, added: JobAdded, script: str) -> None:
    """Write a job's script and the record that supervisors find it by; raises UsageError."""
    paths = launch.paths
    try:
        write_text(paths.script(added.job.index), script)
        record_event(paths, added)
    except OSError as error:
        raise UsageError(
            f"the launch folder {paths.folder} cannot be written: {error.strerror or error}",
            hint="check quota and free space, and that the folder is still yours to write",
        ) from error
