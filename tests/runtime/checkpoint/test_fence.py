"""The fence: who cannot read whether the run is still its own commits, removes and asks nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from runtime.conftest import Workshop, ranks

from hpckit.errors import UnsavedStateError
from hpckit.record.attempts import is_latest_attempt
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.group import ProblemKind, problem_from_error

NOBODY = 65534


@pytest.fixture
def attempts(tmp_path: Path) -> Path:
    """Return a run's folder of attempts, with two in it."""
    for number in ("001", "002"):
        (tmp_path / "attempts" / number).mkdir(parents=True)
    return tmp_path / "attempts"


def test_is_latest_is_true_of_the_newest_alone(attempts: Path) -> None:
    """An attempt is the latest while none after it has begun, and only where it is there itself."""
    assert [is_latest_attempt(attempts, number) for number in (1, 2, 3)] == [False, True, False]


@pytest.mark.parametrize("how", ["gone", "a file", "forbidden"])
def test_is_latest_never_takes_an_unreadable_listing_for_yes(attempts: Path, how: str) -> None:
    """A listing that cannot be read raises: that nothing newer is seen says nothing then."""
    if how == "forbidden":
        code = f"{_AS_NOBODY} attempts.is_latest_attempt(attempts.Path({str(attempts)!r}), 2)"
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert "PermissionError" in done.stderr
        return
    attempts.rename(attempts.with_name("away"))
    if how == "a file":
        attempts.touch()
    with pytest.raises(OSError, match=r"No such file|Not a directory"):
        is_latest_attempt(attempts, 2)


_AS_NOBODY = f"from hpckit.record import attempts; import os; os.setgid({NOBODY}); os.setuid({NOBODY});"


def test_is_latest_reads_again_what_failed_once(attempts: Path) -> None:
    """A listing that fails for a moment is read again before anything follows from it."""
    away = attempts.with_name("away")
    attempts.rename(away)
    threading.Timer(0.15, away.rename, [attempts]).start()
    assert is_latest_attempt(attempts, 2)


def test_attempt_without_a_readable_listing_does_not_own_its_run(tmp_path: Path) -> None:
    """A supervisor that cannot list the attempts asks for no requeue: a newer one may be there."""
    from hpckit.runtime.supervisor.attempt import begin_next_attempt  # noqa: PLC0415

    launch = Workshop(tmp_path / "project").freeze("", **ranks(1))
    attempt = begin_next_attempt(launch, 0, 0, {})
    assert attempt.is_still_latest_attempt()
    folder = launch.paths.run(0).attempts
    folder.rename(folder.with_name("away"))
    assert not attempt.is_still_latest_attempt()


def test_save_behind_an_unreadable_fence_is_refused_and_training_goes_on(
    tmp_path: Path, attempts: Path
) -> None:
    """Such a save commits nothing and removes nothing, says so, and the next one succeeds."""
    away = attempts.with_name("away")
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpointer(
        folder, CheckpointSettings(epoch=2, keep=2), may_commit=lambda: is_latest_attempt(attempts, 2)
    )
    model = {"model": torch.nn.Linear(2, 2)}
    for step in (1, 2):
        checkpoints.save(model, step, 0, wait=True)
    attempts.rename(away)
    outcome = checkpoints.save(model, 3, 0, wait=True)
    assert outcome is not None
    assert not outcome.committed
    assert "whether attempt 2 still owns the run cannot be read" in outcome.warning
    assert _committed(folder) == [1, 2]
    away.rename(attempts)
    checkpoints.save(model, 4, 0, wait=True)
    assert _committed(folder) == [2, 4]
    attempts.rename(away)
    with pytest.raises(UnsavedStateError, match="the last state, of step 5"):
        checkpoints.save(model, 5, 0, wait=True, patience=timedelta(seconds=1))
    checkpoints.close()
    assert _committed(folder) == [2, 4]


def _committed(folder: Path) -> list[int]:
    return sorted(int(path.parent.name[5:13]) for path in folder.glob("step-*/manifest.json"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(28, "no room"), ProblemKind.full),
        (OSError(122, "quota"), ProblemKind.full),
        (OSError(5, "input/output error"), ProblemKind.away),
        (OSError(116, "stale"), ProblemKind.away),
        (OSError(30, "read-only"), ProblemKind.other),
        (PermissionError(13, "no"), ProblemKind.other),
        (CheckpointError("x"), ProblemKind.other),
        (ValueError("x"), ProblemKind.other),
    ],
)
def test_problem_tells_what_may_pass(error: Exception, kind: ProblemKind) -> None:
    """A full disk and a file system that is away may pass; what forbids does not."""
    assert problem_from_error(error, 0).kind is kind
    wrapped = RuntimeError("torch's own words")
    wrapped.__context__ = error
    assert problem_from_error(wrapped, 0).kind is kind
