"""One suite of promises for submitting, asking and cancelling: on the fake and on a real Slurm."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import SchedulerRefusedError
from hpckit.model.run import Observation
from hpckit.model.states import BaseState, RunState
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import find_jobs_by_name, observe_jobs
from hpckit.slurm.script import render_batch_script
from hpckit.slurm.step import build_agent_srun_command, build_srun_environment
from hpckit.slurm.submit import submit_job

SHIPPED = Path(__file__).parents[2] / "slurm_templates"
HOSTILE = 'it\'s a "folder" $(touch pwned) `touch pwned` %j %% #é; touch pwned'
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster to keep promises on, and a folder that its nodes see."""

    commands: SlurmCommands
    environ: Mapping[str, str]
    folder: Path
    plan: Callable[..., Any]

    def freeze(self, run: str, *, name: str = "launch", **values: Any) -> tuple[Any, str, Path]:
        """Write the folder of a launch whose supervisor is a shell script; return its parts."""
        folder = self.folder / name
        (folder / "logs").mkdir(parents=True)
        (folder / "launch.json").write_text("{}")
        # No space in its name: proctrack/linuxproc of 22.05 loses processes that have one.
        program = self.folder / f"supervisor-{len(list(self.folder.iterdir()))}"
        program.write_text(f"#!/bin/bash\n{run}\n")
        program.chmod(0o755)
        plan = self.plan(folder, **{"python": str(program), "name": self.folder.name, **values})
        text = render_batch_script(plan, plan.jobs[0], [SHIPPED])
        (folder / "job-0.sbatch").write_text(text)
        return plan.jobs[0], text, folder

    def send(self, run: str, **values: Any) -> str:
        """Freeze and submit; return the job id."""
        job, text, folder = self.freeze(run, **values)
        return submit_job(text, job, folder, self.commands)

    def observe(self, *jobs: str) -> dict[str, Observation]:
        """Ask once."""
        return observe_jobs(jobs, self.commands, datetime.now(UTC))

    def wait(self, jobs: Sequence[str], until: Callable[[Observation], bool]) -> list[Observation]:
        """Ask until it is true of every job."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.observe(*jobs)
            if len(found) == len(jobs) and all(until(one) for one in found.values()):
                return [found[job] for job in jobs]
            if time.monotonic() > deadline:
                pytest.fail(f"still waiting until it is true of {found}")
            time.sleep(0.1)

    def ends(self, *jobs: str) -> list[tuple[BaseState, int | None]]:
        """Wait for the ends of jobs and return each one's state and exit code."""
        over = self.wait(jobs, lambda one: one.state.ended)
        return [(one.state.base, one.exit_code) for one in over]

    def logs(self, name: str = "launch") -> dict[str, str]:
        """Return the logs of a launch."""
        folder = self.folder / name / "logs"
        return {path.name: path.read_text() for path in folder.iterdir()}


def wait_until(ready: Callable[[], bool]) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > deadline:
            pytest.fail(f"after {PATIENCE_S:.0f} s still waiting until it is ready")
        time.sleep(0.05)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.slurm)])
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, plan_of_one_job: Callable[..., Any]
) -> Iterator[Cluster]:
    """Hand out the fake, then the sandbox."""
    which = "fake_slurm" if request.param == "fake" else "sandbox"
    slurm = request.getfixturevalue(which)
    environ = getattr(slurm, "environ", {"PATH": "/usr/bin:/bin"})
    name = f"{request.param}-{time.time_ns()}"
    folder = tmp_path / name
    folder.mkdir()
    commands = SlurmCommands(bin_dir=str(slurm.bin_dir), environ=environ)
    yield Cluster(commands=commands, environ=environ, folder=folder, plan=plan_of_one_job)
    cancel_jobs(find_jobs_by_name(name, commands), commands)


def test_job_ends_as_its_supervisor_does(cluster: Cluster) -> None:
    """Slurm's word on a job is the exit code of its supervisor: 0, a number, or a signal."""
    fine = cluster.send("exit 0", name="fine")
    failed = cluster.send("exit 3", name="failed")
    killed = cluster.send("kill -9 $$", name="killed")
    assert cluster.ends(fine, failed, killed) == [
        (BaseState.completed, 0),
        (BaseState.failed, 3),
        (BaseState.failed, 137),
    ]


def test_array_has_an_end_for_each_element(cluster: Cluster) -> None:
    """Each element of an array is observed by itself, and has a log by itself."""
    main = cluster.send("exit $SLURM_ARRAY_TASK_ID", runs=3)
    ends = cluster.ends(*(f"{main}_{index}" for index in range(3)))
    assert [code for _, code in ends] == [0, 1, 2]
    assert set(cluster.logs()) == {f"job-0-{main}_{index}.log" for index in range(3)}


def test_waiting_elements_are_observed_too(cluster: Cluster) -> None:
    """Elements beyond the limit of an array wait, and are seen to; cancelling ends them all."""
    main = cluster.send("sleep 60", runs=5, array_parallelism=2)
    jobs = [f"{main}_{index}" for index in range(5)]
    cluster.wait(jobs[:2], lambda one: one.state.base is BaseState.running)
    waiting = cluster.observe(*jobs[2:])
    assert [one.state.base for one in waiting.values()] == [BaseState.pending] * 3
    cancel_jobs(jobs, cluster.commands)
    assert {state for state, _ in cluster.ends(*jobs)} == {BaseState.cancelled}


def test_some_elements_are_cancelled_and_others_not(cluster: Cluster) -> None:
    """Cancelling names elements: the others go on."""
    main = cluster.send("sleep 2", runs=4)
    cancel_jobs([f"{main}_1", f"{main}_3"], cluster.commands)
    states = [state for state, _ in cluster.ends(*(f"{main}_{index}" for index in range(4)))]
    assert states == [BaseState.completed, BaseState.cancelled] * 2


def test_cancelling_what_is_over_is_no_error(cluster: Cluster) -> None:
    """A cancel that comes too late changes nothing and raises nothing."""
    job = cluster.send("exit 0")
    before = cluster.ends(job)
    cancel_jobs([job, "99999999"], cluster.commands)
    assert cluster.ends(job) == before


def test_hostile_folder_is_passed_on_unharmed(cluster: Cluster) -> None:
    """Quotes, dollars, percent signs in a folder: the log lies there, and nothing is run."""
    job = cluster.send('pwd; printf "%s|" "$@"; find . -name pwned', name=HOSTILE, comment=f"{HOSTILE}\nx")
    assert cluster.ends(job) == [(BaseState.completed, 0)]
    folder = cluster.folder / HOSTILE
    (log,) = cluster.logs(HOSTILE).values()
    assert log.splitlines()[1:] == [str(folder), f"-P|-m|hpckit|supervise|{folder}|--job|0|"]
    assert list(cluster.logs(HOSTILE)) == [f"job-0-{job}.log"]


def test_script_runs_when_sent_by_hand_from_anywhere_again_and_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The frozen file is all sbatch needs: by hand, from any folder, and twice."""
    _, _, folder = cluster.freeze('echo "in $PWD"', name="by hand")
    for _ in range(2):
        subprocess.run(
            cluster.commands.build_command_line("sbatch", str(folder / "job-0.sbatch")),
            cwd=tmp_path,
            env=cluster.environ,
            check=True,
            capture_output=True,
        )
    jobs = find_jobs_by_name(cluster.folder.name, cluster.commands)
    assert cluster.ends(*jobs) == [(BaseState.completed, 0)] * 2
    logs = cluster.logs("by hand")
    assert set(logs) == {f"job-0-{job}.log" for job in jobs}
    assert all(f"in {folder}" in log for log in logs.values())


def test_job_is_found_by_its_name(cluster: Cluster) -> None:
    """A submission whose answer was lost is found by the name of its job, also when it is over."""
    first, second = cluster.send("exit 0", name="a", runs=2), cluster.send("exit 0", name="b")
    cluster.ends(f"{first}_0", f"{first}_1", second)
    assert find_jobs_by_name(cluster.folder.name, cluster.commands) == (first, second)
    assert find_jobs_by_name("never-submitted", cluster.commands) == ()


def test_partition_that_does_not_exist_is_refused(cluster: Cluster) -> None:
    """A refusal has Slurm's own words and says which key to change."""
    with pytest.raises(SchedulerRefusedError, match="nowhere") as caught:
        cluster.send("exit 0", partition="nowhere")
    assert "resources.partition" in caught.value.hint
    assert caught.value.exit_code == 3


def test_job_that_slurm_never_had_is_left_out(cluster: Cluster) -> None:
    """An unknown id is no error, alone or among others; it is just not in the answer."""
    job = cluster.send("exit 0")
    cluster.ends(job)
    assert set(cluster.observe("99999999")) == set()
    assert set(cluster.observe(job, "99999999")) == {job}


def test_requeue_is_counted(cluster: Cluster) -> None:
    """A job that was requeued shows that it was started before, waiting and running again."""
    job = cluster.send(
        'trap "exit 1" TERM; [ -n "$SLURM_RESTART_COUNT" ] || { sleep 60 & wait; }', requeue=True
    )
    wait_until(lambda: any("hpckit: job" in log for log in cluster.logs().values()))
    cluster.commands.run("scontrol", "requeue", job)
    (over,) = cluster.wait([job], lambda one: one.restarts > 0 and one.state.ended)
    assert (over.restarts, over.state.run_state) == (1, RunState.completed)
    (log,) = cluster.logs().values()
    assert log.count("hpckit: job") == 2


def test_step_starts_one_agent_on_each_node(cluster: Cluster, plan_of_one_job: Any) -> None:
    """Whatever the shape of the job's tasks, its step has one task a node, with all the CPUs."""
    shape = {"nodes": 2, "tasks_per_node": 2, "cpus_per_task": 2, "gpus_per_node": 2}
    agent = 'echo "agent $SLURM_STEP_NUM_TASKS $SLURM_PROCID $SLURM_NODEID $SLURM_CPUS_PER_TASK'
    agent += ' $SLURM_STEP_GPUS $CUDA_VISIBLE_DEVICES"'
    resources = plan_of_one_job(cluster.folder, **shape).jobs[0].resources
    argv = build_agent_srun_command(resources, ["sh", "-c", agent])
    words = " ".join(f"'{word}'" for word in argv)
    known = cluster.commands.build_command_line("srun")[0]
    kept = build_srun_environment({"SLURM_JOB_ID": "", "SLURM_NTASKS": "", "SLURM_MEM_PER_NODE": ""})
    assert set(kept) == {"SLURM_JOB_ID"}
    unset = "for name in ${!SLURM_NTASKS*} ${!SLURM_MEM_*} ${!SLURM_CPUS_PER_*} ${!SLURM_TRES_*}"
    run = f'{unset}; do unset "$name"; done; PATH="$(dirname {known}):$PATH" {words}'
    assert cluster.ends(cluster.send(run, **shape)) == [(BaseState.completed, 0)]
    (log,) = cluster.logs().values()
    agents = sorted(line for line in log.splitlines() if line.startswith("agent"))
    assert agents == ["agent 2 0 0 4 0,1 0,1", "agent 2 1 1 4 0,1 0,1"]
