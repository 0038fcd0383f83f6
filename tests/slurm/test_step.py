"""What the step of agents states, and what it does not inherit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpckit.slurm.script import render_batch_script
from hpckit.slurm.step import build_agent_srun_command, build_srun_environment


def test_agent_step_states_the_whole_shape(plan_of_one_job: Callable[..., Any], tmp_path: Path) -> None:
    """One agent on each node, with the CPUs and GPUs of all its ranks; the user's words last."""
    plan = plan_of_one_job(tmp_path, nodes=3, tasks_per_node=4, cpus_per_task=2, gpus_per_node=4)
    command = ["python", "-m", "hpckit.runtime.agent"]
    argv = build_agent_srun_command(
        plan.jobs[0].resources, command, srun_args=["--label"], bin_dir="/opt/slurm/bin"
    )
    assert argv[0] == "/opt/slurm/bin/srun"
    assert {
        "--nodes=3",
        "--ntasks=3",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
        "--gpus-per-node=4",
        "--kill-on-bad-exit=0",
        "--no-kill",
    } <= set(argv)
    assert argv[-4:] == ["--label", *command]


def test_agent_step_without_gpus_asks_for_none(plan_of_one_job: Callable[..., Any], tmp_path: Path) -> None:
    """Without GPUs the option is left out: clusters without GPUs refuse it."""
    argv = build_agent_srun_command(plan_of_one_job(tmp_path).jobs[0].resources, ["true"])
    assert argv[0] == "srun"
    assert not any(word.startswith("--gpus") for word in argv)


def test_agent_step_reaches_the_spare_nodes(plan_of_one_job: Callable[..., Any], tmp_path: Path) -> None:
    """An agent waits on each spare node, so that nobody has to ask slurmctld for a new step."""
    plan = plan_of_one_job(tmp_path, nodes=2, spare_nodes=1, min_nodes=1)
    argv = build_agent_srun_command(plan.jobs[0].resources, ["true"])
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1"} <= set(argv)


def test_agent_step_of_some_nodes_does_not_wait_for_the_others(
    plan_of_one_job: Callable[..., Any], tmp_path: Path
) -> None:
    """Where agents have ended, theirs is a step beside the one that holds the CPUs."""
    plan = plan_of_one_job(tmp_path, nodes=4)
    argv = build_agent_srun_command(plan.jobs[0].resources, ["true"], only=("n2", "n3"))
    assert {"--nodes=2", "--ntasks=2", "--nodelist=n[2-3]", "--overlap"} <= set(argv)
    assert "--overlap" not in build_agent_srun_command(plan.jobs[0].resources, ["true"])


def test_step_environment_inherits_no_option_of_the_batch_script() -> None:
    """What srun would read as an option goes; what names the job, and all else, stays."""
    environ = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NNODES": "2",
    }
    options = {
        "SLURM_NTASKS": "8",
        "SLURM_NPROCS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_CPUS_PER_TASK": "1",
        "SRUN_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_NODE": "500",
        "SLURM_TRES_PER_TASK": "cpu=1",
        "SLURM_CPU_BIND": "cores",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURM_GPUS_PER_NODE": "1",
        "SLURM_DISTRIBUTION": "cyclic",
    }
    assert build_srun_environment({**environ, **options}) == environ


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"gpus_per_task": "2"}, 6),
        ({"gpus-per-task": "a100:1"}, 3),
        ({"tres_per_task": "cpu:2,gres/gpu:1"}, 3),
        ({"gpus": "8"}, None),
        ({"mem_per_gpu": "4G"}, None),
    ],
)
def test_agent_has_the_gpus_of_all_its_ranks(
    asked: dict[str, str], gpus: int | None, plan_of_one_job: Callable[..., Any], tmp_path: Path
) -> None:
    """An agent is one task: what each task is stated to have is for each of its ranks."""
    more = tuple(asked.items())
    plan = plan_of_one_job(tmp_path, tasks_per_node=3, additional_parameters=more)
    argv = build_agent_srun_command(plan.jobs[0].resources, ["true"])
    stated = [word for word in argv if word.startswith("--gpus")]
    assert stated == ([] if gpus is None else [f"--gpus-per-node={gpus}"])


def test_type_of_gpus_stands_in_the_script_and_in_the_step(
    plan_of_one_job: Callable[..., Any], tmp_path: Path
) -> None:
    """A step that asked without the type would be refused, or get others."""
    plan = plan_of_one_job(tmp_path, gpus_per_node=4, gpu_type="a100_1g.10gb")
    argv = build_agent_srun_command(plan.jobs[0].resources, ["true"])
    assert "--gpus-per-node=a100_1g.10gb:4" in argv
    text = render_batch_script(plan, plan.jobs[0], [Path(__file__).parents[2] / "slurm_templates"])
    assert "#SBATCH --gpus-per-node=a100_1g.10gb:4\n" in text
