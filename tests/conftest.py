"""Hands all tests a fake Slurm: the programs of tests/fakes on PATH, their state in a folder."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from fork_server_session import shared_fork_server
from tiers import is_exact

from hpckit.model.launch import Cluster
from hpckit.model.plan import JobSpec, LaunchPlan, ResourceSpec

pytest_plugins = ("cli_world", "containers_world", "left_processes", "outcomes")

# How long an example takes says more of the machine than of the code. Each run draws others.
EXAMPLES = int(os.environ.get("HPCKIT_EXAMPLES", "25"))
hypothesis.settings.register_profile("unhurried", deadline=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("unhurried")

PROGRAMS = Path(__file__).parent / "fakes" / "bin"
_PR_GET_CHILD_SUBREAPER = 37
WHOLE = ("cli", "config")
"""Folders of tests that go through a whole verb, or compose by Hydra: some tenths of a second."""
NAMES = frozenset(path.name for path in PROGRAMS.iterdir())

PlanMaker = Callable[..., LaunchPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSlurm:
    """A fake cluster. `environ` is this process's environment with the fake in front."""

    bin_dir: Path
    folder: Path
    environ: dict[str, str]

    def slurm(self, program: str, *arguments: str) -> str:
        """Run one of the fake's programs, which must succeed; return what it printed."""
        done = subprocess.run(
            [self.bin_dir / program, *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def fail(self, mode: str) -> None:
        """Turn a failure mode on; tests/fakes/slurm/store.py lists them."""
        (self.folder / "modes").mkdir(parents=True, exist_ok=True)
        (self.folder / "modes" / mode).touch()

    def mend(self, mode: str) -> None:
        """Turn a failure mode off."""
        (self.folder / "modes" / mode).unlink()

    def remove(self, program: str) -> None:
        """Let a program be not installed."""
        (self.bin_dir / program).unlink()


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of the search for garbage: a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `scripts/test --fast` leaves out by its folder, and what has no second try."""
    for item in items:
        if is_exact(item):
            item.add_marker(pytest.mark.exact)
        if item.path.relative_to(Path(__file__).parent).parts[0] in WHOLE:
            item.add_marker(pytest.mark.whole)


@pytest.fixture(scope="session", autouse=True)
def _ranks_are_forked() -> Iterator[None]:
    with shared_fork_server():
        yield


@pytest.fixture(autouse=True)
def _orphans_are_not_ours() -> Iterator[None]:
    """Refuse what lets this process adopt orphans: it kept them as zombies, alive for tests after it."""
    yield
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    assert not adopts.value, "become_subreaper() belongs into a process of its own"


@pytest.fixture(autouse=True)
def _nothing_shared(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the user's own cache out of the tests, where Slurm is asked every time."""
    monkeypatch.setenv("HPCKIT_QUEUE_AGE_S", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def path_without_slurm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a PATH on which everything is found but Slurm, for hosts that have a real one."""
    folders: list[str] = []
    for number, folder in enumerate(os.environ["PATH"].split(os.pathsep)):
        if not any((Path(folder) / name).exists() for name in NAMES):
            folders.append(folder)
            continue
        links = tmp_path_factory.mktemp(f"path-{number}")
        for program in Path(folder).iterdir():
            if program.name not in NAMES:
                (links / program.name).symlink_to(program)
        folders.append(str(links))
    return os.pathsep.join(folders)


@pytest.fixture
def fake_slurm(tmp_path: Path, path_without_slurm: str) -> Iterator[FakeSlurm]:
    """Set up an empty fake cluster; end whatever it still runs."""
    bin_dir, folder = tmp_path / "fake-slurm" / "bin", tmp_path / "fake-slurm" / "state"
    bin_dir.mkdir(parents=True)
    for program in PROGRAMS.iterdir():
        (bin_dir / program.name).symlink_to(program.resolve())
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environ["PATH"] = f"{bin_dir}{os.pathsep}{path_without_slurm}"
    environ["FAKE_SLURM_DIR"] = str(folder)
    yield FakeSlurm(bin_dir=bin_dir, folder=folder, environ=environ)
    control = [str(PROGRAMS / "scontrol"), "shutdown"]
    subprocess.run(control, env=environ, check=True, timeout=60)


@pytest.fixture
def plan_of_one_job() -> PlanMaker:
    """Return a maker of plans with one job: folder, number of runs, and what differs.

    Keywords are fields of the cluster, of the job (`requeue`, `name`), of the plan (`python`) or
    of the resources.
    """
    return _plan_of_one_job


def _plan_of_one_job(folder: Path | str, *, runs: int = 1, **values: Any) -> LaunchPlan:
    cluster = {key: values.pop(key) for key in _CLUSTER_KEYS & values.keys()}
    name, requeue = values.pop("name", "digits-20260102-030405-ab12"), values.pop("requeue", False)
    python = values.pop("python", "/usr/bin/python3")
    resources = ResourceSpec(**{**_NOTHING_ASKED, **values})
    job = JobSpec(index=0, name=name, runs=tuple(range(runs)), resources=resources, requeue=requeue)
    return LaunchPlan(
        id=name,
        name="digits",
        created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        folder=str(folder),
        arguments=(),
        cluster=Cluster(**cluster),
        python=python,
        runs=(),
        jobs=(job,),
    )


_CLUSTER_KEYS = frozenset({"bin_dir", "env", "modules", "setup", "template"})


def _fields(kind: Any) -> set[str]:
    return set(kind.__dataclass_fields__)


_NOTHING_ASKED: dict[str, Any] = {
    **dict.fromkeys(_fields(ResourceSpec)),
    "nodes": 1,
    "tasks_per_node": 1,
    "cpus_per_task": 1,
    "gpus_per_node": 0,
    "exclusive": False,
    "array_parallelism": 256,
    "additional_parameters": (),
    "spare_nodes": 0,
}
