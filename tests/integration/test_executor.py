"""`hpckit.Executor` on a real Slurm: one array for a map, and what faults cost its jobs."""

from __future__ import annotations

import concurrent.futures
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

import hpckit
from hpckit.errors import RunFailedError

pytestmark = [pytest.mark.slurm, pytest.mark.main]

WORK = """
import os, time
from pathlib import Path
import hpckit


def work(what, folder):
    if what == "fails":
        raise KeyError(what)
    if what == "sleeps":
        Path(folder, "sleeps").touch()
        time.sleep(600)
    if what == "killed" and not Path(folder, what).exists():
        Path(folder, what).touch()
        os.kill(os.getpid(), 9)
    import submitit
    environment = submitit.JobEnvironment()
    return what, environment.job_id, environment.num_tasks


class Count(hpckit.Checkpointable):
    reached = 0

    def __call__(self, mark):
        if self.reached:
            return self.reached, os.environ.get("SLURM_RESTART_COUNT")
        Path(mark).touch()
        for self.reached in range(1, 6000):
            time.sleep(0.1)
"""


@pytest.fixture
def calls(project: Any) -> Iterator[Any]:
    """Return a module of the project."""
    project.write("calls.py", WORK)
    sys.path.insert(0, str(project.folder))
    yield importlib.import_module("calls")
    sys.path.remove(str(project.folder))
    sys.modules.pop("calls", None)


def test_map_is_one_array_whose_jobs_end_as_their_runs(
    sandbox: Any, project: Any, calls: Any, tmp_path: Path
) -> None:
    """A failing job spoils no other, a killed one recovers, a cancelled one is cancelled.

    A requeued callable goes on as it was when the notice came; its job is not done in between.
    """
    executor = hpckit.Executor(tmp_path / "jobs", cluster="sandbox", cwd=project.folder, timeout_min=10)
    names = ["plain", "fails", "killed", "sleeps"]
    jobs = executor.map_array(calls.work, names, [str(tmp_path)] * len(names))
    plain, fails, killed, sleeps = jobs
    counts = executor.submit(calls.Count(), str(tmp_path / "counts"))
    ids = [job.job_id for job in jobs]
    assert len({name.partition("_")[0] for name in ids}) == 1
    assert plain.result(120) == ("plain", ids[0], 1)
    error = fails.exception(120)
    assert isinstance(error, RunFailedError)
    assert (error.cause, repr(error.__cause__)) == ("exception", "KeyError('fails')")
    assert killed.result(120)[0] == "killed"
    sandbox.wait_until((tmp_path / "sleeps").exists, "the last one runs")
    assert (sleeps.state, sleeps.done(force_check=True)) == ("RUNNING", False)
    assert sleeps.cancel()
    sandbox.wait_until((tmp_path / "counts").exists, "it counts")
    time.sleep(1)
    sandbox.slurm("scontrol", "requeue", counts.job_id)
    assert not counts.done(force_check=True)
    with pytest.raises(concurrent.futures.CancelledError):
        sleeps.result(120)
    reached, restarts = counts.result(200)
    assert reached > 1
    assert restarts == "1"
    executor.shutdown()
    assert sorted(job.state for job in jobs) == ["CANCELLED", "COMPLETED", "COMPLETED", "FAILED"]


@thorough
@pytest.mark.usefixtures("sandbox")
def test_time_limit_lets_a_callable_go_on_in_the_next_attempt(
    project: Any, calls: Any, tmp_path: Path
) -> None:
    """Slurm does not requeue what it ends there; hpckit does, as the callable said how to go on.

    Any other function ends with that cause, once nothing has started it again for a minute.
    """
    executor = hpckit.Executor(tmp_path / "jobs", cluster="sandbox", cwd=project.folder, timeout_min=1)
    job = executor.submit(calls.Count(), str(tmp_path / "counts"))
    sleeps = executor.submit(time.sleep, 600)
    reached, _ = job.result(280)
    assert reached > 300
    assert job.run.row.attempt == 2
    error = sleeps.exception(280)
    assert isinstance(error, RunFailedError)
    assert (error.cause, sleeps.state) == ("time_limit", "INTERRUPTED")
