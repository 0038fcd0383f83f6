"""An attempt's folder, as its supervisor keeps it.

Takes an attempt's number, makes its secret and begins it. It runs nothing; what happens while the attempt
runs is recorded by runtime.supervisor.journal. An attempt that cannot even begin is an error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from hpckit.errors import RunError
from hpckit.model import events
from hpckit.model.command import split_command
from hpckit.model.ids import build_run_id
from hpckit.model.launch import ClusterKind, WorkingFolder
from hpckit.planning.nodes import KEPT, extract_node_incidents
from hpckit.planning.recovery.ledger import Ledger, build_ledger_from_events
from hpckit.record.attempts import is_latest_attempt, latest_attempt_number
from hpckit.record.counted_events import read_events_for_restart_budget
from hpckit.record.launch_events import read_merged_events, record_launch_event
from hpckit.record.launches import Launch, is_cancel_requested, load_run_settings
from hpckit.record.layout import AttemptPaths, LaunchPaths, RunPaths
from hpckit.record.node_history import append_node_incident, remove_old_history_files
from hpckit.record.process import read_process_start_id
from hpckit.record.snapshot.changes import read_code_changes_at_start
from hpckit.record.snapshot.outside import (
    PROJECT,
    find_changed_outside_code,
    format_changed_code_warning,
    read_outside_code_checksums,
    select_outside_code_of_run,
)
from hpckit.record.snapshot.script_imports import find_trainer_without_line
from hpckit.record.store import append_event, make_private_folder, write_json, write_text_atomically
from hpckit.record.working import (
    fill_working_folder,
    list_files_written_into_code,
    remove_code_from_working_folder,
)
from hpckit.runtime.channel import tcp
from hpckit.runtime.clock import now
from hpckit.runtime.environ import find_job_and_restarts
from hpckit.runtime.study.access import assign_study_values, report_run_end
from hpckit.runtime.supervisor.journal import reserve_disk_for_final_events
from hpckit.runtime.supervisor.patience import retry_transient_file_errors
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
            remove_code_from_working_folder(self.launch, self.index)
        with contextlib.suppress(OSError):
            written = list(list_files_written_into_code(self.launch, since=self.paths.secret))
            if written:
                self.record_warning(_describe_writes_into_code(written))
        if not self.launch.searched:
            return
        warning = report_run_end(self.launch, self.index)
        if warning:
            self.record_warning(warning)

    def keep_incidents(self, event: events.Event) -> None:
        """Add what an event tells of nodes to the user's history of nodes; raises OSError."""
        folder = self.launch.folder.parent
        for incident in extract_node_incidents(event, build_run_id(self.launch.id, self.index)):
            if append_node_incident(folder, incident):
                remove_old_history_files(folder, incident.at - KEPT - timedelta(days=1), most=_REMOVED)

    def record_warning(self, message: str) -> None:
        """Add a warning to the attempt's events, if it can be written."""
        with contextlib.suppress(OSError):
            append_event(self.paths.events, events.Warned(at=now(), message=message))

    def is_still_latest_attempt(self) -> bool:
        """Return whether no later attempt of the run has begun: a cut-off node may wake up again.

        False if the listing cannot be read: such a node is likely the one that is cut off.
        """
        with contextlib.suppress(OSError):
            return is_latest_attempt(self.launch.paths.run(self.index).attempts, self.number)
        return False

    def read_past_failures(self) -> Ledger:
        """Return the failures of the attempts before this one; empty if they are unreadable."""
        with contextlib.suppress(OSError):
            return build_ledger_from_events(
                read_events_for_restart_budget(self.launch, self.index, before=self.number)
            )
        return Ledger()

    def is_cancelled(self) -> bool:
        """Return whether the user asked to cancel the run; False if the record is unreadable."""
        with contextlib.suppress(OSError):
            return is_cancel_requested(self.launch, self.index)
        return False


def _describe_writes_into_code(written: list[str]) -> str:
    more = f" and {len(written) - 1} more" if written[1:] else ""
    return (
        f"files were written into the frozen code, which all runs share: {written[0]}{more}; write "
        "to relative paths, or below run.folder ($HPCKIT_RUN_DIR)"
    )


def begin_next_attempt(launch: Launch, index: int, job_index: int, environ: Mapping[str, str]) -> Attempt:
    """Begin the next attempt of a run, for a job of the launch.

    Raises RunError if its folder cannot be written; errors that may pass are retried for a minute.
    """
    run = launch.paths.run(index)
    try:
        retry_transient_file_errors(lambda: _prepare_run_folder(launch, index, run))
        number, paths = retry_transient_file_errors(lambda: _claim_attempt_number(run))
        attempt = Attempt(launch=launch, index=index, number=number, paths=paths, secret=tcp.new_secret())
        retry_transient_file_errors(lambda: write_text_atomically(paths.secret, attempt.secret + "\n"))
        retry_transient_file_errors(lambda: _record_attempt_start(attempt, job_index, environ))
        reserve_disk_for_final_events(paths)
    except OSError as error:
        raise RunError(
            f"the attempt cannot be recorded in {run.attempts}: {error}",
            hint="check quota and free space, and that the folder is still yours to write",
        ) from error
    return attempt


def _prepare_run_folder(launch: Launch, index: int, run: RunPaths) -> None:
    """Make the run's folder, unless an earlier attempt has."""
    make_private_folder(run.folder.parent)
    make_private_folder(run.folder)
    if launch.searched:
        assign_study_values(launch, index)
    settings, config = load_run_settings(launch, index)
    if not run.config.exists():
        write_json(run.config, config)
    if settings.runtime.cwd is WorkingFolder.run:
        fill_working_folder(launch, index)


def _claim_attempt_number(run: RunPaths) -> tuple[int, AttemptPaths]:
    """Take the next number by making its folder, so that no two attempts share one."""
    make_private_folder(run.attempts)
    number = latest_attempt_number(run.attempts)
    while True:
        number += 1
        paths = run.attempt(number)
        try:
            make_private_folder(paths.folder, exist_ok=False)
        except FileExistsError:
            continue
        return number, paths


def _record_attempt_start(attempt: Attempt, job_index: int, environ: Mapping[str, str]) -> None:
    on_slurm = attempt.launch.cluster.kind is ClusterKind.slurm
    job, restarts = find_job_and_restarts(environ) if on_slurm else (None, 0)
    if job is not None:
        _record_hand_submitted_job(attempt.launch.paths, job_index, job.partition("_")[0])
    append_event(
        attempt.paths.events,
        events.AttemptStarted(
            at=now(),
            attempt=attempt.number,
            job=job,
            restart_count=restarts,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=read_process_start_id(os.getpid()) or "",
        ),
    )
    record_changed_unfrozen_code(attempt, environ)
    settings = load_run_settings(attempt.launch, attempt.index)[0]
    if settings.command is not None and attempt.number == 1:
        # A second of reading at most, beside the start of the ranks.
        words = split_command(settings.command)
        threading.Thread(target=_suggest_line_for_trainer, args=(attempt, words), daemon=True).start()


def _suggest_line_for_trainer(attempt: Attempt, words: Sequence[str]) -> None:
    folder = Path(attempt.launch.code.working_dir)
    missing = find_trainer_without_line(words, lambda name: folder / name)
    if missing is not None:
        attempt.record_warning(missing)


def record_changed_unfrozen_code(attempt: Attempt, environ: Mapping[str, str]) -> None:
    """Record and warn of code that is not frozen and has changed: who compares runs looks there."""
    launch, run = attempt.launch, attempt.launch.paths.run(attempt.index)
    lines = read_outside_code_checksums(launch.paths)
    if lines:
        settings = load_run_settings(launch, attempt.index)[0]
        folders = (launch.code.original_working_dir, launch.code.working_dir)
        environ = {**environ, PROJECT: launch.code.project}
        lines = select_outside_code_of_run(lines, settings, folders, environ)
    changed = find_changed_outside_code(launch.paths, launch.code.project, lines)
    if changed and changed != read_code_changes_at_start(launch.paths, (attempt.index,)):
        write_text_atomically(run.other_code, "".join(f"{path}\n" for path in changed))
        attempt.record_warning(f"{format_changed_code_warning(changed)}; the run takes it as it is now")


def _record_hand_submitted_job(paths: LaunchPaths, job_index: int, main: str) -> None:
    kinds = (events.SubmitIntended, events.Submitted, events.SubmitRefused)
    told = (event for event in read_merged_events(paths) if isinstance(event, kinds))
    history = [event for event in told if event.job_index == job_index]
    known = any(isinstance(event, events.Submitted) and event.job == main for event in history)
    intended = bool(history) and isinstance(history[-1], events.SubmitIntended)
    if not known and not intended:
        record_launch_event(paths, events.Submitted(at=now(), job_index=job_index, job=main, adopted=True))
