"""What squeue and sacct of the fake print instead of the fields that they are asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from fakes.slurm.store import Job, mode, nodes_of

Row = tuple[str, Job]


def show(options: dict[str, str], rows: list[Row], described: Callable[..., dict[str, Any]]) -> bool:
    """Print --json, or what a site's own script prints; return False where neither is wanted."""
    if "json" in options or mode("json"):
        jobs = [described(shown, job) for shown, job in rows]
        json.dump({"jobs": jobs, "meta": {}, "errors": [], "warnings": []}, sys.stdout, indent=2)
        return True
    if mode("own-table"):
        sys.stdout.write("  JOB      | USER  | STATE     | WHERE\n")
        for shown, job in rows:
            sys.stdout.write(f"  {shown:9}| me    | {job['state']:10}| {','.join(job['nodes'])}\n")
        return True
    return False


def queued(shown: str, job: Job) -> dict[str, Any]:
    """Describe a job as squeue of 24.11 does."""
    main, index, ranges = _parts(shown)
    return {
        "array_job_id": _number(main if index is not None or ranges else 0),
        "array_task_id": _number(index),
        "array_task_string": ranges,
        "exit_code": _exit(job),
        "job_id": main,
        "job_state": [job["state"]],
        "name": job["name"],
        "nodes": nodes_of(job),
        "restart_cnt": job["restarts"],
        "state_description": "",
        "state_reason": job["reason"],
        "user_id": os.getuid(),
    }


def accounted(shown: str, job: Job) -> dict[str, Any]:
    """Describe a job as sacct of 24.11 does."""
    main, index, ranges = _parts(shown)
    array = main if index is not None or ranges else 0
    return {
        "array": {"job_id": array, "task_id": _number(index), "task": ranges},
        "exit_code": _exit(job),
        "job_id": main,
        "name": job["name"],
        "nodes": nodes_of(job) or "None assigned",
        "restart_cnt": job["restarts"],
        "state": {"current": [job["state"]], "reason": "None"},
    }


def _parts(shown: str) -> tuple[int, int | None, str]:
    main, _, element = shown.partition("_")
    if element.startswith("["):
        return int(main), None, element.strip("[]")
    return int(main), int(element) if element else None, ""


def _number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def _exit(job: Job) -> dict[str, Any]:
    code, _, signal = job["exit"].partition(":")
    number = int(signal or 0)
    return {
        "status": ["SIGNALED" if number else "ERROR" if int(code) else "SUCCESS"],
        "return_code": _number(None if number else int(code)),
        "signal": {"id": _number(number or None), "name": ""},
    }
