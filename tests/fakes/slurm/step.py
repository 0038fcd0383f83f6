"""srun of the fake: really starts the tasks of a step, with the variables a step has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import FrameType

from fakes.slurm.batch import batch_environment, options_of
from fakes.slurm.store import NODES, every, fail, locked, mode, root


def srun(arguments: list[str]) -> int:
    """Start N tasks over the nodes of the job, in blocks; return the highest exit code."""
    if arguments == ["--help"]:
        sys.stdout.write("Usage: srun [OPTIONS...] executable [args...]\n")
        return 0
    if mode("controller-away"):
        fail("srun", "Unable to create step for job: Unable to contact slurm controller")
    count = next((n for n, word in enumerate(arguments) if not word.startswith("-")), 0)
    options, command = options_of(arguments[:count]), arguments[count:]
    if "jobid" in options:
        _enter(options["jobid"])
    if "SLURM_JOB_ID" not in os.environ:
        fail("srun", "the fake starts steps inside a job only")
    nodes = _number(options, "nodes", "SLURM_NNODES", 1)
    tasks = _number(options, "ntasks", "SLURM_NTASKS", nodes)
    if nodes > int(os.environ["SLURM_NNODES"]):
        fail("srun", "Unable to create step for job: More processors requested than permitted")
    counts = [tasks // nodes + (node < tasks % nodes) for node in range(nodes)]
    step = _step_number()
    given = subprocess.DEVNULL if options.get("input") == "none" else None
    started = [
        subprocess.Popen(command, env={**os.environ, **values}, stdin=given, cwd=options.get("chdir"))
        for values in _tasks(counts, step, options)
    ]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: _forward(started, number, frame))
    codes = [task.wait() for task in started]
    for rank, code in enumerate(codes):
        if code:
            sys.stderr.write(f"srun: error: task {rank}: Exited with exit code {code}\n")
    return max(128 - code if code < 0 else code for code in codes)


def _enter(number: str) -> None:
    """Take the place of a job that runs, known by its own number."""
    job = next((one for one in every() if str(one["id"]) == number), None)
    if job is None or job["state"] != "RUNNING":
        fail("srun", "Unable to create step for job: Invalid job id specified")
    values = batch_environment(job, job["nodes"])
    os.environ.update({name: text for name, text in values.items() if name.startswith("SLURM")})


def _number(options: dict[str, str], option: str, variable: str, default: int) -> int:
    return int(options.get(option) or os.environ.get(variable) or default)


def _step_number() -> int:
    """Return 0, 1, ... within the job."""
    file = root() / "jobs" / f"{os.environ['SLURM_JOB_ID']}.steps"
    with locked():
        step = int(file.read_text()) if file.exists() else 0
        file.write_text(str(step + 1))
    return step


def _forward(started: list[subprocess.Popen[bytes]], number: int, frame: FrameType | None) -> None:
    del frame
    for task in started:
        if task.poll() is None:
            task.send_signal(number)


def _tasks(counts: list[int], step: int, options: dict[str, str]) -> list[dict[str, str]]:
    """Return the variables of each task."""
    names = f"n[1-{len(counts)}]" if len(counts) > 1 else NODES[0]
    per_node = ",".join(str(count) for count in counts)
    common = {
        "STEP_ID": step, "STEPID": step, "STEP_NODELIST": names,
        "STEP_NUM_NODES": len(counts), "STEP_NUM_TASKS": sum(counts),
        "STEP_TASKS_PER_NODE": per_node, "TASKS_PER_NODE": per_node, "NNODES": len(counts),
        "NTASKS": sum(counts), "NPROCS": sum(counts),
        "CPUS_PER_TASK": options.get("cpus-per-task", "1"),
    }  # fmt: skip
    gpus = int(options.get("gpus-per-node") or os.environ.get("SLURM_GPUS_PER_NODE") or 0)
    visible = ",".join(str(gpu) for gpu in range(gpus))
    tasks: list[dict[str, str]] = []
    for node, count in enumerate(counts):
        name = options.get("nodelist", NODES[node]) if "jobid" in options else NODES[node]
        for local in range(count):
            own = {**common, "PROCID": len(tasks), "LOCALID": local, "NODEID": node}
            values = {f"SLURM_{name}": str(value) for name, value in own.items()}
            values |= _place(name)
            if gpus:
                values |= {"SLURM_STEP_GPUS": visible, "CUDA_VISIBLE_DEVICES": visible}
            tasks.append({**values, "SLURMD_NODENAME": name})
    return tasks


def _place(node: str) -> dict[str, str]:
    """Return where a node is in the network, if the fake has a file that says so."""
    file = root() / "topology.json"
    if not file.exists():
        return {}
    switches = [*json.loads(file.read_text())[node], node]
    pattern = ".".join([*("switch" for _ in switches[1:]), "node"])
    return {"SLURM_TOPOLOGY_ADDR": ".".join(switches), "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
