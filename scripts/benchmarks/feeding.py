"""A thousand runs under low limits, a killed launcher and a restarted controller.

The outcome is counted from the runs' own notes and from sacct, not from hpckit's record.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from benchmarks.commands import SANDBOX, hpckit, need_sandbox, run, slurm, wait_until

RUNS, AT_A_TIME, QUEUED = 1000, 12, 150
ARRAY_SIZE = 101
NOTE = 'command=[sh,-c,"date +%s.%N >> $HPCKIT_PROJECT/ran/$HPCKIT_RUN_INDEX"]'
PATIENCE_S = 3600


def bench_feed(folder: Path) -> None:
    """Count how often each of 1000 runs ran, how many at a time, and how far out of order."""
    need_sandbox()
    options = json.loads(run([str(SANDBOX), "status", "--json"]).stdout)["options"]
    if options["max_array_size"] != ARRAY_SIZE:
        sys.exit(f"bring the sandbox up with --max-array-size {ARRAY_SIZE}")
    _limit(QUEUED)
    try:
        launch = _sweep(folder)
    finally:
        _limit(-1)
    _count(folder / "ran", launch)


def _limit(queued: int) -> None:
    slurm("sacctmgr", "-i", "modify", "qos", "normal", "set", f"MaxSubmitJobsPerUser={queued}")


def _sweep(folder: Path) -> str:
    """Launch, kill the launcher, continue with `resume`, restart the controller; return the id."""
    ran = folder / "ran"
    ran.mkdir()
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(folder / "outputs")}
    words = hpckit(
        *("launch", "-m", "experiment=command", "cluster=sandbox", "code.snapshot=false", NOTE),
        *(f"sweep.max_concurrent={AT_A_TIME}", f"+params.x=range(0,{RUNS})"),
    )
    launcher = subprocess.Popen(words, cwd=folder, env=environ)
    wait_until(lambda: "submitted" in _events(folder), PATIENCE_S, every_s=0.02)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    wait_until(lambda: _resumed(folder, environ), PATIENCE_S, every_s=10)
    wait_until(lambda: len([*ran.iterdir()]) >= RUNS // 3, PATIENCE_S, every_s=1)
    run([str(SANDBOX), "stop-controller"])
    run([str(SANDBOX), "start-controller"])
    wait_until(lambda: not slurm("squeue", "--noheader"), PATIENCE_S, every_s=5)
    return next((folder / "outputs").iterdir()).name


def _resumed(folder: Path, environ: Mapping[str, str]) -> bool:
    """Resume; return whether it succeeded: it fails while a submission may be in progress."""
    words = hpckit("resume")
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, check=False)
    return done.returncode == 0


def _events(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("outputs/*/events/*.jsonl"))


def _count(ran: Path, launch: str) -> None:
    notes = {int(path.name): path.read_text().split() for path in ran.iterdir()}
    often = Counter(len(times) for times in notes.values())
    begins = sorted(notes, key=lambda index: float(notes[index][0]))
    displaced = max(abs(place - index) for place, index in enumerate(begins))
    spans, arrays = _spans(launch)
    print(f"runs that ran        {len(notes)} of {RUNS}; so many times: {dict(often)}")
    print(f"arrays               {arrays}, with at most {QUEUED} jobs queued")
    print(f"most at a time       {_most(spans)} of {AT_A_TIME} allowed (sacct)")
    print(f"farthest from order  {displaced} places")


def _spans(launch: str) -> tuple[list[tuple[datetime, datetime]], int]:
    """Return start and end of each array element, from sacct, and the number of arrays."""
    words = ("-X", "-n", "-P", "-S", "now-6hours", "--format=JobID,JobName,Start,End")
    rows = [line.split("|") for line in slurm("sacct", *words).split()]
    ours = [row for row in rows if launch in row[1] and "_" in row[0]]
    times = [(datetime.fromisoformat(row[2]), datetime.fromisoformat(row[3])) for row in ours]
    return times, len({row[0].partition("_")[0] for row in ours})


def _most(spans: list[tuple[datetime, datetime]]) -> int:
    edges = sorted([*((begin, 1) for begin, _ in spans), *((end, -1) for _, end in spans)])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most
