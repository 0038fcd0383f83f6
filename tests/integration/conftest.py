"""Hands the tests a real Slurm: the sandbox that is up, or one brought up for this session."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from integration.project import Project

from hpckit.sandbox.actions import collect_sandbox_status

PROGRAM = Path(__file__).parents[2] / "scripts" / "slurm-sandbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A running sandbox: its verbs, its Slurm commands and what it says of itself."""

    bin_dir: Path
    nodes: tuple[str, ...]
    options: dict[str, Any]

    def status(self) -> dict[str, Any]:
        """Return what `status --json` prints now."""
        return read_status()

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the sandbox's verbs and return whatever comes of it."""
        return run([str(PROGRAM), *arguments])

    def act(self, *arguments: str) -> str:
        """Run one of the sandbox's verbs, which must succeed; returns what it printed."""
        return succeed(self.attempt(*arguments))

    def try_slurm(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command of the sandbox's and return whatever comes of it."""
        return run([str(self.bin_dir / command), *arguments])

    def slurm(self, command: str, *arguments: str) -> str:
        """Run a Slurm command of the sandbox's, which must succeed; returns what it printed."""
        return succeed(self.try_slurm(command, *arguments))

    def queued(self) -> set[str]:
        """Return every job in the queue; an array's elements by the number of the array."""
        return set(self.slurm("squeue", "--noheader", "--format=%F").split())

    def tidy(self, before: set[str]) -> None:
        """Make the sandbox what it was: all of it alive, and nothing queued but these jobs."""
        if self.status()["state"] != "up":
            self.act("up", *options_as_arguments(self.options))
        if left := self.queued() - before:
            self.try_slurm("scancel", *left)
            self.wait_until(lambda: not self.queued() - before, "what a test left has ended")

    def state_of_job(self, job: str) -> str:
        """Return the state squeue gives a job; empty when the queue has forgotten it."""
        return self.try_slurm("squeue", "--noheader", "--format=%T", f"--jobs={job}").stdout.strip()

    def state_of_node(self, node: str) -> str:
        """Return the state sinfo gives a node; `*` at its end: it does not answer."""
        return self.slurm("sinfo", "--noheader", "--format=%T", f"--nodes={node}").split()[0]

    @staticmethod
    def wait_until(ready: Callable[[], object], what: str, *, patience_s: float = 120.0) -> None:
        """Poll until ready; a test that waits in vain fails and says what it waited for."""
        deadline = time.monotonic() + patience_s
        while not ready():
            if time.monotonic() > deadline:
                pytest.fail(f"after {patience_s:.0f} s still waiting until {what}")
            time.sleep(0.2)


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command without input; never longer than a test may take."""
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False
    )


def succeed(done: subprocess.CompletedProcess[str]) -> str:
    """Make sure that a command succeeded; returns what it printed."""
    assert done.returncode == 0, f"{done.args} exited {done.returncode}: {done.stderr}"
    return done.stdout


def read_status() -> dict[str, Any]:
    """Return what `sandbox status --json` prints, asked for in this process."""
    return dict(collect_sandbox_status())


def options_as_arguments(options: dict[str, Any]) -> list[str]:
    """Write recorded options the way `up` takes them."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Use the sandbox that is up; mend one that is half up; bring one up if that is wanted."""
    status = read_status()
    release = os.environ.get("HPCKIT_TEST_SLURM") if os.geteuid() == 0 else None
    brought_up = status["state"] == "down"
    if brought_up and not release:
        pytest.skip(
            "the Slurm sandbox is down: bring it up with 'scripts/slurm-sandbox up', "
            "or run the tests as root with HPCKIT_TEST_SLURM=22.05"
        )
    if status["state"] != "up":
        options = status["options"] or {"release": release}
        succeed(run([str(PROGRAM), "up", *options_as_arguments(options)]))
        status = read_status()
    yield Sandbox(
        bin_dir=Path(status["bin_dir"]),
        nodes=tuple(node["name"] for node in status["nodes"]),
        options=status["options"],
    )
    if brought_up:
        succeed(run([str(PROGRAM), "down"]))


@pytest.fixture(autouse=True)
def _leave_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let no test find what another one left on the sandbox, however that one ended."""
    if "sandbox" not in request.fixturenames:
        yield
        return
    sandbox: Sandbox = request.getfixturevalue("sandbox")
    before = sandbox.queued()
    yield
    sandbox.tidy(before)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a fresh project."""
    fresh = Project(tmp_path / "project")
    fresh.create()
    return fresh
