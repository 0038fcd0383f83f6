"""Adds a job to a frozen launch, under a lock: its script, then its record.

The lock ensures that no two processes, on one host or many, add a job under the same index.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import HeldError, UsageError
from hpckit.model.events import JobAdded
from hpckit.record.launch_events import record_launch_event, refresh_nfs_listing_of_events
from hpckit.record.launches import Launch, load_launch
from hpckit.record.lock import hold_lock
from hpckit.record.store import write_text_atomically

PATIENCE = timedelta(minutes=10)
"""How long a process without a user waits for others that add jobs: sbatch may take a minute for
each job, and Slurm may not answer."""

_LOOK_S = 0.5


@contextmanager
def lock_launch_for_adding_jobs(
    launch: Launch, context: Context, *, patience: timedelta = timedelta()
) -> Iterator[Launch]:
    """Hold the launch's lock for adding jobs, as `hold_lock_with_patience` does; yield the launch, reread."""
    with hold_lock_with_patience(launch.paths.resume_lock, f"is resuming {launch.id}", context, patience):
        refresh_nfs_listing_of_events(launch.paths)
        yield load_launch(launch.folder)


@contextmanager
def hold_lock_with_patience(
    lock: Path, what: str, context: Context, patience: timedelta | None, *, passing: bool = False
) -> Iterator[None]:
    """Hold a lock; wait up to `patience` for other processes, and raise HeldError after that.

    None: for as long as it takes, and whom it waits for is printed.
    """
    deadline, told = None if patience is None else context.now() + patience, False
    with ExitStack() as stack:
        while True:
            final = deadline is not None and context.now() >= deadline
            try:
                stack.enter_context(hold_lock(lock, at=context.now(), what=what, passing=passing))
                break
            except HeldError as error:
                if final:
                    raise
                if deadline is None and not told:
                    context.note(f"{error.message}; waiting for it")
                told = True
            # Supervisors of an array begin at the same moment: the waits differ so that they do not
            # collide.
            context.sleep(_LOOK_S + context.now().microsecond / 1e6)
        yield


def record_added_job(launch: Launch, added: JobAdded, script: str) -> None:
    """Write a job's script and the record that supervisors find it by; raises UsageError."""
    with refuse_unwritable_launch(launch):
        write_text_atomically(launch.paths.script(added.job.index), script)
        record_launch_event(launch.paths, added)


@contextmanager
def refuse_unwritable_launch(launch: Launch) -> Iterator[None]:
    """Raise UsageError for a launch folder that cannot be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the launch folder {launch.folder} cannot be written: {error.strerror or error}",
            hint="check quota and free space, and that the folder is still yours to write",
        ) from error
