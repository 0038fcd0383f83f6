"""What `hpckit check` says of launches, beside what a real Slurm makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tiers import thorough
from waiting import LIMIT_S, until

pytestmark = pytest.mark.slurm

WORDS = ("experiment=function", "entry_point=task:fine", "cluster=sandbox")


@contextmanager
def start_verb(project: Any, *words: str) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """Yield a verb that goes on, and its lines; end it, so that no failed test waits for it."""
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(project.outputs)}
    command = [sys.executable, "-m", "hpckit", *words]
    process = subprocess.Popen(command, cwd=project.folder, env=environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, iter(process.stdout.readline, "")
    finally:
        process.kill()
        process.communicate()


def check(project: Any, *words: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and document of a check."""
    done = project.hpckit("check", "--json", *WORDS, *words)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.release
@pytest.mark.main
@pytest.mark.usefixtures("sandbox")
def test_check_has_slurms_forecast_of_an_array(project: Any) -> None:
    """A sweep that fits has no errors, everything was asked, and a start is named."""
    code, said = check(project, "-m", "resources.timeout_min=30", "seed=range(0,20)")
    assert (code, said["unchecked"], said["jobs"]) == (0, [], 1)
    assert [one for one in said["findings"] if one["severity"] == "error"] == []
    assert said["estimate"]["cpu_hours"] == pytest.approx(10)
    assert said["starts"] == [] or said["starts"][0]["at"].startswith("20")


@pytest.mark.release
@pytest.mark.main
@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("resources.partition=batchh", "cluster.partitions=[]"), "resources.partition"),
        (("resources.account=nobody",), "resources.account"),
        (("resources.timeout_min=20000",), "resources.timeout_min"),
        pytest.param(("resources.nodes=99",), "resources.nodes", marks=thorough),
        (("resources.constraint=nosuchfeature",), "resources"),
        pytest.param(("resources.reservation=nosuch",), "resources", marks=thorough),
    ],
)
def test_check_refuses_what_slurm_would_refuse(project: Any, words: tuple[str, ...], key: str) -> None:
    """Our own comparison or Slurm's --test-only finds it, and launch writes nothing."""
    code, said = check(project, *words)
    assert code == 2
    assert key in [one["key"] for one in said["findings"] if one["severity"] == "error"]
    done = project.hpckit("launch", *WORDS, *words)
    assert done.returncode == 2
    assert "nothing was written or submitted" in done.stderr


@pytest.mark.release
@pytest.mark.main
def test_check_submits_nothing(sandbox: Any, project: Any) -> None:
    """After a check, Slurm has no job more."""
    before = sandbox.slurm("squeue", "--noheader", "--states=all", "--format=%i %j")
    check(project, "name=only-checked")
    assert "only-checked" not in before + sandbox.slurm(
        "squeue", "--noheader", "--states=all", "--format=%i %j"
    )


@pytest.mark.main
def test_job_that_can_never_start_is_refused(sandbox: Any, project: Any) -> None:
    """A dependency on a job that has failed: Slurm itself forecasts a start, and waits for ever."""
    job = sandbox.slurm("sbatch", "--parsable", "--output=/dev/null", "--wrap", "exit 3").strip()
    until(lambda: job not in sandbox.queued())
    code, said = check(project, f"resources.dependency=afterok:{job}")
    (found,) = (one for one in said["findings"] if one["key"] == "resources.dependency")
    assert code == 2
    assert f"job {job} must complete, but it has ended: FAILED" in found["message"]
    code, said = check(project, f"resources.dependency=afternotok:{job}")
    assert code == 0, said


@pytest.mark.main
def test_wait_says_why_a_job_does_not_start(sandbox: Any, project: Any) -> None:
    """A held job: what --wait, status and watch say is what helps."""
    held = "+resources.additional_parameters.hold=true"
    with start_verb(project, "launch", "--wait", "name=held", *WORDS, held) as (waiting, lines):
        said = next(line for line in lines if "does not start" in line)
        release = said[said.index("scontrol release") :].split()
        assert release[:2] == ["scontrol", "release"]
        assert " ".join(release) in project.hpckit("status", "held").stdout
        with start_verb(project, "watch", "held") as (_, watched):
            assert said in watched
        sandbox.slurm(*release)
        assert waiting.wait(LIMIT_S) == 0
