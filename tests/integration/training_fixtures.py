"""Fixtures of the fault matrix: a run to disturb, and what it would have come to undisturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.conftest import Sandbox
from integration.training import LONGEST, Training, mend, wait_for_quiet


@pytest.fixture
def training(sandbox: Sandbox, tmp_path: Path) -> Iterator[Training]:
    """Return a run to be launched; afterwards its jobs are cancelled and the sandbox is mended."""
    wait_for_quiet(sandbox)
    fresh = Training.create(sandbox, tmp_path)
    yield fresh
    if not sandbox.status()["daemons"]["slurmctld"]:
        sandbox.act("start-controller")
    fresh.project.hpckit("cancel")
    mend(sandbox)


@pytest.fixture(scope="session")
def calm(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Return the losses of the run that nothing happened to, by step."""
    undisturbed = Training.create(sandbox, tmp_path_factory.mktemp("calm"))
    undisturbed.launch("+params.pause_s=0", f"+params.steps={LONGEST}")
    undisturbed.completed()
    assert undisturbed.steps == list(range(LONGEST))
    return undisturbed.losses
