"""squeue, sacct, sinfo and scontrol of the fake."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from itertools import pairwise

from fakes.slurm.batch import options_of, stop
from fakes.slurm.other_forms import accounted, queued, show
from fakes.slurm.store import (
    GPUS,
    LIVE,
    MAX_ARRAY_SIZE,
    NODES,
    PARTITIONS,
    Job,
    every,
    fail,
    key,
    mode,
    next_id,
    nodes_of,
    root,
    selected,
    update,
)

STEPPED_BEYOND = 10
_SHOWN = {
    "config": "KillWait                = 5 sec\nPreemptType             = preempt/none\n"
    f"MaxArraySize            = {MAX_ARRAY_SIZE}\n",
    "partition": f"PartitionName=any\n   GraceTime=0 Hidden=NO\n   Nodes=n[1-{len(NODES)}]\n",
}


def squeue(arguments: list[str]) -> int:
    """List jobs; of --Format, only `Name:0|` is understood."""
    if mode("controller-away"):
        sys.stderr.write("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
        return 1
    options = options_of(arguments)
    jobs = _asked(options)
    if "jobs" in options and not jobs and "," not in options["jobs"]:
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
        return 1
    if options.get("states") != "all" or mode("forget"):
        jobs = [job for job in jobs if job["state"] in LIVE]
    rows = _rows(jobs, array="array" in options)
    if show(options, rows, queued):
        return 0
    if options.get("format") == "%x":
        _write([[job.get("excluded", "")] for _, job in rows], end="")
        return 0
    if options.get("format") == "%A":
        _write([[str(job["id"])] for _, job in rows], end="")
        return 0
    names = [field.partition(":")[0] for field in options["Format"].split(",")]
    _write([[_squeue_field(name, shown, job) for name in names] for shown, job in rows], end="|")
    return 0


def sacct(arguments: list[str]) -> int:
    """List jobs as the accounting knows them."""
    if mode("database-away"):
        sys.stderr.write(
            "sacct: error: slurm_persist_conn_open_without_init: failed to open "
            "persistent connection to host:localhost:6819: Connection refused\n"
        )
        fail("sacct", "Problem talking to the database: Connection refused")
    options = options_of(arguments)
    rows = _rows(_asked(options), array=False)
    if show(options, rows, accounted):
        return 0
    names = options["format"].split(",")
    _write([[_sacct_field(name, shown, job) for name in names] for shown, job in rows], end="")
    return 0


def sinfo(arguments: list[str]) -> int:
    """List the partitions; with --format, as hpckit asks for them."""
    options = options_of(arguments)
    if "Node" in options:
        for place, partition in enumerate(PARTITIONS):
            for node in NODES:
                mark = "" if place else "*"
                has = f"64|256000|gpu:{_gpus(place)}|{_node_state()}|(null)"
                sys.stdout.write(f"{node}|{partition}{mark}|{has}\n")
        return 0
    if "format" in options:
        for place, name in enumerate(PARTITIONS):
            has = f"64|256000|gpu:{_gpus(place)}|{_node_state()}"
            sys.stdout.write(f"{name}|{len(NODES)}|{has}\n")
        return 0
    for name in PARTITIONS:
        sys.stdout.write(f"{name} up infinite {len(NODES)} idle n[1-{len(NODES)}]\n")
    return 0


def _show(what: str, *names: str) -> str:
    if what == "job":
        script = next(job["options"]["script"] for name in names for job in selected(name))
        return f"JobId={names[0]}\n   Command={script}\n"
    if what != "config":
        return _SHOWN[what]
    coming = 1 if mode("numbers-anew") else next_id()
    name = "other" if mode("other-cluster") else "fake"
    about = {"ClusterName": name, "NEXT_JOB_ID": coming, "MaxJobId": 67043328}
    return _SHOWN[what] + "".join(f"{key:23} = {value}\n" for key, value in about.items())


def _gpus(place: int) -> int:
    return GPUS // 2 if place and mode("unlike-partitions") else GPUS


def scontrol(arguments: list[str]) -> int:
    """Do `ping`, `requeue`, `release`, `update`, `show`; `shutdown` ends all that runs."""
    verb, *rest = [word for word in arguments if not word.startswith("-")]
    if verb == "shutdown":
        return _shutdown()
    if mode("controller-away"):
        fail("scontrol", "Unable to contact slurm controller (connect failure)")
    if verb == "show":
        sys.stdout.write(_all_partitions() if rest == ["partition"] else _show(*rest))
        return 0
    if verb == "update":
        changes = dict(word.split("=", 1) for word in rest)
        for job in selected(changes["JobId"]):
            update(key(job), excluded=changes["ExcNodeList"])
        return 0
    for job in [job for word in rest for job in selected(word)]:
        if verb == "requeue":
            stop(job, "requeue")
        elif verb == "release":
            update(key(job), reason="None")
    return 0


def _all_partitions() -> str:
    lines = (
        f"PartitionName={name} Default={'YES' if name == PARTITIONS[0] else 'NO'} "
        f"MaxTime=7-00:00:00 DefaultTime=01:00:00 State=UP TotalNodes={len(NODES)}\n"
        for name in PARTITIONS
    )
    return "".join(lines)


def _node_state() -> str:
    return "drained" if mode("nodes-drained") else "idle"


def _shutdown() -> int:
    for job in every():
        if job["state"] in LIVE:
            stop(job, "cancel")
    deadline = time.monotonic() + 10
    while list((root() / "keepers").glob("*[0-9]")) and time.monotonic() < deadline:
        time.sleep(0.02)
    for path in (root() / "keepers").glob("*[0-9]"):
        with suppress(ProcessLookupError):
            os.killpg(int(path.read_text()), signal.SIGKILL)
    return 0


def _asked(options: dict[str, str]) -> list[Job]:
    jobs = selected(options["jobs"]) if "jobs" in options else every()
    return [job for job in jobs if options.get("name", job["name"]) in job["name"].split(",")]


def _rows(jobs: list[Job], *, array: bool) -> list[tuple[str, Job]]:
    """Put the waiting elements of an array into one row, unless --array was given."""
    rows: list[tuple[str, Job]] = []
    for main in dict.fromkeys(job["main"] for job in jobs):
        mine = [job for job in jobs if job["main"] == main]
        fresh = [job for job in mine if job["state"] == "PENDING" and not job["restarts"]]
        fold = not array and len(fresh) > 1
        ranges = _written([job["index"] for job in fresh]) if len(fresh) > 1 else ""
        if array and ":" in ranges:
            mine.remove(fresh[-1])  # as squeue does
        if fold:
            limit = fresh[0]["options"].get("array", "").partition("%")[2]
            rows.append((f"{main}_[{ranges}{'%' * bool(limit)}{limit}]", fresh[0]))
        rows.extend((key(job), job) for job in mine if not (fold and job in fresh))
    return rows


def _written(indices: list[int]) -> str:
    """Return indices as Slurm does: with their distance, if that is even and they go far."""
    steps = {after - before for before, after in pairwise(indices)}
    if len(steps) == 1 and steps != {1} and indices[-1] - indices[0] > STEPPED_BEYOND:
        return f"{indices[0]}-{indices[-1]}:{steps.pop()}"
    return ",".join(map(str, indices))


def _squeue_field(name: str, shown: str, job: Job) -> str:
    reason = job["reason"]
    if job["state"] == "PENDING" and job["index"] is not None and reason == "None":
        reason = "JobArrayTaskLimit"
    code, _, number = job["exit"].partition(":")
    values: dict[str, str] = {
        "JobArrayID": shown,
        "State": job["state"],
        "NodeList": nodes_of(job),
        "RestartCnt": str(job["restarts"]),
        "exit_code": str(4021 if job["exit"] == "0:53" else int(code) << 8 | int(number)),
        "Reason": reason,
        "StartTime": "N/A",
        "Name": job["name"],
        "ReqNodes": job["options"].get("nodelist", ""),
        "Partition": job["options"].get("partition", PARTITIONS[0]),
        "EndTime": "N/A",
        "PreemptTime": "N/A",
        "Reservation": "",
        "Requeue": "0" if "no-requeue" in job["options"] else "1",
        "QOS": job["options"].get("qos", "normal"),
    }
    return values[name]


def _sacct_field(name: str, shown: str, job: Job) -> str:
    cancelled = job["state"] == "CANCELLED"
    values: dict[str, str] = {
        "JobID": shown,
        "State": f"CANCELLED by {os.getuid()}" if cancelled else job["state"],
        "NodeList": nodes_of(job) or "None assigned",
        "ExitCode": "0:0" if cancelled else job["exit"],
        "JobName": job["name"],
    }
    return values[name]


def _write(rows: list[list[str]], *, end: str) -> None:
    for row in rows:
        sys.stdout.write("|".join(row) + end + "\n")
