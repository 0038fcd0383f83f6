"""Starts the local executor, which runs the jobs of a launch on this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess  # noqa: TID251  # the local executor is a Python process of hpckit
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.context import NO_LOCAL, Context
from hpckit.errors import RunError, UsageError
from hpckit.model.events import LocalStarted, SubmitRefused
from hpckit.model.launch import ClusterKind
from hpckit.model.rank import THREADS
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch, read_launch_events
from hpckit.record.store import PRIVATE_FILE
from hpckit.runtime.environ import TERMINAL

_PATIENCE_S = 60.0
_POLL_S = 0.02
_LOG_TAIL = 10


def start_local_executor(
    launch: Launch, context: Context, jobs: Sequence[int] = (), *, terminal: str | None = None
) -> LocalStarted:
    """Start a detached local executor; return once it has recorded its start.

    `jobs` are indices of added jobs; if empty, the jobs the launch was frozen with. `terminal` is
    the device for the only rank of a run in the foreground. Raises RunError if the executor ends or
    reports nothing in time; its runs then count as failed, with that reason.
    """
    check_local_runs_possible(context.environ)
    try:
        return _spawn_local_executor(launch, context, jobs, terminal)
    except RunError as error:
        for job in jobs or [job.index for job in launch.jobs]:
            event = SubmitRefused(at=context.now(), job_index=job, message=error.message)
            with contextlib.suppress(OSError):  # the error itself is raised in any case
                record_launch_event(launch.paths, event)
        raise


def check_local_runs_possible(environ: Mapping[str, str]) -> None:
    """Raise UsageError if no runs can, or may, be supervised on this machine.

    This needs Linux's signals, /proc and prctl.
    """
    refuse_forbidden_local_runs(ClusterKind.local, environ)
    if platform.system() != "Linux":
        raise UsageError(
            f"runs need Linux, but this machine has {platform.system()}",
            hint="here you can look at launches (status, logs, results, ls), check and render; "
            "launch on a Linux machine or on the cluster",
        )


def refuse_forbidden_local_runs(kind: ClusterKind, environ: Mapping[str, str]) -> None:
    """Raise UsageError for runs on this machine if the site's administrators allow none."""
    if kind is not ClusterKind.slurm and environ.get(NO_LOCAL):
        raise UsageError(
            f"cluster=local starts runs on this machine, but its administrators do not allow that "
            f"({NO_LOCAL} is set)",
            hint="submit them to Slurm (cluster=slurm), or work in an interactive job: "
            "srun --pty bash, and unset it there",
        )


def _spawn_local_executor(
    launch: Launch, context: Context, jobs: Sequence[int], terminal: str | None
) -> LocalStarted:
    left_out = (TERMINAL, THREADS)
    environ = {name: value for name, value in context.environ.items() if name not in left_out}
    if terminal is not None:
        environ[TERMINAL] = terminal
    log = launch.paths.local_log
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
    try:
        process = subprocess.Popen(
            launch.build_hpckit_command("local", str(launch.folder), *(f"--job={job}" for job in jobs)),
            cwd=launch.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(
            f"the local executor cannot be started: {error}",
            hint="launch again, with a cluster.python that exists and has hpckit",
        ) from error
    finally:
        os.close(handle)
    return _await_executor_start(launch, process, log, context)


def _await_executor_start(
    launch: Launch, process: subprocess.Popen[bytes], log: Path, context: Context
) -> LocalStarted:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        for event in read_launch_events(launch):
            if isinstance(event, LocalStarted) and event.pid == process.pid:
                # Detached on purpose: it outlives this process, which will not wait for it.
                process.returncode = 0
                return event
        if ended:
            break
        context.sleep(_POLL_S)
    process.kill()
    process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]
    raise RunError(
        "the local executor did not start: " + ("\n".join(lines) or "it printed nothing"),
        hint=f"its log is {log}; does {launch.python} have hpckit?",
    )
