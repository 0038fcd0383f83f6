"""Launch folders to read back, made by the real planner and the real freezer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig, Resources
from hpckit.model.plain import to_plain
from hpckit.model.plan import LaunchPlan, SweepPoint
from hpckit.planning.plan import LaunchIdentity, build_launch_plan
from hpckit.record.freeze import write_frozen_launch
from hpckit.record.launches import Launch, load_launch
from hpckit.record.snapshot.collect import CodeFile, CodeSnapshot

CREATED_AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
TASK = LaunchConfig(
    name="demo",
    command=["true"],
    params={"i": 1, "häßlich": "x"},
    cluster=Cluster(kind=ClusterKind.slurm, env={"A": "b"}),
    resources=Resources(timeout_min=5, additional_parameters={"hold": True, "nice": 5}),
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project with one script in a subfolder."""
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "train.py").write_text("print()\n")
    return folder


@pytest.fixture
def snapshot(project: Path) -> CodeSnapshot:
    """Return the snapshot of the project, as seen from its subfolder."""
    return CodeSnapshot(
        root=project,
        working_dir="sub",
        python_path=("sub", "."),
        files=(CodeFile(path="sub/train.py", size=8, executable=False),),
        git=None,
    )


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Return the folder of launches, which does not exist yet."""
    return tmp_path / "made" / "outputs"


@pytest.fixture
def planned(outputs: Path) -> Callable[..., LaunchPlan]:
    """Return a planner of launches with so many runs, made so many seconds after the first."""

    def plan(runs: int = 1, *, seconds: float = 0, mark: str = "aa") -> LaunchPlan:
        created_at = CREATED_AT + timedelta(seconds=seconds)
        name = f"demo-{created_at:%Y%m%d-%H%M%S}-{mark}"
        settings = [replace(TASK, seed=seed) for seed in range(runs)]
        return build_launch_plan(
            [
                SweepPoint(overrides=(f"seed={setting.seed}",), config=to_plain(setting), settings=setting)
                for setting in settings
            ],
            identity=LaunchIdentity(id=name, created_at=created_at),
            folder=str(outputs / name),
            arguments=("launch", "-m"),
            python="/usr/bin/python3",
        )

    return plan


@pytest.fixture
def frozen(planned: Callable[..., LaunchPlan], snapshot: CodeSnapshot) -> Callable[..., Launch]:
    """Return a maker of launch folders, with the arguments of `planned`."""

    def make(runs: int = 1, *, seconds: float = 0, mark: str = "aa") -> Launch:
        plan = planned(runs, seconds=seconds, mark=mark)
        scripts = {job.index: f"#!/bin/bash\n# {job.name}\n" for job in plan.jobs}
        write_frozen_launch(plan, scripts=scripts, snapshot=snapshot, environment={"v": 1})
        return load_launch(Path(plan.folder))

    return make
