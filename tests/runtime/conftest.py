"""Frozen launch folders made without Hydra, and attempts run for real as child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpckit.model import events
from hpckit.model.failure import RankExit
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig, Recovery, Resources, Runtime
from hpckit.model.plain import to_plain
from hpckit.model.plan import SweepPoint
from hpckit.model.run import RunRecord
from hpckit.planning.plan import LaunchIdentity, build_launch_plan
from hpckit.record.freeze import write_frozen_launch
from hpckit.record.launches import Launch, load_launch, read_run_records
from hpckit.record.layout import AttemptPaths, LaunchPaths
from hpckit.record.snapshot.collect import find_project_files_to_freeze
from hpckit.record.snapshot.git import Git
from hpckit.record.store import read_events


@dataclass(frozen=True)
class Attempted:
    """An attempt that has ended."""

    code: int
    output: str
    launch: Launch

    @property
    def record(self) -> RunRecord:
        """What our own record says of the run."""
        return read_run_records(self.launch, metrics=True)[0]

    @property
    def paths(self) -> AttemptPaths:
        """Where the latest attempt lies."""
        return LaunchPaths(self.launch.folder).run(0).attempt(self.record.attempt)

    def log(self, rank: int, *, round_: int = 0) -> str:
        """Return what a rank printed."""
        return self.paths.round(round_).rank_log(rank).read_text()

    def exits(self) -> list[RankExit]:
        """Return the exit records in the order in which they were written."""
        history = read_events(self.paths.events)
        return [event.exit for event in history if isinstance(event, events.RankExited)]


@dataclass(frozen=True)
class Workshop:
    """A user's project and the launches made of it."""

    project: Path

    def freeze(self, code: str = "", /, **settings: Any) -> Launch:
        """Freeze a launch of `task.py` with this text."""
        self.project.mkdir(exist_ok=True)
        (self.project / "task.py").write_text(code)
        config = LaunchConfig(**{"cluster": Cluster(kind=ClusterKind.local), **settings})
        point = SweepPoint(overrides=(), config=to_plain(config), settings=config)
        folder = self.project.parent / "outputs" / f"launch-{os.urandom(3).hex()}"
        plan = build_launch_plan(
            [point],
            identity=LaunchIdentity(id=folder.name, created_at=datetime.now(UTC)),
            folder=str(folder),
            arguments=(),
            python=sys.executable,
        )
        snapshot = find_project_files_to_freeze(
            config.code, cwd=self.project, output_dir=folder.parent, git=Git(os.environ)
        )
        write_frozen_launch(plan, scripts={0: "# none\n"}, snapshot=snapshot, environment={})
        return load_launch(folder)

    def start(self, launch: Launch, **environ: str) -> subprocess.Popen[str]:
        """Start the supervisor of run 0."""
        words = [sys.executable, "-m", "hpckit", "supervise", str(launch.folder), "--job", "0"]
        words += ["--run", "0"]
        return subprocess.Popen(
            words, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def attempt(
        self, code: str = "", *, environ: Mapping[str, str] | None = None, **settings: Any
    ) -> Attempted:
        """Freeze and run to the end."""
        launch = self.freeze(code, **settings)
        process = self.start(launch, **(environ or {}))
        output, _ = process.communicate(timeout=120)
        return Attempted(code=process.returncode, output=output, launch=launch)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """Return a place for a user's project."""
    return Workshop(tmp_path / "project")


def ranks(number: int, **more: Any) -> dict[str, Any]:
    """Return settings for `number` ranks that call `task:main`, started once."""
    return {
        "entry_point": "task:main",
        "resources": Resources(tasks_per_node=number),
        "recovery": Recovery(),
        "runtime": Runtime(stop_grace_s=2, rendezvous_timeout_s=20),
        **more,
    }


Ranks = Callable[..., dict[str, Any]]


@pytest.fixture(name="ranks")
def ranks_fixture() -> Ranks:
    """Return the function that makes settings for some ranks."""
    return ranks
