"""An attempt's folder, as its supervisor keeps it.

Takes an attempt's number, makes its secret and begins it. It runs nothing; what happens while the
attempt runs is recorded by runtime.supervisor.journal. An attempt that cannot even begin is an
error.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from datetime import timedelta

from hpckit.errors import RunError
from hpckit.model import events
from hpckit.model.ids import run_id
from hpckit.model.launch import ClusterKind, WorkingFolder
from hpckit.planning.nodes import KEPT, incidents_of
from hpckit.planning.recovery.ledger import Ledger, read_ledger
from hpckit.record.attempts import is_latest, latest_attempt
from hpckit.record.counted_events import counted_events
from hpckit.record.launch_events import merged_events, record_event
from hpckit.record.launches import Launch, is_cancelled, load_settings
from hpckit.record.layout import AttemptPaths, LaunchPaths, RunPaths
from hpckit.record.node_history import append_incident, remove_older
from hpckit.record.process import start_mark
from hpckit.record.snapshot.changes import changed_at_start
from hpckit.record.snapshot.outside import (
    PROJECT,
    changed_outside,
    code_of_run,
    recorded_outside,
    unfrozen_words,
)
from hpckit.record.store import append_event, make_folder, write_json, write_text
from hpckit.record.working import fill_working_folder, strip_working_folder, written_into_code
from hpckit.runtime.channel import tcp
from hpckit.runtime.clock import now
from hpckit.runtime.environ import job_key
from hpckit.runtime.study.access import ask_study, tell_study
from hpckit.runtime.supervisor.journal import reserve_space
from hpckit.runtime.supervisor.patience import retry_passing_errors
from hpckit.values import dataclass

_REMOVED = 100
"""Old files of the history of nodes that a run removes when it adds one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt that has begun. `paths` are the paths of its files."""

    launch: Launch
    index: int
    number: int
    paths: AttemptPaths
    secret: str

    def clean_up(self, *, completed: bool) -> None:
        """Clean up when the attempt has ended: the working folder, and the study.

        Remove what leads to the code from the working folder; warn of writes into the code.
        """
        if completed:
            strip_working_folder(self.launch, self.index)
        with contextlib.suppress(OSError):
            written = list(written_into_code(self.launch, since=self.paths.secret))
            if written:
                self.record_warning(_describe_writes_into_code(written))
        if not self.launch.searched:
            return
        warning = tell_study(self.launch, self.index)
        if warning:
            self.record_warning(warning)

    def keep_incidents(self, event: events.Event) -> None:
        """Add what an event tells of nodes to the user's history of nodes; raises OSError."""
        folder = self.launch.folder.parent
        for incident in incidents_of(event, run_id(self.launch.id, self.index)):
            if append_incident(folder, incident):
                remove_older(folder, incident.at - KEPT - timedelta(days=1), most=_REMOVED)

    def record_warning(self, message: str) -> None:
        """Add a warning to the attempt's events, if it can be written."""
        with contextlib.suppress(OSError):
            append_event(self.paths.events, events.Warned(at=now(), message=message))

    def owns_run(self) -> bool:
        """Return whether no later attempt of the run has begun: a cut-off node may wake up again.

        False if the listing cannot be read: such a node is likely the one that is cut off.
        """
        with contextlib.suppress(OSError):
            return is_latest(self.launch.paths.run(self.index).attempts, self.number)
        return False

    def read_past_failures(self) -> Ledger:
        """Return the failures of the attempts before this one; empty if they are unreadable."""
        with contextlib.suppress(OSError):
            return read_ledger(counted_events(self.launch, self.index, before=self.number))
        return Ledger()

    def is_cancelled(self) -> bool:
        """Return whether the user asked to cancel the run; False if the record is unreadable."""
        with contextlib.suppress(OSError):
            return is_cancelled(self.launch, self.index)
        return False


def _describe_writes_into_code(written: list[str]) -> str:
    more = f" and {len(written) - 1} more" if written[1:] else ""
    return (
        f"files were written into the frozen code, which all runs share: {written[0]}{more}; write "
        "to relative paths, or below run.folder ($HPCKIT_RUN_DIR)"
    )


def open_attempt(launch: Launch, index: int, job_index: int, environ: Mapping[str, str]) -> Attempt:
    """Begin the next attempt of a run, for a job of the launch.

    Raises RunError if its folder cannot be written; errors that may pass are retried for a minute.
    """
    run = launch.paths.run(index)
    try:
        retry_passing_errors(lambda: _prepare_run_folder(launch, index, run))
        number, paths = retry_passing_errors(lambda: _claim_number(run))
        attempt = Attempt(
            launch=launch, index=index, number=number, paths=paths, secret=tcp.new_secret()
        )
        retry_passing_errors(lambda: write_text(paths.secret, attempt.secret + "\n"))
        retry_passing_errors(lambda: _record_start(attempt, job_index, environ))
        reserve_space(paths)
    except OSError as error:
        raise RunError(
            f"the attempt cannot be recorded in {run.attempts}: {error}",
            hint="check quota and free space, and that the folder is still yours to write",
        ) from error
    return attempt


def _prepare_run_folder(launch: Launch, index: int, run: RunPaths) -> None:
    """Make the run's folder, unless an earlier attempt has."""
    make_folder(run.folder.parent)
    make_folder(run.folder)
    if launch.searched:
        ask_study(launch, index)
    settings, config = load_settings(launch, index)
    if not run.config.exists():
        write_json(run.config, config)
    if settings.runtime.cwd is WorkingFolder.run:
        fill_working_folder(launch, index)


def _claim_number(run: RunPaths) -> tuple[int, AttemptPaths]:
    """Take the next number by making its folder, so that no two attempts share one."""
    make_folder(run.attempts)
    number = latest_attempt(run.attempts)
    while True:
        number += 1
        paths = run.attempt(number)
        try:
            make_folder(paths.folder, exist_ok=False)
        except FileExistsError:
            continue
        return number, paths


def _record_start(attempt: Attempt, job_index: int, environ: Mapping[str, str]) -> None:
    on_slurm = attempt.launch.cluster.kind is ClusterKind.slurm
    job, restarts = job_key(environ) if on_slurm else (None, 0)
    if job is not None:
        _record_adopted_job(attempt.launch.paths, job_index, job.partition("_")[0])
    append_event(
        attempt.paths.events,
        events.AttemptStarted(
            at=now(),
            attempt=attempt.number,
            job=job,
            restart_count=restarts,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=start_mark(os.getpid()) or "",
        ),
    )
    record_changed_code(attempt, environ)


def record_changed_code(attempt: Attempt, environ: Mapping[str, str]) -> None:
    """Record and warn of code that is not frozen and has changed: who compares runs looks there."""
    launch, run = attempt.launch, attempt.launch.paths.run(attempt.index)
    lines = recorded_outside(launch.paths)
    if lines:
        settings = load_settings(launch, attempt.index)[0]
        folders = (launch.code.launched_in, launch.code.working_dir)
        environ = {**environ, PROJECT: launch.code.project}
        lines = code_of_run(lines, settings, folders, environ)
    changed = changed_outside(launch.paths, launch.code.project, lines)
    if changed and changed != changed_at_start(launch.paths, (attempt.index,)):
        write_text(run.other_code, "".join(f"{path}\n" for path in changed))
        attempt.record_warning(f"{unfrozen_words(changed)}; the run takes it as it is now")


def _record_adopted_job(paths: LaunchPaths, job_index: int, main: str) -> None:
    """Record a job that was submitted by hand from a rendered script."""
    kinds = (events.SubmitIntended, events.Submitted, events.SubmitRefused)
    told = (event for event in merged_events(paths) if isinstance(event, kinds))
    history = [event for event in told if event.job_index == job_index]
    known = any(isinstance(event, events.Submitted) and event.job == main for event in history)
    intended = bool(history) and isinstance(history[-1], events.SubmitIntended)
    if not known and not intended:
        record_event(paths, events.Submitted(at=now(), job_index=job_index, job=main, adopted=True))
