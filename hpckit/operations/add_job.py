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
from hpckit.record.launch_events import record_event, renew_listing
from hpckit.record.launches import Launch, load_launch
from hpckit.record.lock import exclusive
from hpckit.record.store import write_text

PATIENCE = timedelta(minutes=10)
"""How long a process without a user waits for others that add jobs: sbatch may take a minute for
each job, and Slurm may not answer."""

_LOOK_S = 0.5


@contextmanager
def alone(
    launch: Launch, context: Context, *, patience: timedelta = timedelta()
) -> Iterator[Launch]:
    """Hold the launch's lock for adding jobs, as `in_turn` does; give the launch, read again."""
    with in_turn(launch.paths.resume_lock, f"is resuming {launch.id}", context, patience):
        renew_listing(launch.paths)
        yield load_launch(launch.folder)


@contextmanager
def in_turn(lock: Path, what: str, context: Context, patience: timedelta) -> Iterator[None]:
    """Hold a lock; wait up to `patience` for other processes, and raise HeldError after that."""
    deadline = context.now() + patience
    with ExitStack() as stack:
        while True:
            final = context.now() >= deadline
            try:
                stack.enter_context(exclusive(lock, at=context.now(), what=what))
                break
            except HeldError:
                if final:
                    raise
            # Supervisors of an array begin at the same moment: the waits differ so that they do not
            # collide.
            context.sleep(_LOOK_S + context.now().microsecond / 1e6)
        yield


def add_job(launch: Launch, added: JobAdded, script: str) -> None:
    """Write a job's script and the record that supervisors find it by; raises UsageError."""
    with written(launch):
        write_text(launch.paths.script(added.job.index), script)
        record_event(launch.paths, added)


@contextmanager
def written(launch: Launch) -> Iterator[None]:
    """Raise UsageError for a launch folder that cannot be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the launch folder {launch.folder} cannot be written: {error.strerror or error}",
            hint="check quota and free space, and that the folder is still yours to write",
        ) from error
