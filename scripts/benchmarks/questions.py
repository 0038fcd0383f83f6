"""Counts the queries to Slurm for a sweep and for watching it, compared with other tools.

The statistics of the controller and the accounting (`sdiag`, `sacctmgr show stats`) are read before
and after each step, with a thousand waiting runs, none of which may begin. An hour of watching is
an hour of the program's own clock: every query in it is really made.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.commands import SANDBOX_BIN, SWEEP, hpckit, need_sandbox, rival_python, run, slurm
from hpckit.cli.main import build_verb_parser, import_verb_module
from hpckit.context import Context

RUNS = 1000
HOUR = timedelta(hours=1)
AT_ONCE = 10
LATER = "now+5hours"

_OWN = frozenset({"REQUEST_STATS_INFO", "REQUEST_PING"})
"""Queries by sdiag itself, and by commands that wait for the sandbox."""

_OF_USERS = "REQUEST_"
_OF_JOBS = ("REQUEST_COMPLETE", "REQUEST_STEP", "REQUEST_JOB_STEP")
_OF_SACCT = "DBD_GET_JOBS_COND"


def bench_questions(folder: Path) -> None:
    """Count RPCs for the submission of 1000 runs, and for an hour of watching them."""
    need_sandbox()
    outputs = folder / "outputs"
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(outputs), "XDG_CACHE_HOME": str(folder / "cache")}
    _ours(folder, environ)
    _submitit(folder, environ)
    _launcher(folder, environ)


def _ours(folder: Path, environ: dict[str, str]) -> None:
    words = hpckit(
        *("launch", "-m", "--json", "cluster=sandbox", "experiment=command", "command=true"),
        *(f"+x=range(0,{RUNS})", "code.snapshot=false"),
        f"+resources.additional_parameters.begin='{LATER}'",
    )
    with _counted(f"hpckit launch of {RUNS} runs"):
        launch = json.loads(run(words, env=environ, cwd=folder).stdout)["launch"]
    with _counted("one hpckit status --fresh"):
        run(hpckit("status", launch, "--fresh"), env=environ)
    with _counted(f"{AT_ONCE} hpckit status at once"):
        some = [
            subprocess.Popen(hpckit("status", launch), env=environ, stdout=subprocess.DEVNULL)
            for _ in range(AT_ONCE)
        ]
        for one in some:
            one.wait()
    with _counted("an hour of hpckit status --watch"):
        _watch_for_an_hour(launch, environ)
    run(hpckit("cancel", launch), env=environ)


def _watch_for_an_hour(launch: str, environ: dict[str, str]) -> None:
    began = now = datetime.now(UTC)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += timedelta(seconds=seconds)
        if now - began > HOUR:
            raise KeyboardInterrupt

    context = Context(
        environ=environ, cwd=Path.cwd(), stdout=io.StringIO(), stderr=sys.stderr, now=lambda: now, sleep=sleep
    )
    arguments = build_verb_parser("status").parse_intermixed_args([launch, "--watch"])
    try:
        import_verb_module("status").run(arguments, context)
    except KeyboardInterrupt:
        return


def _submitit(folder: Path, environ: dict[str, str]) -> None:
    arguments = [str(folder / "submitit"), str(RUNS), LATER]
    rival = _rival("waits_by_submitit.py", *arguments, cwd=folder, environ=environ)
    with _counted(f"submitit map_array of {RUNS} runs"):
        _told(rival, "submit")
    with _counted("one look of submitit at all states"):
        _told(rival, "look")
    with _counted("an hour of submitit's Job.wait"):
        _told(rival, "wait")
    _told(rival, "cancel")
    rival.communicate()


def _launcher(folder: Path, environ: dict[str, str]) -> None:
    words = (
        *("-m", f"+x=range(0,{RUNS})", "hydra.launcher.partition=batch"),
        *("hydra.job.name=waits", f"+hydra.launcher.additional_parameters.begin={LATER}"),
    )
    rival = _rival("waits_by_launcher.py", *words, cwd=folder, environ=environ)
    try:
        with _counted(f"hydra-submitit-launcher of {RUNS} runs"):
            _told(rival, "submit")
        with _counted("an hour of its own waiting"):
            _told(rival, "wait")
    finally:
        slurm("scancel", "--name=waits")
    rival.communicate()


def _rival(program: str, *arguments: str, cwd: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    """Start a rival's program, which follows commands on standard input."""
    path = f"{SANDBOX_BIN}{os.pathsep}{environ['PATH']}"
    return subprocess.Popen(
        [rival_python(), str(SWEEP / program), *arguments],
        cwd=cwd,
        env={**environ, "PATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _told(rival: subprocess.Popen[str], word: str) -> None:
    """Let the rival do one thing and wait for it; its other output is discarded."""
    assert rival.stdin is not None  # noqa: S101  # it is a pipe
    assert rival.stdout is not None  # noqa: S101  # it is a pipe
    rival.stdin.write(f"{word}\n")
    rival.stdin.flush()
    if not any(line.strip() == word for line in rival.stdout):
        sys.exit(f"{rival.args!r} did not {word}")


@contextmanager
def _counted(what: str) -> Iterator[None]:
    before, jobs = _controller(), _accounting()
    yield
    found, asked = _controller() - before, _accounting() - jobs
    words = ", ".join(f"{count} {name.removeprefix(_OF_USERS)}" for name, count in found.items())
    print(f"{what:40} {found.total():4} RPCs, sacct {asked:3}   {words}", flush=True)


def _controller() -> Counter[str]:
    """Return the number of RPCs to slurmctld so far, by kind, without those of its own daemons."""
    found: Counter[str] = Counter()
    text = slurm("sdiag").partition("by message type")[2].partition("by user")[0]
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" ")
        of_user = name.startswith(_OF_USERS) and not name.startswith(_OF_JOBS)
        if of_user and name not in _OWN:
            found[name] = int(rest.partition("count:")[2].split()[0])
    return found


def _accounting() -> int:
    """Return how often slurmdbd was queried for jobs so far."""
    lines = slurm("sacctmgr", "show", "stats").splitlines()
    return sum(int(line.partition("count:")[2].split()[0]) for line in lines if _OF_SACCT in line)
