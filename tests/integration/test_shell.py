"""`hpckit shell` on a real Slurm: a step inside the run's own job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pseudo_terminal import Sitting
from waiting import until

pytestmark = pytest.mark.slurm

WAITS = "command=[sh,-c,'touch $HPCKIT_RUN_DIR/ready; exec sleep 300']"
COMMAND = ("experiment=command", "cluster=sandbox", "code.snapshot=false", "+env.FOO=bar", WAITS)


def begin(project: Any, *words: str, runs: int = 1) -> list[dict[str, Any]]:
    """Launch, wait until all runs are under way, and return them as `status` has them."""
    folder = Path(project.json("launch", *COMMAND, *words)["dir"])
    until(lambda: len([*folder.glob("runs/*/ready")]) == runs)
    found: list[dict[str, Any]] = project.look()["runs"]
    return found


@pytest.mark.release
@pytest.mark.main
def test_shell_is_a_step_on_the_node_that_was_named(sandbox: Any, project: Any) -> None:
    """It is in the run's job, has the run's environment and folder, and returns its exit code."""
    (run,) = begin(project, "resources.nodes=2", "resources.tasks_per_node=1")
    script = "echo $SLURM_JOB_ID $SLURMD_NODENAME $SLURM_STEP_NUM_TASKS $FOO $PWD; exit 4"
    for words, node in (((), run["nodes"][0]), (("--node", run["nodes"][1]), run["nodes"][1])):
        done = project.hpckit("shell", *words, "--", "sh", "-c", script)
        assert done.returncode == 4, done.stderr
        job, named, tasks, variable, folder = done.stdout.split()
        assert (job, named, tasks, variable) == (run["job"], node, "1", "bar")
        assert Path(folder).is_relative_to(project.outputs)
    outside = next((node for node in sandbox.nodes if node not in run["nodes"]), "nowhere")
    refused = project.hpckit("shell", "--node", outside, "--", "true")
    assert (refused.returncode, "is not on node" in refused.stderr) == (2, True)
    assert project.look()["runs"][0]["state"] == "running"
    project.hpckit("cancel")


def test_shell_of_an_array_element_is_in_its_own_job(sandbox: Any, project: Any) -> None:
    """Srun is given the number of this very element."""
    runs = begin(project, "-m", "+params.i=1,2", runs=2)
    for run in runs:
        script = "echo ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID $SLURM_JOB_ID $HPCKIT_RUN_INDEX"
        done = project.hpckit("shell", f".{run['index']}", "--", "sh", "-c", script)
        _, number, index = done.stdout.split()
        raw = sandbox.slurm("squeue", "-h", "-o", "%A", "-j", run["job"]).strip()
        assert (number, index) == (raw, str(run["index"])), done.stderr
    project.hpckit("cancel")


def test_shell_on_a_terminal_of_a_node(sandbox: Any, project: Any) -> None:
    """A person has a terminal on the node, sees what programs print, and leaves by `exit`."""
    (run,) = begin(project)
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(project.outputs), "SHELL": "/bin/sh"}
    with Sitting(words=["shell"], cwd=project.folder, environ=environ) as sitting:
        sitting.until(f"of job {run['job']}")
        sitting.press("test -t 0 && echo a tty on $SLURMD_NODENAME in $SLURM_JOB_ID\n")
        sitting.until(f"a tty on {run['nodes'][0]} in {run['job']}")
        sitting.press("exit 5\n")
        assert sitting.exit_code() == 5
    assert sandbox.state_of_job(run["job"]) == "RUNNING"
    project.hpckit("cancel")
