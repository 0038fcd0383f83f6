"""sbatch, scancel and scontrol of the fake, and the keeper that runs what was submitted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from fakes.slurm.store import (
    LIVE,
    MAX_ARRAY_SIZE,
    NODES,
    PARTITIONS,
    Job,
    every,
    expand_ranges,
    fail,
    forget,
    key,
    load,
    locked,
    mode,
    new_ids,
    root,
    save,
    selected,
    update,
)

KILL_WAIT_S = 5.0
TICK_S = 0.02


def words_of(line: str) -> list[str]:
    """Split an #SBATCH line as sbatch does: backslash escapes everywhere, # ends the line."""
    words: list[str] = []
    word, quote, escaped, begun = "", "", False, False
    for letter in line:
        if escaped:
            word, escaped, begun = word + letter, False, True
        elif letter == "\\":
            escaped = True
        elif quote:
            quote, word = ("", word) if letter == quote else (quote, word + letter)
        elif letter in "\"'":
            quote, begun = letter, True
        elif letter == "#" or letter.isspace():
            if begun:
                words.append(word)
            word, begun = "", False
            if letter == "#":
                return words
        else:
            word, begun = word + letter, True
    if quote:
        fail("sbatch", f"Unmatched `{quote}` in [{line}]")
    return [*words, word] if begun else words


def options_of(words: list[str]) -> dict[str, str]:
    """Read `--name=value` and `--name`; the fake knows no short options."""
    pairs = (word.removeprefix("--").partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def sbatch(arguments: list[str]) -> int:
    """Accept a script and start a keeper for it."""
    if mode("hang"):
        time.sleep(3600)
    if mode("controller-away"):
        fail("sbatch", "Batch job submission failed: Unable to contact slurm controller (connect failure)")
    given = [word for word in arguments if word.startswith("-")]
    text = _script(arguments)
    stated = [word for line in _directives(text) for word in words_of(line)]
    environ = {
        name.removeprefix("SBATCH_").lower(): value
        for name, value in os.environ.items()
        if name.startswith("SBATCH_")
    }
    options = {**options_of(stated), **environ, **options_of(given)}
    options["script"] = next((word for word in arguments if not word.startswith("-")), "(null)")
    _refuse(options)
    if "test-only" in options:
        return _forecast(options)
    with locked():
        jobs = _new_jobs(options, text)
    _start_checkpoints(jobs[0]["main"])
    if mode("lose-answer"):
        return 1
    main = jobs[0]["main"]
    sys.stdout.write(f"{main}\n" if "parsable" in options else f"Submitted batch job {main}\n")
    return 0


def _script(arguments: list[str]) -> str:
    files = [word for word in arguments if not word.startswith("-")]
    wrapped = options_of([word for word in arguments if word.startswith("--wrap")])
    if wrapped:
        return f"#!/bin/sh\n{wrapped['wrap']}\n"
    try:
        text = Path(files[0]).read_text()
    except OSError as error:
        fail("sbatch", f"Unable to open file {files[0]}: {error}")
    if not text.startswith("#!"):
        fail("sbatch", "This does not look like a batch script.")
    return text


def _directives(text: str) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            lines.append(line.removeprefix("#SBATCH"))
        elif line.strip() and not line.strip().startswith("#"):
            break
    return lines


def _refuse(options: dict[str, str]) -> None:
    partition = options.get("partition", PARTITIONS[0])
    if partition not in PARTITIONS:
        sys.stderr.write(f"sbatch: error: invalid partition specified: {partition}\n")
        fail("sbatch", "Batch job submission failed: Invalid partition name specified")
    if mode("only-gpu-jobs") and partition == PARTITIONS[0] and "gpus-per-node" not in options:
        fail("sbatch", "Batch job submission failed: Job needs at least one GPU in this partition")
    if int(options.get("nodes", "1")) > len(NODES):
        fail("sbatch", "Batch job submission failed: Requested node configuration is not available")
    if max(_indices(options), default=0) >= MAX_ARRAY_SIZE:
        fail("sbatch", "Batch job submission failed: Invalid job array specification")


def _forecast(options: dict[str, str]) -> int:
    if mode("nodes-drained"):
        sys.stderr.write("allocation failure: Requested node configuration is not available\n")
        return 1
    partition = options.get("partition", PARTITIONS[0])
    sys.stderr.write(
        "sbatch: Job 1 to start at 2026-01-02T03:04:05 using 1 processors on nodes n1 in "
        f"partition {partition}\n"
    )
    return 0


def _indices(options: dict[str, str]) -> list[int]:
    return expand_ranges(options["array"].partition("%")[0]) if "array" in options else []


def _new_jobs(options: dict[str, str], text: str) -> list[Job]:
    indices: list[int | None] = [*_indices(options)] or [None]
    first = new_ids(len(indices))
    script = root() / "jobs" / f"{first}.sh"
    script.write_text(text)
    script.chmod(0o700)
    jobs: list[Job] = [
        {
            "main": first, "index": index, "id": first + number, "name": "", "state": "PENDING",
            "nodes": [], "restarts": 0, "exit": "0:0", "reason": "None", "pid": None,
            "asked": None, "options": options, "cwd": options.get("chdir", str(Path.cwd())),
        }
        for number, index in enumerate(indices)
    ]  # fmt: skip
    for job in jobs:
        job["name"] = options.get("job-name", "sbatch")
        if "hold" in options:
            job["reason"] = "JobHeldUser"
        save(job)
    return jobs


def _start_checkpoints(main: int) -> None:
    program = Path(__file__).with_name("program.py")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_JOB")}
    keeper = subprocess.Popen(
        [sys.executable, str(program), "keeper", str(main)],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(root() / "keepers" / f"{main}.log").open("w"),
        start_new_session=True,
        cwd="/",
    )
    (root() / "keepers" / str(main)).write_text(str(keeper.pid))


def keeper(arguments: list[str]) -> int:
    """Run the elements of one job, a few at a time, until all are over."""
    main = int(arguments[0])
    running: dict[str, subprocess.Popen[bytes]] = {}
    while True:
        begun = time.monotonic()
        jobs = every(main)
        for name in [key(job) for job in jobs]:
            if name in running and running[name].poll() is not None:
                _end(load(name), running.pop(name).returncode)
        if not running and not any(job["state"] in LIVE for job in jobs):
            (root() / "keepers" / str(main)).unlink(missing_ok=True)
            return 0
        limit = int(jobs[0]["options"].get("array", "").partition("%")[2] or len(jobs))
        for job in jobs:
            free = len(running) < limit and not _depends(job)
            if job["state"] == "PENDING" and job["reason"] == "None" and free:
                _start(job, running)
        time.sleep(max(TICK_S, 4 * (time.monotonic() - begun)))


def _depends(job: Job) -> bool:
    """Whether a job of an `afterany` dependency has not ended; the fake knows no other kind."""
    kind, _, names = job["options"].get("dependency", "").partition(":")
    wanted = names.split(":") if kind == "afterany" else ()
    return any(one["state"] in LIVE for name in wanted for one in selected(name))


def _start(job: Job, running: dict[str, subprocess.Popen[bytes]]) -> None:
    name, options = key(job), job["options"]
    with locked():
        try:
            state = load(name)["state"]
        except FileNotFoundError:  # forgotten since it was listed
            return
        if state != "PENDING":
            return
        nodes = list(NODES[: int(options.get("nodes", "1"))])
        save({**job, "state": "RUNNING", "nodes": nodes})
    try:
        append = options.get("open-mode") == "append"
        log = _log(job).open("ab" if append else "wb")
    except OSError:
        update(name, state="FAILED", exit="0:53", reason="JobLaunchFailure")
        return
    cwd = job["cwd"] if Path(job["cwd"]).is_dir() else "/tmp"  # noqa: S108  # as Slurm does
    script = root() / "jobs" / f"{job['main']}.sh"
    with log:
        running[name] = subprocess.Popen(
            [str(script)], env=batch_environment(job, nodes), cwd=cwd, stdout=log,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    update(name, pid=running[name].pid)


def _log(job: Job) -> Path:
    values = {"%": "%", "j": str(job["id"]), "A": str(job["main"]), "a": str(job["index"])}
    values["x"] = job["name"]
    default = "slurm-%j.out" if job["index"] is None else "slurm-%A_%a.out"
    pattern = job["options"].get("output", default)
    if "\\" in pattern:
        return Path(job["cwd"], pattern.replace("\\", ""))
    found = re.sub("%(.)", lambda match: values.get(match[1], match[0]), pattern)
    return Path(job["cwd"], found)


def batch_environment(job: Job, nodes: list[str]) -> dict[str, str]:
    """Return what a batch script finds in its environment."""
    options = job["options"]
    per_node = int(options.get("ntasks-per-node", "1"))
    names = f"n[1-{len(nodes)}]" if len(nodes) > 1 else nodes[0]
    spread = f"{per_node}(x{len(nodes)})" if len(nodes) > 1 else str(per_node)
    values = {
        "CLUSTER_NAME": "fake", "JOB_ID": job["id"], "JOBID": job["id"], "JOB_NAME": job["name"],
        "JOB_NODELIST": names, "NODELIST": names, "JOB_NUM_NODES": len(nodes),
        "NNODES": len(nodes), "NTASKS": per_node * len(nodes), "NPROCS": per_node * len(nodes),
        "NTASKS_PER_NODE": per_node, "TASKS_PER_NODE": spread, "PROCID": 0, "LOCALID": 0,
        "NODEID": 0, "CPUS_PER_TASK": options.get("cpus-per-task", "1"),
        "JOB_PARTITION": options.get("partition", PARTITIONS[0]), "SUBMIT_DIR": job["cwd"],
    }  # fmt: skip
    if "gpus-per-node" in options:
        values["GPUS_PER_NODE"] = options["gpus-per-node"]
    if job["restarts"]:
        values["RESTART_COUNT"] = job["restarts"]
    if job["index"] is not None:
        values |= {"ARRAY_JOB_ID": job["main"], "ARRAY_TASK_ID": job["index"]}
    slurm = {f"SLURM_{name}": str(value) for name, value in values.items()}
    return {**os.environ, **slurm, "SLURMD_NODENAME": nodes[0]}


def _end(job: Job, code: int) -> None:
    """Record an end, or put the job back into the queue, and leave none of its processes."""
    _kill_all(job, signal.SIGKILL)
    asked = job["asked"]
    if asked == "requeue":
        changes = {"state": "PENDING", "restarts": job["restarts"] + 1, "asked": None, "nodes": []}
        update(key(job), **changes)
        return
    end = f"0:{-code}" if code < 0 else f"{code}:0"
    state = "CANCELLED" if asked == "cancel" else "FAILED" if code else "COMPLETED"
    update(key(job), state=state, exit=end, reason="NonZeroExitCode" if code > 0 else "None")


def _kill_all(job: Job, number: int) -> None:
    """Signal every process of the job, wherever it moved: by its environment, as a cgroup would."""
    marks = [f"FAKE_SLURM_DIR={root()}".encode(), f"SLURM_JOB_ID={job['id']}".encode()]
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = (folder / "environ").read_bytes().split(b"\0")
            if all(mark in environ for mark in marks):
                os.kill(int(folder.name), number)


def scancel(arguments: list[str]) -> int:
    """Cancel, or send a signal."""
    if mode("controller-away"):
        fail("scancel", "Unable to contact slurm controller (connect failure)")
    options = options_of([word for word in arguments if word.startswith("-")])
    for word in arguments:
        if not word.startswith("-"):
            for job in selected(word):
                if "signal" in options:
                    _kill_all(job, getattr(signal, f"SIG{options['signal'].removeprefix('SIG')}"))
                else:
                    stop(job, "cancel")
    return 0


def stop(job: Job, asked: str) -> None:
    """End a job; one that waits is over at once, one that runs is sent what Slurm sends."""
    name = key(job)
    with locked():
        job = load(name)
        if job["state"] == "PENDING" and asked == "cancel":
            if any(one["state"] != "PENDING" for one in every(job["main"])):
                forget(job)  # as Slurm does with an element whose array has begun
            else:
                save({**job, "state": "CANCELLED"})
            return
        if job["state"] != "RUNNING":
            return
        save({**job, "asked": asked})
    _kill_all(job, signal.SIGCONT)
    _kill_all(job, signal.SIGTERM)
    program = Path(__file__).with_name("program.py")
    subprocess.Popen(
        [sys.executable, str(program), "reaper", name, str(job["restarts"])],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, cwd="/",
        env={name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"},
    )  # fmt: skip


def reaper(arguments: list[str]) -> int:
    """Kill what is left of a stopped job after KillWait."""
    name, restarts = arguments[0], int(arguments[1])
    end = time.monotonic() + KILL_WAIT_S
    while time.monotonic() < end:
        job = load(name)
        if job["state"] != "RUNNING" or job["restarts"] != restarts:
            return 0
        time.sleep(TICK_S)
    _kill_all(job, signal.SIGKILL)
    return 0
