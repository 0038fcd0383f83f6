"""Where an item measures: its folder, the machine, and hpckit's verbs, called as a user does."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from benchmarks.commands import SCRIPTS, hpckit, on_path

ROOT = SCRIPTS.parent
PROGRAMS = (Path(__file__).parent / "programs", SCRIPTS / "benchmarks" / "programs")
MEASURED = "measured.json"
UNDER_WAY = ("pending", "running")
_TAIL = 1500


class NotRunError(Exception):
    """An item cannot be run on this machine; the text says why."""


class MeasureError(Exception):
    """A command failed that has to work; the text has its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is known before anything is measured; without a GPU `gpu` is empty.

    `older_torch` asks for layouts also with a torch that hpckit refuses for them.
    """

    torch: str
    gpu: str = ""
    gpu_bytes: int = 0
    older_torch: bool = False
    rehearsal: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether torch sees a GPU."""
        return bool(self.gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The folder of an item, in which all its launches lie, and the machine."""

    folder: Path
    machine: Machine
    environ: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path, machine: Machine) -> Scene:
        """Return the scene of an item in this folder."""
        environ = {
            **on_path(*PROGRAMS, ROOT),
            "HPCKIT_OUTPUTS": str(folder / "outputs"),
            "PYTHONUNBUFFERED": "1",
        }
        return cls(folder=folder, machine=machine, environ=environ)

    @property
    def words(self) -> tuple[str, ...]:
        """What all launches say: this machine, its GPU if it has one, the code as it lies here."""
        gpus = int(self.machine.on_gpu or self.machine.rehearsal)
        here = ("cluster=local", "cluster.gpus_per_node=1", f"resources.gpus_per_node={gpus}")
        old = f"+older_torch={str(self.machine.older_torch).lower()}"
        cpu = () if self.machine.on_gpu else ("runtime.device=cpu",)
        return (*here, *cpu, "code.snapshot=false", old)

    def keep(self, measured: Mapping[str, Any]) -> None:
        """Write what is measured so far; what is written when the time is up counts."""
        part = self.folder / f".{MEASURED}.part"
        part.write_text(json.dumps(measured, default=str), encoding="utf-8")
        part.replace(self.folder / MEASURED)

    def call(self, *words: str, codes: Sequence[int] = (0,)) -> str:
        """Return what a verb prints; raises MeasureError for other exit codes than these."""
        done = subprocess.run(
            hpckit(*words),
            env=dict(self.environ),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in codes:
            said = (done.stdout[-_TAIL:] + done.stderr[-_TAIL:]).strip()
            verb = " ".join(words[:3])
            raise MeasureError(f"hpckit {verb} exited {done.returncode}: {said}")
        return done.stdout

    def launch(self, *words: str, wait: bool = True) -> Launched:
        """Launch, and wait for the end, which may be a failure."""
        often = ("--wait",) if wait else ()
        text = self.call("launch", *self.words, *words, "--rerun", *often, "--json", codes=(0, 1))
        said = json.loads(text)
        return Launched(scene=self, name=said["launch"], folder=Path(said["dir"]))

    def sweep(self, points: Sequence[Mapping[str, Any]], *words: str) -> Launched:
        """Launch a run for each point, which sets these keys."""
        file = self.folder / "points.yaml"
        file.write_text(yaml.safe_dump([dict(point) for point in points]), encoding="utf-8")
        return self.launch("-m", f"sweep.points={file}", *words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch, and what the verbs say of it."""

    scene: Scene
    name: str
    folder: Path

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs of `status --json`."""
        text = self.scene.call("status", self.name, "--json", codes=(0, 1))
        return list(json.loads(text)["runs"])

    def wait(self) -> None:
        """Wait until no run is under way any more."""
        while any(run["state"] in UNDER_WAY for run in self.runs()):
            time.sleep(1)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the last metrics of each run, of `results --json`."""
        text = self.scene.call("results", self.name, "--json", codes=(0, 1))
        return [dict(load["metrics"]) for load in json.loads(text)["runs"]]

    def attempt(self, run: int = 0) -> Path:
        """Return the folder of the first attempt of a run."""
        return self.folder / "runs" / f"{run:05}" / "attempts" / "001"

    def events(self, kind: str, run: int = 0) -> list[dict[str, Any]]:
        """Return the events of this kind of a run's first attempt."""
        file = self.attempt(run) / "events.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [one for one in map(json.loads, lines) if one["event"] == kind]


def failure_words(run: Mapping[str, Any]) -> str:
    """Return why a run of `status --json` failed, in a line; empty if it completed."""
    if run["state"] == "completed":
        return ""
    failure = run.get("failure") or {}
    said = str(failure.get("message") or run.get("reason") or "no reason is known")
    return f"{run['state']}: {failure.get('cause', '')} {said}"[:600]
