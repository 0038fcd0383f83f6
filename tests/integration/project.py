"""A user's project with a cluster at hand, used through the command line as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_world import verb_said

from hpckit.model.states import parse_slurm_state

TASK = '''
"""Tasks of a user."""
import os, socket, time


def fine(config, run):
    import torch, torch.distributed as dist
    total = torch.ones(1)
    dist.all_reduce(total)
    token = len(os.environ.get("HF_TOKEN", ""))
    for step in run.steps(3):
        run.log(loss=1 / (step + 1), total=total, host=socket.gethostname(), token=token)


def boom(config, run):
    for step in run.steps(5):
        if step == 2:
            raise ValueError(f"boom at {step}")


def killed(config, run):
    for step in run.steps(3):
        if run.rank == 1:
            os.kill(os.getpid(), 9)
        time.sleep(60)
'''


def _may_change(run: dict[str, Any]) -> bool:
    held = run["slurm_state"] and not parse_slurm_state(run["slurm_state"]).ended
    return run["state"] in {"pending", "running"} or bool(run["state"] == "interrupted" and held)


@dataclass(frozen=True, slots=True)
class Project:
    """A git checkout with `task.py`, and the launches made from it."""

    folder: Path

    def create(self) -> None:
        """Write and commit the project."""
        self.folder.mkdir(exist_ok=True)
        self.write("task.py", TASK)
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
            identity = ["-c", "user.name=u", "-c", "user.email=u@example.org"]
            subprocess.run(["git", *identity, *words], cwd=self.folder, check=True)

    def write(self, name: str, text: str) -> None:
        """Write a file of the project; scripts become executable."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)

    @property
    def outputs(self) -> Path:
        """Where launches go: next to the checkout."""
        return self.folder.parent / "outputs"

    def hpckit(self, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a verb and return whatever comes of it."""
        return subprocess.run(
            [sys.executable, "-m", "hpckit", *words],
            cwd=self.folder,
            env={**os.environ, "HPCKIT_OUTPUTS": str(self.outputs)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def json(self, *words: str) -> Any:
        """Run a verb with --json, which must succeed, and return what it printed."""
        done = self.hpckit(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def look(self, *words: str) -> Any:
        """Return `status --json`, asked for in this process: a poll need not start a Python."""
        environ = {**os.environ, "HPCKIT_OUTPUTS": str(self.outputs)}
        answer = verb_said("status", *words, "--json", folder=self.folder, environ=environ)
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    def ended(self, *words: str, patience_s: float = 180) -> dict[str, Any]:
        """Return `status --json` once every run has ended, and Slurm is done with its job.

        As long as Slurm has the job of an interrupted run, it may start it again.
        """
        deadline = time.monotonic() + patience_s
        while True:
            status: dict[str, Any] = self.look(*words)
            if not any(_may_change(run) for run in status["runs"]):
                return dict(self.json("status", *words))
            if time.monotonic() > deadline:
                pytest.fail(f"after {patience_s:.0f} s still waiting until all ended: {status}")
            time.sleep(1)

    def launch_folder(self) -> Path:
        """Return the folder of the only launch; hidden names are no launches."""
        (folder,) = (one for one in self.outputs.iterdir() if not one.name.startswith("."))
        return folder
