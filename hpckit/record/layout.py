"""The only module that knows the paths inside a launch folder. It opens no files.

docs/reference/run-folder.md documents this tree for users; change the two together.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from hpckit.values import dataclass

CONFIGS_PER_FILE = 100
"""Few files for a large sweep, and little to read for a run that needs only its own line."""

RANKS_PER_FOLDER = 256
"""Creating thousands of files in one folder at once is slow on a parallel file system."""

NCCL_TRACE = "nccl-trace-rank-"
"""What the names of torch's own dumps begin with; torch adds the rank."""

STAGED_DATA = ".hpckit-node"
"""A file in a folder of staged data, on a node: it says whose the folder is, and that it is no code."""


class _Below:
    """A path that has the same name below the folder of each object of a class."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, _: type) -> Path:
        path: Path = owner.folder / self.name
        return path


@dataclass(frozen=True, slots=True)
class RoundPaths:
    """One round: the ranks' logs and exit records."""

    folder: Path

    def rank_folder(self, rank: int) -> Path:
        """Return the folder of a rank's files: for the first ranks, the round's own folder."""
        first = rank - rank % RANKS_PER_FOLDER
        return self.folder / f"from-{first:05d}" if first else self.folder

    def rank_log(self, rank: int) -> Path:
        """Return the log of a rank's standard output and error."""
        return self.rank_folder(rank) / f"rank-{rank:05d}.log"

    def rank_stacks_file(self, rank: int) -> Path:
        """Return the file for a rank's stacks, written when the rank seems to hang."""
        return self.rank_folder(rank) / f"rank-{rank:05d}.stacks.txt"

    def rank_collectives_file(self, rank: int) -> Path:
        """Return the file for what a rank said of its collectives when it stood still."""
        return self.rank_folder(rank) / f"rank-{rank:05d}.collectives.json"

    def nccl_trace(self, rank: int) -> Path:
        """Return the file into which torch dumps a rank's flight recorder at a time-out of NCCL."""
        return self.rank_folder(rank) / f"{NCCL_TRACE}{rank}"

    nccl_log = _Below("nccl-rank-00000.log")
    """The file in which NCCL says, on rank 0, which network it uses."""

    def profile_folder(self, name: str) -> Path:
        """Return the folder for the traces of a profile."""
        return self.folder / f"profile-{name}"

    def profile_trace(self, name: str, rank: int) -> Path:
        """Return the file for a rank's trace of a profile: the Chrome trace format, compressed."""
        return self.profile_folder(name) / f"rank-{rank:05d}.trace.json.gz"

    def nsys_report(self, rank: int) -> Path:
        """Return the file for nsys's report about a rank that was started below it."""
        return self.rank_folder(rank) / f"rank-{rank:05d}.nsys-rep"

    def memory_report(self, rank: int) -> Path:
        """Return the file for the GPU memory in use when it ran out, in figures."""
        return self.rank_folder(rank) / f"rank-{rank:05d}.memory.json"

    def memory_snapshot(self, rank: int) -> Path:
        """Return the file for a snapshot of the GPU memory when it ran out."""
        return self.rank_folder(rank) / f"rank-{rank:05d}.memory.pickle"

    def rank_exception_file(self, rank: int) -> Path:
        """Return the file for the exception that ended a failed rank."""
        return self.rank_folder(rank) / f"rank-{rank:05d}.exit.json"


@dataclass(frozen=True, slots=True)
class AttemptPaths:
    """One attempt: written by its supervisor, its agents and its ranks."""

    folder: Path

    events = _Below("events.jsonl")
    """The supervisor's events."""

    secret = _Below("secret")
    """The attempt's secret, for its agents only."""

    address = _Below("address.json")
    """The address that the supervisor listens on."""

    progress = _Below("progress.json")
    """The latest step, replaced as it changes."""

    metrics = _Below("metrics.jsonl")
    """The metrics that rank 0 logged."""

    last_metrics = _Below("metrics.last.json")
    """The last value of each metric: a cache of the rows."""

    def newest_telemetry_file(self, node: str) -> Path:
        """Return the file of what a node measures at present: the newest rows."""
        return self.folder / f"telemetry-{node}.jsonl"

    old_telemetry = _Below("telemetry")
    """The folder of older telemetry, in a folder for each node."""

    def older_telemetry_file(self, node: str, start: datetime) -> Path:
        """Return the file of a node's older telemetry that begins at `start` (UTC)."""
        return self.old_telemetry / node / f"{start:%Y%m%dT%H%M%SZ}.jsonl"

    agents_log = _Below("agents.log")
    """The output of the Slurm step that starts the agents."""

    stacks_requests = _Below("stacks.requests.jsonl")
    """The requests for the stacks of all ranks, one per line: its size is their number."""

    stacks_answer = _Below("stacks.json")
    """The supervisor's answer to the latest of these requests."""

    profile_requests = _Below("profile.requests.jsonl")
    """The requests for profiles, one per line."""

    profiles = _Below("profiles")
    """The folder of the supervisor's answers to these requests."""

    def profile_answer(self, name: str) -> Path:
        """Return the answer to the request with this name."""
        return self.profiles / f"{name}.json"

    resize_requests = _Below("resize.requests.jsonl")
    """The requests to grow or shrink, one per line."""

    resizes = _Below("resizes")
    """The folder of the supervisor's answers to these requests."""

    def resize_answer(self, name: str) -> Path:
        """Return the answer to the request with this name."""
        return self.resizes / f"{name}.json"

    reserve = _Below("reserve")
    """Disk space reserved for the final event until it is written."""

    rounds = _Below("rounds")
    """The folder of all rounds."""

    def round(self, number: int) -> RoundPaths:
        """Return the round with this number, from 0."""
        return RoundPaths(self.rounds / f"{number:03d}")


@dataclass(frozen=True, slots=True)
class RunPaths:
    """One run: created when its first attempt begins."""

    folder: Path

    config = _Below("config.json")
    """A copy of the resolved configuration, for people."""

    trial = _Below("trial.json")
    """The values that a run of an adaptive sweep got; absent until it has asked for them."""

    node_facts = _Below("node_facts.json")
    """What `hpckit doctor --env` had a node tell of itself; other runs have none."""

    interconnect = _Below("interconnect.json")
    """What `hpckit bench comm` measured; other runs have none."""

    work = _Below("work")
    """The folder that the run's ranks start in; files written by relative paths stay here."""

    successor_lock = _Below("successor.lock")
    """The folder of claims for the lock on queueing the run's next job."""

    call = _Below("call")
    """What a call of an executor returned on each rank, and what is to be called next."""

    def call_result(self, rank: int) -> Path:
        """Return the file for what a call returned on a rank; one that is there stays as it is."""
        return self.call / f"rank-{rank:05d}.json"

    other_code = _Below("other_code")
    """What had changed of the code that is not frozen when an attempt began; absent if none."""

    compile_caches = _Below("compile_caches.tar.gz")
    """What torch's compiler, Triton and CUDA have cached, for the run's next node."""

    checkpoints = _Below("checkpoints")
    """The checkpoint folder, unless another one is configured."""

    chaos_marks = _Below("chaos")
    """The folder of marks: one for each planned fault that has happened."""

    chaos_log = _Below("chaos.jsonl")
    """The faults that were injected from outside."""

    attempts = _Below("attempts")
    """The folder of all attempts."""

    def attempt(self, number: int) -> AttemptPaths:
        """Return the attempt with this number, from 1."""
        return AttemptPaths(self.attempts / f"{number:03d}")


@dataclass(frozen=True, slots=True)
class NoticePaths:
    """The files of one notice, named by its key."""

    folder: Path
    key: str

    @property
    def notice_file(self) -> Path:
        """What it says; its existence is the claim on the event."""
        return self.folder / f"{self.key}.json"

    @property
    def sending_claim_file(self) -> Path:
        """The claim of the process that is sending it."""
        return self.folder / f"{self.key}.sending"

    @property
    def delivered_file(self) -> Path:
        """Which destinations have it, while others do not."""
        return self.folder / f"{self.key}.delivered"

    @property
    def sent_marker_file(self) -> Path:
        """It is sent to all destinations."""
        return self.folder / f"{self.key}.sent"


@dataclass(frozen=True, slots=True)
class LaunchPaths:
    """A launch folder."""

    folder: Path

    launch = _Below("launch.json")
    """The plan: id, name, runs, jobs, cluster."""

    secrets = _Below("secrets.json")
    """The variables of runs that look like secrets; absent if there are none."""

    events = _Below("events")
    """The events of the launcher and later verbs: one file for each process with events."""

    signatures = _Below("signatures.txt")
    """The signature of every run, one per line."""

    resume_lock = _Below("resume.lock")
    """The folder of claims for the lock on resuming."""

    environment = _Below("environment.json")
    """Python, packages, modules, host."""

    code = _Below("code")
    """The snapshot of the user's project."""

    code_record = _Below("code.json")
    """Commit, dirty flag, files and size of the snapshot."""

    code_diff = _Below("code.diff")
    """The differences from the commit."""

    code_sums = _Below("code.sha256")
    """A checksum of every file of the snapshot."""

    hpckit_zip = _Below("hpckit.zip")
    """The hpckit that launched, for containers; absent if there are none."""

    logs = _Below("logs")
    """The output of batch scripts."""

    local_log = _Below("logs/local.log")
    """The output of the local executor and its supervisors."""

    search = _Below("search")
    """The folder of an adaptive sweep."""

    space = _Below("search/space.json")
    """The search space of an adaptive sweep."""

    journal = _Below("search/study.journal")
    """The study of an adaptive sweep, in Optuna's own format."""

    sampler = _Below("search/sampler.json")
    """The random state of an adaptive sweep's sampler, to continue from."""

    def cache_file(self, what: str) -> Path:
        """Return the cache of the results (`runs`) or of the time `accounts` of ended runs."""
        return self.folder / "index" / f"{what}.json"

    notices = _Below("notices")
    """The folder of notices to people."""

    def notice(self, key: str) -> NoticePaths:
        """Return the files of a notice."""
        return NoticePaths(self.notices, key)

    def list_attempt_file_paths(self, run: int, attempt: int) -> tuple[str, str, str, str]:
        """Return, as text, a run's attempts folder; and events, progress and metrics of one."""
        attempts = f"{self.run_folder_text(run)}/attempts"
        one = f"{attempts}/{attempt:03d}"
        return attempts, f"{one}/events.jsonl", f"{one}/progress.json", f"{one}/metrics.jsonl"

    def job_log(self, job_index: int, job: str) -> Path:
        """Return the output file of the batch script of a Slurm job (`123` or `123_4`)."""
        return self.logs / f"job-{job_index}-{job}.log"

    def script(self, job_index: int) -> Path:
        """Return the path of a job's rendered script."""
        return self.folder / f"job-{job_index}.sbatch"

    def configs_file_of_run(self, index: int) -> Path:
        """Return the file whose line `index % CONFIGS_PER_FILE` is this run's configuration."""
        return self.folder / "configs" / f"{index // CONFIGS_PER_FILE:05d}.jsonl"

    def packed_job_claims_folder(self, job_index: int) -> Path:
        """Return the folder in which the elements of a packed job record which runs they took."""
        return self.folder / "claims" / str(job_index)

    def run_folder_text(self, index: int) -> str:
        """Return the folder of a run as text: creating ten thousand Path objects is slow."""
        return f"{self.folder}/runs/{index:05d}"

    def run(self, index: int) -> RunPaths:
        """Return the run with this index."""
        return RunPaths(self.folder / "runs" / f"{index:05d}")
