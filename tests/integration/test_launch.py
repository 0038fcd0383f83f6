"""Whole launches on a real Slurm, driven through the command line as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import run_to_end

pytestmark = pytest.mark.slurm

SANDBOX = "cluster=sandbox"
NEVER = "recovery=never"
TOKEN = "hf_a1B2c3D4e5F6"  # noqa: S105  # nobody's


FUNCTION = ("experiment=function", SANDBOX)


def sacct_states(sandbox: Any, job: str) -> dict[str, str]:
    """Return sacct's state of every element of a job, once it has heard of their end."""
    listing: dict[str, str] = {}

    def all_ended() -> bool:
        text = sandbox.slurm("sacct", "-nPX", "-o", "JobID,State", "-j", job)
        listing.update(line.split("|") for line in text.split())
        return bool(listing) and all(
            state not in {"PENDING", "RUNNING", "COMPLETING"} for state in listing.values()
        )

    sandbox.wait_until(all_ended, f"sacct knows the end of {job}")
    return listing


@pytest.mark.main
def test_launch_trains_charlm_on_two_nodes(sandbox: Any, project: Any) -> None:
    """Four ranks on two nodes form one group, the loss falls, and sacct agrees."""
    done = project.hpckit(
        *("launch", "experiment=charlm", SANDBOX, "--wait", "steps=40"),
        *("resources.nodes=2", "resources.tasks_per_node=2"),
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    status = project.json("status")
    (run,) = status["runs"]
    assert run["state"] == "completed"
    assert len(run["nodes"]) == 2
    assert sacct_states(sandbox, run["job"]) == {run["job"]: "COMPLETED"}
    attempt = project.launch_folder() / "runs" / "00000" / "attempts" / "001"
    started = [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]
    (round_started,) = [event for event in started if event["event"] == "round_started"]
    assert round_started["world_size"] == 4
    lines = [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    assert run["metrics"]["bits_per_byte"] > 0


@pytest.mark.release
@pytest.mark.main
@pytest.mark.usefixtures("sandbox")
def test_ranks_have_all_of_their_job_and_share_it(project: Any) -> None:
    """Both ranks see both GPUs that each task was stated to have one of; an srun inside runs."""
    command = "command=['bash', '-c', 'srun --ntasks=1 echo GPUS $CUDA_VISIBLE_DEVICES']"
    done = project.hpckit(
        *("launch", "experiment=command", command, SANDBOX, NEVER, "--wait"),
        *("resources.tasks_per_node=2", "+resources.additional_parameters.gpus_per_task=1"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = project.hpckit("logs", "--rank", "all").stdout
    assert [line.rpartition("GPUS ")[2] for line in said.splitlines() if "GPUS " in line] == ["0,1", "0,1"], (
        said
    )


@pytest.mark.release
@pytest.mark.main
def test_launch_makes_a_sweep_one_array(sandbox: Any, project: Any) -> None:
    """A sweep over two keys of two-node runs is one array whose elements all complete.

    Its ranks have their secret variables, of which Slurm knows nothing.
    """
    printed = project.json(
        *("launch", "-m", *FUNCTION, "entry_point=task:fine", "resources.nodes=2"),
        *(f"+env.HF_TOKEN={TOKEN}", f"+cluster.env.SITE_PASSWORD={TOKEN}"),
        *("seed=1,2", "+size=range(1,2)"),
    )
    script = sandbox.slurm("scontrol", "write", "batch_script", printed["jobs"][0], "-")
    assert "#SBATCH" in script
    assert TOKEN not in script + sandbox.slurm("scontrol", "show", "job", printed["jobs"][0])
    assert len(printed["jobs"]) == 1
    assert [run["job"] for run in printed["runs"]] == [f"{printed['jobs'][0]}_{index}" for index in range(2)]
    assert printed["runs"][1]["overrides"][-2:] == ["seed=2", "+size=1"]
    status = project.ended()
    assert [run["state"] for run in status["runs"]] == ["completed"] * 2
    assert all(run["metrics"]["total"] == 2 for run in status["runs"])
    assert all(run["metrics"]["token"] == len(TOKEN) for run in status["runs"])
    states = sacct_states(sandbox, printed["jobs"][0])
    assert sorted(states) == sorted(run["job"] for run in printed["runs"])
    assert set(states.values()) == {"COMPLETED"}
    table = project.hpckit("results", "--csv").stdout.splitlines()
    assert len(table) == 3
    assert "seed" in table[0]


@pytest.mark.release
@pytest.mark.main
def test_render_and_sbatch_by_hand_is_a_launch(sandbox: Any, project: Any) -> None:
    """A rendered script that is sent by hand runs the same frozen folder; verbs treat it alike."""
    done = project.hpckit("render", *FUNCTION, "entry_point=task:fine", "resources.nodes=2")
    assert done.returncode == 0, done.stderr
    assert [run["state"] for run in project.look()["runs"]] == ["pending"]
    (script,) = project.launch_folder().glob("*.sbatch")
    job = sandbox.slurm("sbatch", "--parsable", str(script)).strip()
    status = project.ended()
    (run,) = status["runs"]
    assert (run["state"], run["job"]) == ("completed", job)
    assert run["metrics"]["total"] == 2
    assert sacct_states(sandbox, job) == {job: "COMPLETED"}


@pytest.mark.main
def test_raising_task_is_failed_for_everybody(sandbox: Any, project: Any) -> None:
    """A raising task: Slurm says FAILED, afterok does not fire, the user sees their traceback."""
    printed = project.json("launch", *FUNCTION, "entry_point=task:boom")
    job = printed["jobs"][0]
    after = sandbox.slurm(
        *("sbatch", "--parsable", f"--dependency=afterok:{job}", "-o", "/dev/null", "--wrap", "true")
    ).strip()
    status = project.ended()
    (run,) = status["runs"]
    assert (run["state"], run["exit_code"]) == ("failed", 1)
    assert run["failure"]["cause"] == "exception"
    assert (run["failure"]["message"], run["failure"]["step"]) == ("ValueError: boom at 2", 2)
    assert sacct_states(sandbox, job) == {job: "FAILED"}

    def held() -> bool:
        text: str = sandbox.slurm("squeue", "-h", "-o", "%T %r", "-j", after)
        return text.split() == ["PENDING", "DependencyNeverSatisfied"]

    sandbox.wait_until(held, "the dependent job is held for ever")
    sandbox.slurm("scancel", after)
    shown = project.hpckit("status").stdout
    assert "ValueError: boom at 2" in shown
    assert "task.py" in shown
    logs = project.hpckit("logs").stdout
    assert "Traceback" in logs
    assert "raise ValueError" in logs


@pytest.mark.release
@pytest.mark.main
def test_killed_rank_fails_the_run_and_is_named(sandbox: Any, project: Any) -> None:
    """SIGKILL of one rank ends the run within the grace period; rank, node and signal are told."""
    done = project.hpckit(
        *("launch", *FUNCTION, "entry_point=task:killed", NEVER, "--wait"),
        *("resources.nodes=2", "runtime.stop_grace_s=2"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (run,) = project.look()["runs"]
    assert (run["state"], run["exit_code"]) == ("failed", 137)
    assert run["failure"]["message"] == "rank 1 was killed by SIGKILL"
    assert run["failure"]["node"] == run["nodes"][1]
    assert sacct_states(sandbox, run["job"]) == {run["job"]: "FAILED"}


@pytest.mark.release
@pytest.mark.main
def test_queued_run_is_frozen(sandbox: Any, project: Any) -> None:
    """Editing conf/ and code while a run waits in the queue changes nothing in it."""
    project.write(
        "conf/experiment/mine.yaml", "# @package _global_\nname: mine\nentry_point: mine:main\nlr: 0.1\n"
    )
    project.write("mine.py", "def main(config, run): run.log(step=0, lr=config.lr, code=1)\n")
    blocker = sandbox.slurm("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 300").strip()
    project.json(*("launch", "experiment=mine", SANDBOX, f"resources.dependency=afterany:{blocker}"))
    assert project.look()["runs"][0]["state"] == "pending"
    project.write("conf/experiment/mine.yaml", "# @package _global_\nname: mine\nlr: 9\n")
    project.write("mine.py", "def main(config, run): run.log(step=0, lr=-1, code=2)\n")
    sandbox.slurm("scancel", blocker)
    (run,) = project.ended()["runs"]
    assert run["state"] == "completed"
    assert run["metrics"] == {"lr": 0.1, "code": 1}


def test_cancel_reaches_waiting_and_running_runs(sandbox: Any, project: Any) -> None:
    """Cancelling a sweep ends the running elements and takes the waiting ones out of the queue."""
    project.json(
        *("launch", "-m", "experiment=command", SANDBOX, "command=[sleep,600]"),
        *("seed=1,2,3", "resources.array_parallelism=2"),
    )

    def two_run() -> bool:
        states = [run["state"] for run in project.look()["runs"]]
        return sorted(states) == ["pending", "running", "running"]

    sandbox.wait_until(two_run, "two of three runs run")
    assert project.hpckit("cancel").returncode == 0
    states = [run["state"] for run in project.ended()["runs"]]
    assert states == ["cancelled"] * 3
    launch = project.json("ls")["launches"][0]["launch"]
    sandbox.wait_until(
        lambda: not sandbox.slurm("squeue", "-h", f"--name={launch}").strip(), "the queue is empty"
    )


@thorough
def test_preempted_run_is_started_again(sandbox: Any, project: Any) -> None:
    """A preempted run is requeued and completes in its second attempt, in the same folder."""
    project.write("wait.sh", '#!/bin/sh\nmkdir "$HPCKIT_RUN_DIR/begun" && sleep 600\nexit 0\n')
    project.json(
        "launch",
        "experiment=command",
        SANDBOX,
        "command=./wait.sh",
        "resources.nodes=4",
        "resources.cpus_per_task=16",
    )
    run_folder = project.launch_folder() / "runs" / "00000"
    sandbox.wait_until((run_folder / "begun").exists, "the run waits")
    urgent = sandbox.slurm(
        *(
            "sbatch",
            "--parsable",
            "-p",
            "urgent",
            "-N4",
            "--exclusive",
            "-o",
            "/dev/null",
            "--wrap",
            "sleep 1",
        )
    ).strip()
    assert sacct_states(sandbox, urgent) == {urgent: "COMPLETED"}
    (run,) = project.ended()["runs"]
    assert (run["state"], run["attempt"]) == ("completed", 2)


def test_unknown_partition_is_refused_by_slurm(sandbox: Any, project: Any) -> None:
    """A partition that Slurm does not have: its own words, exit code 3, nothing in the queue."""
    before = set(sandbox.slurm("squeue", "-h", "--me", "-o", "%i").split())
    done = project.hpckit(
        *("launch", "--no-check", *FUNCTION, "entry_point=task:fine"),
        *("cluster.partitions=[]", "resources.partition=nowhere"),
    )
    assert done.returncode == 3
    assert "invalid partition" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    # What was on its way out before may be gone by now.
    assert set(sandbox.slurm("squeue", "-h", "--me", "-o", "%i").split()) <= before


def test_partition_outside_the_cluster_is_refused_before_slurm(sandbox: Any, project: Any) -> None:
    """A partition that conf/cluster does not list is a configuration error that lists them."""
    done = project.hpckit("launch", *FUNCTION, "entry_point=task:fine", "resources.partition=nowhere")
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "batch" in done.stderr
    assert "urgent" in done.stderr
    assert not project.outputs.exists()
    assert sandbox.status()["state"] == "up"


def test_controller_away_is_exit_code_3(sandbox: Any, project: Any) -> None:
    """With slurmctld stopped, launch says so with exit code 3; reading our record still works."""
    sandbox.act("stop-controller")
    try:
        done = project.hpckit("launch", *FUNCTION, "entry_point=task:fine")
        status = project.hpckit("status", timeout=120)
        listing = project.hpckit("ls")
    finally:
        sandbox.act("start-controller")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert status.returncode in {0, 2}
    assert listing.returncode == 0


def test_moved_folder_is_said_by_the_node(sandbox: Any, project: Any, tmp_path: Path) -> None:
    """A node that cannot read the frozen folder says so in the job's own output, exit code 66."""
    assert project.hpckit("render", *FUNCTION, "entry_point=task:fine").returncode == 0
    folder = project.launch_folder()
    (script,) = folder.glob("*.sbatch")
    text = script.read_text()
    folder.rename(tmp_path / "elsewhere")
    moved = tmp_path / "moved.sbatch"
    lines = [line for line in text.splitlines() if not line.startswith(("#SBATCH --chdir", "#SBATCH --o"))]
    moved.write_text("\n".join(lines) + "\n")
    output = tmp_path / "out.txt"
    done = sandbox.try_slurm("sbatch", "--wait", "-D", str(tmp_path), "-o", str(output), str(moved))
    assert done.returncode == 66, done.stderr
    said = output.read_text()
    assert "cannot read the frozen launch folder" in said
    assert "output_dir" in said


RANKS = """
import json, sys
from dataclasses import asdict
from hpckit.runtime.environ import copy_environment, rank_info
print(json.dumps(asdict(rank_info(copy_environment()))))
"""


def _rank_infos(sandbox: Any, folder: Path, sbatch: list[str], srun: list[str]) -> list[Any]:
    """Ask every task of a step inside a job which rank it is."""
    script = folder / "ranks.py"
    script.write_text(RANKS)
    batch = folder / "ranks.sh"
    words = " ".join(["srun", *srun, sys.executable, str(script)])
    batch.write_text(f"#!/bin/bash\n{words}\n")
    output = folder / "ranks.txt"
    done = sandbox.try_slurm("sbatch", "--wait", "-D", str(folder), "-o", str(output), *sbatch, str(batch))
    assert done.returncode == 0, output.read_text()
    said = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
    return sorted(said, key=lambda one: one["rank"])


@pytest.mark.parametrize(
    ("sbatch", "srun", "shape"),
    [
        (["-N3", "-n5"], [], [(0, 3), (0, 3), (0, 3), (1, 1), (2, 1)]),
        (["-N2"], [], [(0, 1), (1, 1)]),
        (["-N3"], ["-N2", "-n2", "-r1"], [(0, 1), (1, 1)]),
        (["-N1", "-n2", "--gpus-per-task=1"], [], [(0, 2), (0, 2)]),
    ],
    ids=["uneven", "N2-without-n", "relative", "gpus-per-task"],
)
def test_rank_info_agrees_with_a_real_step(
    sandbox: Any, tmp_path: Path, sbatch: list[str], srun: list[str], shape: list[tuple[int, int]]
) -> None:
    """On a real step, ranks, nodes and local sizes are what Slurm really started."""
    infos = _rank_infos(sandbox, tmp_path, sbatch, srun)
    assert [info["rank"] for info in infos] == list(range(len(shape)))
    assert all(info["world_size"] == len(shape) for info in infos)
    found = [(info["node_rank"], info["local_world_size"]) for info in infos]
    if shape[0] == (0, 3):
        # Which node gets the three tasks is Slurm's choice; that one does is not.
        assert sorted(size for _, size in found) == sorted(size for _, size in shape)
    else:
        assert found == shape


def test_batch_shell_is_refused_as_a_rank(sandbox: Any, tmp_path: Path) -> None:
    """A plain `python train.py` in a batch script of several tasks is told to use srun."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    output = tmp_path / "out.txt"
    sandbox.try_slurm(
        *("sbatch", "--wait", "-N2", "-D", str(tmp_path), "-o", str(output)),
        *("--wrap", f"{sys.executable} {script}"),
    )
    assert "RankInfoError" in output.read_text()
    assert "SLURM_STEP_ID is not set" in output.read_text()


def test_attach_under_real_srun(sandbox: Any, tmp_path: Path) -> None:
    """A script that attaches under bare srun reduces over two nodes."""
    script = tmp_path / "attach.py"
    script.write_text(
        "import hpckit, torch, torch.distributed as dist\n"
        "run = hpckit.attach()\ntotal = torch.ones(1)\ndist.all_reduce(total)\n"
        "run.log(step=0, total=total)\ndist.destroy_process_group()\n"
    )
    done = run_to_end(
        [str(sandbox.bin_dir / "srun"), "-N2", "-n2", sys.executable, str(script)], cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["total"] == 2.0


def _slurmd_of(node: str) -> str:
    """Return the process id of a node's slurmd."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"slurmd") and node.encode() in words:
            return folder.name
    pytest.fail(f"node {node} has no slurmd")


@thorough
def test_node_without_the_folder_is_named(sandbox: Any, project: Any) -> None:
    """Where the second node does not see the launch folder, the failure says which node it is."""
    project.outputs.mkdir()
    inside = ["nsenter", "--mount", "--target", _slurmd_of("n2")]
    hide = [*inside, "mount", "-t", "tmpfs", "none", str(project.outputs)]
    subprocess.run(hide, check=True)
    try:
        done = project.hpckit(
            *("launch", *FUNCTION, "entry_point=task:fine", NEVER, "--wait"),
            *("resources.nodes=2", "resources.nodelist='n[1-2]'", "runtime.agent_timeout_s=40"),
        )
    finally:
        subprocess.run([*inside, "umount", str(project.outputs)], check=True)
    assert done.returncode == 1, done.stdout + done.stderr
    (run,) = project.look()["runs"]
    assert run["failure"]["cause"] == "frozen_folder"
    assert "node n2 cannot read its frozen folder" in run["failure"]["message"]
    assert "output_dir" in run["failure"]["message"]
    assert sandbox.status()["state"] == "up"


@thorough
def test_status_says_when_slurm_expects_to_start_what_waits(sandbox: Any, project: Any) -> None:
    """By Slurm's own plan, and beside it why the job waits."""
    later = "+resources.additional_parameters.begin=now+2hours"
    units = ("resources.timeout_min=1h", "resources.mem_gb=512MB")
    job = project.json("launch", *FUNCTION, "entry_point=task:fine", later, *units)["jobs"][0]

    def told() -> bool:
        return "; expected to start " in project.hpckit("status", "--fresh").stdout

    sandbox.wait_until(told, "Slurm has planned the job")
    said = project.hpckit("status").stdout
    assert "Slurm: BeginTime: its start time has not been reached; expected to start" in said
    asked = sandbox.slurm("squeue", "-h", "-o", "%l %m", "-j", job)
    assert asked.split() == ["1:00:00", "512M"]
    sandbox.slurm("scancel", job)
