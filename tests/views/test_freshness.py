"""What verbs that show promise of the age of Slurm's answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cli.terminal.test_live_status import Viewer
from cli_world import START

from hpckit.errors import UsageError
from hpckit.model import events
from hpckit.model.launch import ClusterKind
from hpckit.record.launches import load_launch

SQUEUE = """#!/bin/sh
echo x >> {count}
echo '5|PENDING||0|0|Priority|'
"""


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], int]:
    """Install a squeue that knows one job; return how often it was called."""
    (tmp_path / "bin").mkdir()
    squeue, count = tmp_path / "bin" / "squeue", tmp_path / "count"
    squeue.write_text(SQUEUE.format(count=count))
    squeue.chmod(0o755)
    return lambda: len(count.read_text().splitlines()) if count.exists() else 0


@pytest.fixture
def viewer(desk: Any, tmp_path: Path) -> Viewer:
    """Return somebody before a launch that waits in the queue, whose answers may be shared."""
    launch = desk.freeze(kind=ClusterKind.slurm)
    desk.tell(launch, events.Submitted(at=START, job_index=0, job="5"))
    desk.environ = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HPCKIT_QUEUE_AGE_S": "600",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    return Viewer(desk=desk)


def test_status_says_how_old_slurms_answer_is(viewer: Viewer, calls: Callable[[], int]) -> None:
    """The second look takes the answer of the first, and says so; --fresh asks again."""
    assert "queue as of" not in viewer.watch()
    viewer.now += timedelta(seconds=12)
    assert "queue as of 12 s ago" in viewer.watch()
    assert json.loads(viewer.watch("--json"))["queue_age_s"] == 12
    assert calls() == 1
    assert "queue as of" not in viewer.watch("--fresh")
    assert calls() == 2


def test_status_sees_what_was_submitted_since(viewer: Viewer, calls: Callable[[], int], desk: Any) -> None:
    """An answer from before the launch's last event is not shown: it may not know the job."""
    viewer.watch()
    viewer.now += timedelta(seconds=2)
    (folder,) = desk.folder.iterdir()
    desk.tell(load_launch(folder), events.CancelRequested(at=viewer.now, runs=(0,)))
    viewer.watch()
    assert calls() == 2


def test_status_warns_that_the_controller_is_away_and_shows_the_accounting(
    viewer: Viewer, calls: Callable[[], int], tmp_path: Path
) -> None:
    """What only the accounting says is no answer of the queue: it has no age, and ends no run."""
    assert calls() == 0
    found = []
    for accounted in ("", "5|RUNNING|n1|0:0"):
        for name, text in (("squeue", "echo away >&2; exit 1"), ("sacct", f"echo '{accounted}'")):
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        document = json.loads(viewer.watch("--fresh", "--json"))
        assert (document["scheduler"], document["queue_age_s"]) == ("unreachable", None)
        found += [(run["state"], run["slurm_state"]) for run in document["runs"]]
        viewer.now += timedelta(minutes=10)
    assert found == [("pending", None), ("running", "RUNNING")]
    assert "warning: Slurm's controller does not answer" in viewer.desk.say("status", "--fresh").err


def test_age_of_the_queue_has_to_be_a_number(viewer: Viewer) -> None:
    """A variable that cannot be meant is named; 0 asks every time."""
    viewer.desk.environ = {**viewer.desk.environ, "HPCKIT_QUEUE_AGE_S": "soon"}
    with pytest.raises(UsageError, match="HPCKIT_QUEUE_AGE_S is 'soon'"):
        viewer.watch()
