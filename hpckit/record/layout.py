"""The only module that knows the paths inside a launch folder. It opens no files.

docs/reference/run-folder.md documents this tree for users; change the two together.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from hpckit.values import dataclass

CONFIGS_PER_FILE = 100
"""Few files for a large sweep, and little to read for a run that needs only its own line."""

RANKS_PER_FOLDER = 256
"""Creating thousands of files in one folder at once is slow on a parallel file system."""

NCCL_TRACE = "nccl-trace-rank-"
"""What the names of torch's own dumps begin with; torch adds the rank."""


@dataclass(frozen=True, slots=True)
class RoundPaths:
    """One round: the ranks' logs and exit records."""

    folder: Path

    def of(self, rank: int) -> Path:
        """Return the folder of a rank's files: for the first ranks, the round's own folder."""
        first = rank - rank % RANKS_PER_FOLDER
        return self.folder / f"from-{first:05d}" if first else self.folder

    def log(self, rank: int) -> Path:
        """Return the log of a rank's standard output and error."""
        return self.of(rank) / f"rank-{rank:05d}.log"

    def stacks(self, rank: int) -> Path:
        """Return the file for a rank's stacks, written when the rank seems to hang."""
        return self.of(rank) / f"rank-{rank:05d}.stacks.txt"

    def collectives(self, rank: int) -> Path:
        """Return the file for what a rank said of its collectives when it stood still."""
        return self.of(rank) / f"rank-{rank:05d}.collectives.json"

    def nccl_trace(self, rank: int) -> Path:
        """Return the file into which torch dumps a rank's flight recorder at a time-out of NCCL."""
        return self.of(rank) / f"{NCCL_TRACE}{rank}"

    @property
    def nccl_log(self) -> Path:
        """The file in which NCCL says, on rank 0, which network it uses."""
        return self.folder / "nccl-rank-00000.log"

    def profile(self, name: str) -> Path:
        """Return the folder for the traces of a profile."""
        return self.folder / f"profile-{name}"

    def trace(self, name: str, rank: int) -> Path:
        """Return the file for a rank's trace of a profile: the Chrome trace format, compressed."""
        return self.profile(name) / f"rank-{rank:05d}.trace.json.gz"

    def nsys_report(self, rank: int) -> Path:
        """Return the file for nsys's report about a rank that was started below it."""
        return self.of(rank) / f"rank-{rank:05d}.nsys-rep"

    def memory(self, rank: int) -> Path:
        """Return the file for the GPU memory in use when it ran out, in figures."""
        return self.of(rank) / f"rank-{rank:05d}.memory.json"

    def memory_snapshot(self, rank: int) -> Path:
        """Return the file for a snapshot of the GPU memory when it ran out."""
        return self.of(rank) / f"rank-{rank:05d}.memory.pickle"

    def exit_record(self, rank: int) -> Path:
        """Return the file for the exception that ended a failed rank."""
        return self.of(rank) / f"rank-{rank:05d}.exit.json"


@dataclass(frozen=True, slots=True)
class AttemptPaths:
    """One attempt: written by its supervisor, its agents and its ranks."""

    folder: Path

    @property
    def events(self) -> Path:
        """The supervisor's events."""
        return self.folder / "events.jsonl"

    @property
    def secret(self) -> Path:
        """The attempt's secret, for its agents only."""
        return self.folder / "secret"

    @property
    def address(self) -> Path:
        """The address that the supervisor listens on."""
        return self.folder / "address.json"

    @property
    def progress(self) -> Path:
        """The latest step, replaced as it changes."""
        return self.folder / "progress.json"

    @property
    def metrics(self) -> Path:
        """The metrics that rank 0 logged."""
        return self.folder / "metrics.jsonl"

    @property
    def last_metrics(self) -> Path:
        """The last value of each metric: a cache of the rows."""
        return self.folder / "metrics.last.json"

    def telemetry(self, node: str) -> Path:
        """Return the file of what a node measures at present: the newest rows."""
        return self.folder / f"telemetry-{node}.jsonl"

    @property
    def old_telemetry(self) -> Path:
        """The folder of older telemetry, in a folder for each node."""
        return self.folder / "telemetry"

    def telemetry_segment(self, node: str, start: datetime) -> Path:
        """Return the file of a node's older telemetry that begins at `start` (UTC)."""
        return self.old_telemetry / node / f"{start:%Y%m%dT%H%M%SZ}.jsonl"

    @property
    def agents_log(self) -> Path:
        """The output of the Slurm step that starts the agents."""
        return self.folder / "agents.log"

    @property
    def stacks_requests(self) -> Path:
        """The requests for the stacks of all ranks, one per line: its size is their number."""
        return self.folder / "stacks.requests.jsonl"

    @property
    def stacks_answer(self) -> Path:
        """The supervisor's answer to the latest of these requests."""
        return self.folder / "stacks.json"

    @property
    def profile_requests(self) -> Path:
        """The requests for profiles, one per line."""
        return self.folder / "profile.requests.jsonl"

    @property
    def profiles(self) -> Path:
        """The folder of the supervisor's answers to these requests."""
        return self.folder / "profiles"

    def profile_answer(self, name: str) -> Path:
        """Return the answer to the request with this name."""
        return self.profiles / f"{name}.json"

    @property
    def resize_requests(self) -> Path:
        """The requests to grow or shrink, one per line."""
        return self.folder / "resize.requests.jsonl"

    @property
    def resizes(self) -> Path:
        """The folder of the supervisor's answers to these requests."""
        return self.folder / "resizes"

    def resize_answer(self, name: str) -> Path:
        """Return the answer to the request with this name."""
        return self.resizes / f"{name}.json"

    @property
    def reserve(self) -> Path:
        """Disk space reserved for the final event until it is written."""
        return self.folder / "reserve"

    @property
    def rounds(self) -> Path:
        """The folder of all rounds."""
        return self.folder / "rounds"

    def round(self, number: int) -> RoundPaths:
        """Return the round with this number, from 0."""
        return RoundPaths(self.rounds / f"{number:03d}")


@dataclass(frozen=True, slots=True)
class RunPaths:
    """One run: created when its first attempt begins."""

    folder: Path

    @property
    def config(self) -> Path:
        """A copy of the resolved configuration, for people."""
        return self.folder / "config.json"

    @property
    def trial(self) -> Path:
        """The values that a run of an adaptive sweep got; absent until it has asked for them."""
        return self.folder / "trial.json"

    @property
    def node_facts(self) -> Path:
        """What `hpckit doctor --env` had a node tell of itself; other runs have none."""
        return self.folder / "node_facts.json"

    @property
    def interconnect(self) -> Path:
        """What `hpckit bench comm` measured; other runs have none."""
        return self.folder / "interconnect.json"

    @property
    def work(self) -> Path:
        """The folder that the run's ranks start in; files written by relative paths stay here."""
        return self.folder / "work"

    @property
    def successor_lock(self) -> Path:
        """The folder of claims for the lock on queueing the run's next job."""
        return self.folder / "successor.lock"

    @property
    def checkpoints(self) -> Path:
        """The checkpoint folder, unless another one is configured."""
        return self.folder / "checkpoints"

    @property
    def other_code(self) -> Path:
        """What had changed of the code that is not frozen when an attempt began; absent if none."""
        return self.folder / "other_code"

    @property
    def chaos_marks(self) -> Path:
        """The folder of marks: one for each planned fault that has happened."""
        return self.folder / "chaos"

    @property
    def chaos_log(self) -> Path:
        """The faults that were injected from outside."""
        return self.folder / "chaos.jsonl"

    @property
    def attempts(self) -> Path:
        """The folder of all attempts."""
        return self.folder / "attempts"

    def attempt(self, number: int) -> AttemptPaths:
        """Return the attempt with this number, from 1."""
        return AttemptPaths(self.attempts / f"{number:03d}")


@dataclass(frozen=True, slots=True)
class NoticePaths:
    """The files of one notice, named by its key."""

    folder: Path
    key: str

    @property
    def record(self) -> Path:
        """What it says; its existence is the claim on the event."""
        return self.folder / f"{self.key}.json"

    @property
    def sending(self) -> Path:
        """The claim of the process that is sending it."""
        return self.folder / f"{self.key}.sending"

    @property
    def delivered(self) -> Path:
        """Which destinations have it, while others do not."""
        return self.folder / f"{self.key}.delivered"

    @property
    def sent(self) -> Path:
        """It is sent to all destinations."""
        return self.folder / f"{self.key}.sent"


@dataclass(frozen=True, slots=True)
class LaunchPaths:
    """A launch folder."""

    folder: Path

    @property
    def launch(self) -> Path:
        """The plan: id, name, runs, jobs, cluster."""
        return self.folder / "launch.json"

    @property
    def secrets(self) -> Path:
        """The variables of runs that look like secrets; absent if there are none."""
        return self.folder / "secrets.json"

    @property
    def events(self) -> Path:
        """The events of the launcher and later verbs: one file for each process with events."""
        return self.folder / "events"

    @property
    def signatures(self) -> Path:
        """The signature of every run, one per line."""
        return self.folder / "signatures.txt"

    @property
    def resume_lock(self) -> Path:
        """The folder of claims for the lock on resuming."""
        return self.folder / "resume.lock"

    @property
    def environment(self) -> Path:
        """Python, packages, modules, host."""
        return self.folder / "environment.json"

    @property
    def code(self) -> Path:
        """The snapshot of the user's project."""
        return self.folder / "code"

    @property
    def code_record(self) -> Path:
        """Commit, dirty flag, files and size of the snapshot."""
        return self.folder / "code.json"

    @property
    def code_diff(self) -> Path:
        """The differences from the commit."""
        return self.folder / "code.diff"

    @property
    def code_sums(self) -> Path:
        """A checksum of every file of the snapshot."""
        return self.folder / "code.sha256"

    @property
    def logs(self) -> Path:
        """The output of batch scripts."""
        return self.folder / "logs"

    @property
    def local_log(self) -> Path:
        """The output of the local executor and its supervisors."""
        return self.logs / "local.log"

    @property
    def search(self) -> Path:
        """The folder of an adaptive sweep."""
        return self.folder / "search"

    @property
    def space(self) -> Path:
        """The search space of an adaptive sweep."""
        return self.search / "space.json"

    @property
    def journal(self) -> Path:
        """The study of an adaptive sweep, in Optuna's own format."""
        return self.search / "study.journal"

    @property
    def sampler(self) -> Path:
        """The random state of an adaptive sweep's sampler, to continue from."""
        return self.search / "sampler.json"

    def index_of(self, what: str) -> Path:
        """Return the cache of the results (`runs`) or of the time `accounts` of ended runs."""
        return self.folder / "index" / f"{what}.json"

    @property
    def notices(self) -> Path:
        """The folder of notices to people."""
        return self.folder / "notices"

    def notice(self, key: str) -> NoticePaths:
        """Return the files of a notice."""
        return NoticePaths(self.notices, key)

    def read_of_attempt(self, run: int, attempt: int) -> tuple[str, str, str, str]:
        """Return, as text, a run's attempts folder; and events, progress and metrics of one."""
        attempts = f"{self.run_text(run)}/attempts"
        one = f"{attempts}/{attempt:03d}"
        return attempts, f"{one}/events.jsonl", f"{one}/progress.json", f"{one}/metrics.jsonl"

    def job_log(self, job_index: int, job: str) -> Path:
        """Return the output file of the batch script of a Slurm job (`123` or `123_4`)."""
        return self.logs / f"job-{job_index}-{job}.log"

    def script(self, job_index: int) -> Path:
        """Return the path of a job's rendered script."""
        return self.folder / f"job-{job_index}.sbatch"

    def configs(self, index: int) -> Path:
        """Return the file whose line `index % CONFIGS_PER_FILE` is this run's configuration."""
        return self.folder / "configs" / f"{index // CONFIGS_PER_FILE:05d}.jsonl"

    def claims(self, job_index: int) -> Path:
        """Return the folder in which the elements of a packed job record which runs they took."""
        return self.folder / "claims" / str(job_index)

    def run_text(self, index: int) -> str:
        """Return the folder of a run as text: creating ten thousand Path objects is slow."""
        return f"{self.folder}/runs/{index:05d}"

    def run(self, index: int) -> RunPaths:
        """Return the run with this index."""
        return RunPaths(self.folder / "runs" / f"{index:05d}")
