"""A folder with the training programs, and readers of what they recorded."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.commands import hpckit, run, wait_until

PROGRAMS = Path(__file__).resolve().parent / "programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A finished step: the time, and the process that did it."""

    at: float
    life: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A project folder. Steps take `step_s` seconds; a save is due every `save_every` steps."""

    folder: Path
    steps: int = 100_000
    step_s: float = 0.5
    save_every: int = 5
    width: int = 64
    nodes: int = 2

    def prepare(self) -> Scene:
        """Write the programs and their settings."""
        shutil.copytree(PROGRAMS, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        names = ("steps", "step_s", "save_every", "width", "nodes")
        settings = {name: getattr(self, name) for name in names}
        (self.folder / "settings.json").write_text(json.dumps(settings))
        return self

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment for hpckit: its launches are in this folder."""
        return {**os.environ, "HPCKIT_OUTPUTS": str(self.folder / "outputs")}

    def launch(self, *words: str) -> str:
        """Launch the training with hpckit; return the launch's id."""
        fixed = ("launch", "--rerun", "--json", "experiment=function", "entry_point=with_hpckit:train")
        done = run(hpckit(*fixed, "code.snapshot=false", *words), cwd=self.folder, env=self.environ)
        return str(json.loads(done.stdout)["launch"])

    def status(self) -> dict[str, Any]:
        """Return the only run in `hpckit status --json`."""
        words = hpckit("status", "--goodput", "--json")
        (one,) = json.loads(run(words, cwd=self.folder, env=self.environ).stdout)["runs"]
        return dict(one)

    def cancel(self) -> None:
        """Cancel the launch, and wait for its end."""
        run(hpckit("cancel"), cwd=self.folder, env=self.environ)
        wait_until(lambda: self.status()["state"] not in {"pending", "running"}, 90, every_s=1)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return hpckit's events of a kind, from all attempts."""
        files = sorted(self.folder.glob("outputs/*/runs/00000/attempts/*/events.jsonl"))
        records = [record for file in files for record in _lines(file)]
        return [record for record in records if record["event"] == kind]

    def done(self) -> list[Step]:
        """Return the finished steps, in order of time."""
        lines = _lines(self.folder / "steps.jsonl")
        return [Step(at=line["at"], life=line["life"], step=line["step"]) for line in lines]

    def last_step(self) -> int:
        """Return the last finished step, -1 before the first."""
        done = self.done()
        return done[-1].step if done else -1

    def pid_of(self, rank: int) -> int:
        """Return the latest process of a rank."""
        lines = _lines(self.folder / "ranks.jsonl")
        return int([line["pid"] for line in lines if line["rank"] == rank][-1])


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]
