"""What the fake knows: one JSON file for each job or array element below $FAKE_SLURM_DIR.

Failure modes are files in $FAKE_SLURM_DIR/modes: `controller-away`, `database-away`, `hang`
(sbatch never answers), `lose-answer` (sbatch submits and dies before it says so) `forget`
(squeue shows no job that is over, as after MinJobAge) and `nodes-drained` (nothing could start).
`only-gpu-jobs`: the first partition refuses jobs that ask for none.
`unlike-partitions`: nodes have half as many GPUs in the second partition, which is not the default.
`json` and `own-table`: squeue and sacct are a site's scripts, which print JSON whatever they are
asked for, or a table of their own unless it is --json.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

PARTITIONS = ("batch", "urgent")
NODES = ("n1", "n2", "n3", "n4")
GPUS = 8
MAX_ARRAY_SIZE = int(os.environ.get("FAKE_SLURM_MAX_ARRAY_SIZE", "1001"))
LIVE = frozenset({"PENDING", "RUNNING", "COMPLETING"})

Job = dict[str, Any]


def root() -> Path:
    """Return the folder of this fake cluster, made if need be."""
    folder = Path(os.environ["FAKE_SLURM_DIR"])
    for name in ("jobs", "modes", "keepers"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return folder


def mode(name: str) -> bool:
    """Return whether a failure mode is on."""
    return (root() / "modes" / name).exists()


def fail(program: str, words: str, code: int = 1) -> NoReturn:
    """End as Slurm's programs do."""
    sys.stderr.write(f"{program}: error: {words}\n")
    raise SystemExit(code)


def nodes_of(job: Job) -> str:
    """Return a job's nodes as Slurm writes them."""
    count = len(job["nodes"])
    return f"n[1-{count}]" if count > 1 else "".join(job["nodes"])


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the cluster's lock."""
    with (root() / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def new_ids(count: int) -> int:
    """Return the first of `count` fresh job ids; call it with the lock held."""
    first = next_id()
    (root() / "next_id").write_text(str(first + count))
    return first


def next_id() -> int:
    """Return the id of the next job."""
    file = root() / "next_id"
    return int(file.read_text()) if file.exists() else 1


def key(job: Job) -> str:
    """Return how Slurm names the job: `7` or `7_3`."""
    return str(job["main"]) if job["index"] is None else f"{job['main']}_{job['index']}"


def save(job: Job) -> None:
    """Write a job."""
    path = root() / "jobs" / f"{key(job)}.json"
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(job))
    part.replace(path)


def forget(job: Job) -> None:
    """Leave no trace of a job."""
    (root() / "jobs" / f"{key(job)}.json").unlink()


def load(name: str) -> Job:
    """Read a job."""
    job: Job = json.loads((root() / "jobs" / f"{name}.json").read_text())
    return job


def update(name: str, **changes: Any) -> Job:
    """Change a job and return it."""
    with locked():
        job = {**load(name), **changes}
        save(job)
    return job


def every(main: int | None = None) -> list[Job]:
    """Return all jobs, or all elements of one, in the order of their ids."""
    patterns = ["*.json"] if main is None else [f"{main}.json", f"{main}_*.json"]
    paths = [path for pattern in patterns for path in (root() / "jobs").glob(pattern)]
    jobs = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # forgotten since it was listed
            jobs.append(json.loads(path.read_text()))
    return sorted(jobs, key=lambda job: (job["main"], job["index"] or 0))


def selected(words: str) -> list[Job]:
    """Return the jobs meant by `7,9_1` or `7_[0-2,5]`; a main id means all its elements."""
    wanted = [name for word in _split(words) for name in _expand(word)]
    return [job for job in every() if key(job) in wanted or str(job["main"]) in wanted]


def _split(words: str) -> list[str]:
    pieces, depth = [""], 0
    for letter in words:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


def _expand(word: str) -> list[str]:
    main, bracket, ranges = word.partition("_[")
    if not bracket:
        return [word]
    return [f"{main}_{index}" for index in expand_ranges(ranges.rstrip("]"))]


def expand_ranges(ranges: str) -> list[int]:
    """Expand `0-2,5`."""
    indices: list[int] = []
    for piece in ranges.split(","):
        first, _, last = piece.partition("-")
        indices.extend(range(int(first), int(last or first) + 1))
    return indices
