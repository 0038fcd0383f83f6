"""Successors on a real Slurm: the next attempt starts when the present job is gone, at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_world import make_context

from hpckit.context import Context
from hpckit.model.cluster.allocation import AttemptRequest
from hpckit.operations.successor import cancel_successor, exclude_successor_nodes, queue_successor
from hpckit.record.launches import load_launch, read_run_records

pytestmark = pytest.mark.slurm

WAITS = "command=[sh,-c,'until [ -e $HPCKIT_PROJECT/fixed ]; do sleep 0.2; done']"
COMMAND = ("experiment=command", "cluster=sandbox", "code.snapshot=false")


@pytest.fixture
def context() -> Context:
    """Return the world of a supervisor."""
    return make_context(Path("/"), dict(os.environ))


@pytest.mark.release
@pytest.mark.main
def test_successor_begins_when_its_element_has_ended_and_not_before(
    sandbox: Any, project: Any, context: Context
) -> None:
    """Of two elements one loses its supervisor: its successor begins, the other runs on alone."""
    words = ("launch", "-m", *COMMAND, WAITS, "seed=1,2", "recovery.queue_successor=true")
    (main,) = project.json(*words)["jobs"]
    launch = load_launch(project.launch_folder())
    assert not launch.jobs[0].requeue

    def begun() -> bool:
        return all(record.round is not None for record in read_run_records(launch))

    sandbox.wait_until(begun, "both runs have begun")
    job = queue_successor(launch, 1, launch.jobs[0], f"{main}_1", context)
    other = queue_successor(launch, 0, launch.jobs[0], f"{main}_0", context)
    assert job is not None
    assert other is not None
    assert [sandbox.state_of_job(one) for one in (job, other)] == ["PENDING", "PENDING"]
    handed = exclude_successor_nodes(launch, 1, launch.jobs[0], AttemptRequest(excluded=("n1",)), context)
    assert (handed.outcome, handed.excluded) == ("requeued", ("n1",)), handed.message
    (lost,) = read_run_records(launch, [1])
    assert lost.supervisor is not None
    os.kill(lost.supervisor[1], signal.SIGKILL)

    def succeeded() -> bool:
        run = project.look()["runs"][1]
        found = (run["job"], run["attempt"], run["state"])
        print(found, [sandbox.state_of_job(one) for one in (f"{main}_1", job)])  # noqa: T201  # shown if it fails
        return found == (job, 2, "running")

    sandbox.wait_until(succeeded, "the successor runs")
    assert read_run_records(launch, [1])[0].nodes != ("n1",)
    assert sandbox.state_of_job(other) == "PENDING"
    assert cancel_successor(launch, 0, f"{main}_0", context)
    (project.folder / "fixed").touch()
    assert [run["attempt"] for run in project.ended()["runs"]] == [1, 2]
    assert [run["state"] for run in project.look()["runs"]] == ["completed"] * 2
