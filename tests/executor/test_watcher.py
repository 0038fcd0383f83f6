"""When a run counts as over: its record says so, or Slurm has been asked and a minute has passed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpckit.api.invocation import build_python_context
from hpckit.errors import FrozenFolderError, NotFoundError
from hpckit.executor import watcher
from hpckit.executor.watcher import _WatchedLaunch
from hpckit.model.launch import ClusterKind
from hpckit.model.states import RunState
from hpckit.views.poller import Poller


@dataclass
class Look:
    """What a poller sees at each look: a state that it would settle, None for a run that goes on."""

    kind: ClusterKind
    seen: RunState | Exception | None = None
    asks: bool = True
    warning: str = ""
    asked_at: int = 0
    settled: set[int] = field(default_factory=set)
    known: dict[int, Any] = field(default_factory=dict)

    @property
    def launch(self) -> Any:
        """The launch, as far as it is needed."""
        return SimpleNamespace(cluster=SimpleNamespace(kind=self.kind))

    def poll_once(self) -> None:
        """Look; one that does not ask Slurm can see no end that only Slurm tells."""
        if isinstance(self.seen, Exception):
            raise self.seen
        self.asked_at += self.asks
        if self.seen is not None and self.asks:
            self.settled.add(0)
            self.known[0] = SimpleNamespace(state=self.seen)


@dataclass
class Ending:
    """A job that notes its end; its files are visible, or not yet."""

    visible: bool = True
    ends: list[Any] = field(default_factory=list)

    def settle(self, end: Any, late: bool) -> bool:  # noqa: FBT001
        """Note the end, or the error."""
        if self.visible or late:
            self.ends.append(getattr(end, "state", end))
        return self.visible or late


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, to be changed."""
    now = [1000.0]
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def watched(look: Look, job: Ending) -> Any:
    """Return a launch with one open job."""
    return _WatchedLaunch(poller=look, jobs=[(0, job.settle)])  # type: ignore[arg-type]  # stand-ins


@pytest.mark.parametrize("state", [RunState.unknown, RunState.interrupted])
def test_run_that_vanished_is_over_after_a_minute_of_the_same_answer(
    clock: list[float], state: RunState
) -> None:
    """Not before, and not if it was seen again in between: a requeue takes its time."""
    look, job = Look(ClusterKind.slurm, state), Ending()
    launch = watched(look, job)
    for seconds in (0.0, 50.0):
        clock[0] += seconds
        launch.settle_ended_runs()
    look.seen = None
    launch.settle_ended_runs()
    look.seen = state
    for seconds in (5.0, 59.0):
        clock[0] += seconds
        look.asks = True
        launch.settle_ended_runs()
        assert job.ends == []
        assert look.settled == set(), "it is asked about again"
        look.asks = False
        launch.settle_ended_runs()
    clock[0] += 2.0
    assert launch.settle_ended_runs() == 0, "Slurm has not been asked again"
    look.asks, look.warning = True, "squeue does not answer"
    assert launch.settle_ended_runs() == 0, "nor has it answered"
    look.warning = ""
    assert launch.settle_ended_runs() == 1
    assert job.ends == [state]


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (ClusterKind.slurm, RunState.completed),
        (ClusterKind.slurm, RunState.failed),
        (ClusterKind.slurm, RunState.cancelled),
        (ClusterKind.local, RunState.interrupted),
    ],
)
def test_stated_end_counts_at_once(clock: list[float], kind: ClusterKind, state: RunState) -> None:
    """What the record says needs no second opinion, nor does a process of this machine that is gone."""
    assert clock
    job = Ending()
    assert watched(Look(kind, state), job).settle_ended_runs() == 1
    assert job.ends == [state]


def test_result_that_is_not_visible_yet_is_waited_for(clock: list[float]) -> None:
    """A file system may show a result later than the end, but not for ever."""
    job = Ending(visible=False)
    launch = watched(Look(ClusterKind.slurm, RunState.completed), job)
    assert launch.settle_ended_runs() == 0
    clock[0] += 61
    assert launch.settle_ended_runs() == 1
    assert job.ends == [RunState.completed]


def test_record_that_cannot_be_read_for_a_minute_ends_its_jobs(clock: list[float]) -> None:
    """A folder that was removed, but not a moment without the file system."""
    error = FrozenFolderError("gone")
    look, job = Look(ClusterKind.slurm, error), Ending()
    launch = watched(look, job)
    launch.settle_ended_runs()
    clock[0] += 50
    look.seen = None
    launch.settle_ended_runs()
    look.seen = error
    launch.settle_ended_runs()
    clock[0] += 50
    assert launch.settle_ended_runs() == 0
    clock[0] += 20
    assert launch.settle_ended_runs() == 1
    assert job.ends == [error]


def test_launch_that_is_removed_is_no_run_that_has_not_begun(tmp_path: Path) -> None:
    """All that wait for it are told."""
    launch: Any = SimpleNamespace(
        folder=tmp_path / "gone", cluster=SimpleNamespace(kind=ClusterKind.local), runs=()
    )
    with pytest.raises(NotFoundError, match="gone"):
        Poller(launch=launch, context=build_python_context(), indices=()).poll_once()
