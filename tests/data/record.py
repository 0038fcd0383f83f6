"""Record what a real Slurm prints, for the tests that read it: `python tests/data/record.py`.

Needs the sandbox and its commands on PATH. Writes tests/data/<release>/ with the output of
squeue, sacct and scontrol while one job of each kind exists, and jobs.json: which job is which;
nodes.txt is what scontrol says of nodes that are drained, fail, or are only reserved. Of what
--json prints, what says which job it is and how it is; the rest is long, or names the machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hpckit.slurm.parse import SACCT_FORMAT, SQUEUE_FORMAT

KEPT = re.compile(
    "array.*|(derived_)?exit_code|het.*|job_(id|state)|kill_request_user|name|node(s|_count)|"
    "partition|restart_cnt|state.*|user.*"
)
"""The fields of a job that are kept of --json."""


def slurm(*words: str) -> str:
    """Run one of Slurm's programs."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout


def submit(*words: str, run: str, log: str = "/dev/null") -> str:
    """Submit a job and return its id."""
    output = slurm("sbatch", "--parsable", f"--output={log}", *words, f"--wrap={run}")
    return output.strip().partition(";")[0]


def submit_all() -> dict[str, str]:
    """Submit one job of each kind."""
    jobs = {
        "completed": submit(run="true"),
        "failed": submit("--nodes=2", run="exit 3"),
        "killed": submit(run="kill -9 $$"),
        "log_not_opened": submit(run="true", log="/dev/null/log"),
        "cancelled_running": submit(run="sleep 60"),
        "cancelled_pending": submit("--hold", run="true"),
        "requeued": submit("--requeue", run="sleep 60"),
        "held": submit("--hold", run="true"),
        "running": submit("--nodes=2", run="sleep 60"),
        "array": submit("--array=0-9%2", run="sleep $((SLURM_ARRAY_TASK_ID < 2 ? 0 : 60))"),
    }
    time.sleep(4)
    slurm("scontrol", "requeue", jobs["requeued"])
    slurm("scancel", jobs["cancelled_running"], jobs["cancelled_pending"], f"{jobs['array']}_9")
    time.sleep(3)
    return jobs


def nodes() -> str:
    """Return what scontrol says of nodes in several states, in which they are not left."""
    job = submit("--nodes=2", "--nodelist=n2,n3", run="sleep 60")
    maintenance = ("flags=maint", "nodes=n4", "users=root", "start=now", "duration=5")
    slurm("scontrol", "create", "reservation=recording", *maintenance)
    changes = {
        "n1": ("drain", "fan 3 State=IDLE Reason=old"),
        "n2": ("drain", "NHC: GPU 3 has fallen off the bus"),
        "n3": ("fail", "memory"),
    }
    time.sleep(2)
    for node, (state, reason) in changes.items():
        slurm("scontrol", "update", f"nodename={node}", f"state={state}", f"reason={reason}")
    said = slurm("scontrol", "--oneliner", "show", "node", "n[1-4]")
    slurm("scancel", job)
    for node in changes:
        slurm("scontrol", "update", f"nodename={node}", "state=resume")
    slurm("scontrol", "delete", "reservation=recording")
    return said


def short(text: str, jobs: Collection[str]) -> str:
    """Return what --json printed of these jobs (22.05 prints all), without most of it."""
    said = json.loads(text)
    plugin = said["meta"]["plugin"]
    parser = {key: plugin[key] for key in ("type", "name", "data_parser") if key in plugin}
    kept = [
        json.dumps({key: one[key] for key in one if KEPT.fullmatch(key)})
        for one in said["jobs"]
        if str(one["job_id"]) in jobs or str(array_of(one)) in jobs
    ]
    lines = ",\n".join(kept)
    return f'{{"meta": {{"plugin": {json.dumps(parser)}}},\n"jobs": [\n{lines}\n]}}\n'


def array_of(job: dict[str, Any]) -> object:
    """Return the array to which a job of --json belongs."""
    found = job["array"]["job_id"] if "array" in job else job["array_job_id"]
    return found["number"] if isinstance(found, dict) else found


def main() -> int:
    """Record, then clean up."""
    release = ".".join(slurm("sbatch", "--version").split()[-1].split(".")[:2])
    folder = Path(__file__).parent / release
    folder.mkdir(exist_ok=True)
    jobs = submit_all()
    which = f"--jobs={','.join(jobs.values())}"
    commands = {
        "squeue": ["squeue", which, "--array", "--states=all", "--noheader"],
        "squeue_ranges": ["squeue", which, "--states=all", "--noheader"],
        "sacct": ["sacct", which, "-X", "--noheader", "--parsable2", f"--format={SACCT_FORMAT}"],
        "scontrol": ["scontrol", "show", "job", jobs["failed"]],
    }
    for name, command in commands.items():
        asked = [f"--Format={SQUEUE_FORMAT}"] if name.startswith("squeue") else []
        text = slurm(*command, *asked).replace(str(Path.cwd()), "/home/u/project")
        (folder / f"{name}.txt").write_text(text)
        if name in {"squeue", "sacct"}:
            said = slurm(*command, "--json")
            (folder / f"{name}.json").write_text(short(said, jobs.values()))
    (folder / "jobs.json").write_text(json.dumps(jobs, indent=2) + "\n")
    (folder / "nodes.txt").write_text(nodes())
    slurm("scancel", *(jobs[name] for name in ("requeued", "held", "running", "array")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
