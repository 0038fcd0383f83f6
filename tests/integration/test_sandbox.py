"""The sandbox keeps its promises: real nodes, real accounting, and faults that are real ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from json_schemas import check_printed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration.conftest import Sandbox

pytestmark = pytest.mark.slurm

PYTHON = Path("/usr/bin/python3")
TICK = "while :; do date +%s.%N >> {file}; sleep 0.2; done"


@pytest.fixture
def jobs(sandbox: Sandbox) -> Iterator[list[str]]:
    """Jobs put into this list are cancelled after the test, however it ends."""
    submitted: list[str] = []
    yield submitted
    if submitted:
        sandbox.try_slurm("scancel", *submitted)


def submit(sandbox: Sandbox, jobs: list[str], script: str, *options: str) -> str:
    """Submit a one-line script that prints nowhere; returns the job's id."""
    quiet = ["--output=/dev/null", "--parsable"]
    job = sandbox.slurm("sbatch", *quiet, *options, f"--wrap={script}").strip()
    jobs.append(job)
    return job


def start_ticking(sandbox: Sandbox, jobs: list[str], file: Path, *options: str) -> str:
    """Start a job that adds a line to the file five times a second; returns its id."""
    job = submit(sandbox, jobs, TICK.format(file=file), *options)
    sandbox.wait_until(file.exists, f"job {job} ticks")
    return job


def await_ticks(sandbox: Sandbox, file: Path) -> None:
    """Wait until the file has grown: its job is alive."""
    before = file.stat().st_size
    sandbox.wait_until(lambda: file.stat().st_size > before, "the job ticks on")


@pytest.mark.release
@pytest.mark.main
@pytest.mark.skipif(not PYTHON.exists(), reason="this machine has no packaged Python")
def test_nodes_have_the_python_of_the_machine(sandbox: Sandbox) -> None:
    """Also on another Debian: virtual environments made of it would be empty there."""
    words = (str(PYTHON), "-c", "import sys; print(sys.version)")
    here = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert sandbox.slurm("srun", "--nodes=1", *words) == here


def test_status_names_every_daemon_and_node_as_alive(sandbox: Sandbox) -> None:
    """`status --json` says up only with every daemon, slurmd and link alive, as sinfo agrees."""
    said = sandbox.act("status", "--json")
    check_printed("sandbox", ("status", "--json"), said)
    status = json.loads(said)
    assert status == sandbox.status()
    assert status["state"] == "up"
    assert all(status["daemons"].values())
    assert all(node["slurmd"] and node["link"] for node in status["nodes"])
    listed = sandbox.slurm("sinfo", "--noheader", "--Node", "--format=%N", "--partition=batch")
    assert listed.split() == [node["name"] for node in status["nodes"]]


def test_nodes_have_their_own_hostname_address_and_gpus(sandbox: Sandbox) -> None:
    """A step over all nodes meets a different hostname and address on each, and its GPU mask."""
    task = "echo $(hostname) $(hostname -i) $CUDA_VISIBLE_DEVICES $(ls -x /sys/class/net)"
    size = str(len(sandbox.nodes))
    told = sandbox.slurm("srun", "-N", size, "-n", size, "--gpus-per-node=2", "--mem=100", "bash", "-c", task)
    rows = sorted(line.split() for line in told.splitlines())
    assert [row[0] for row in rows] == sorted(sandbox.nodes)
    assert len({row[1] for row in rows}) == len(sandbox.nodes)
    assert {row[2] for row in rows} <= {"0,1", "2,3", "0,2", "0,3", "1,2", "1,3"}
    assert all(row[3:] == ["eth0", "lo"] for row in rows)


def test_job_finds_the_commands_and_its_folder_at_the_same_place(
    sandbox: Sandbox, jobs: list[str], tmp_path: Path
) -> None:
    """A job on a node uses the stable command folder and writes where the submitter reads."""
    seen = tmp_path / "seen"
    script = f"{sandbox.bin_dir}/squeue --noheader --jobs=$SLURM_JOB_ID --format=%N > {seen}"
    job = submit(sandbox, jobs, script, f"--nodelist={sandbox.nodes[0]}", "--wait")
    assert seen.read_text().split() == [sandbox.nodes[0]]
    assert job.isdigit()


def test_accounting_keeps_the_exit_code_of_a_failed_job(sandbox: Sandbox, jobs: list[str]) -> None:
    """What a job exits with is what sacct says, once slurmdbd has heard of it."""
    job = submit(sandbox, jobs, "exit 3")

    def accounted() -> str:
        wanted = ["-X", "--noheader", "--parsable2", "--format=state,exitcode", f"--jobs={job}"]
        return sandbox.slurm("sacct", *wanted).strip()

    sandbox.wait_until(lambda: accounted() == "FAILED|3:0", f"sacct calls job {job} failed")


def test_unknown_account_is_refused_as_on_a_real_site(sandbox: Sandbox) -> None:
    """Associations are enforced: an account nobody made is refused at submission."""
    done = sandbox.try_slurm("sbatch", "--account=nosuch", "--wrap=true")
    assert done.returncode != 0
    assert "Invalid account" in done.stderr


def test_up_twice_changes_nothing(sandbox: Sandbox, jobs: list[str], tmp_path: Path) -> None:
    """`up` on a sandbox that is up with these options leaves daemons and jobs alone."""
    file = tmp_path / "ticks"
    job = start_ticking(sandbox, jobs, file)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in sandbox.options.items()]
    sandbox.act("up", *options)
    assert sandbox.state_of_job(job) == "RUNNING"
    await_ticks(sandbox, file)


def test_unknown_node_is_refused_with_the_names_there_are(sandbox: Sandbox) -> None:
    """A node that does not exist is an error of one line that names those that do."""
    done = sandbox.attempt("cut-node", "n99")
    assert done.returncode == 1
    assert "'n99'" in done.stderr
    assert sandbox.nodes[-1] in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_cut_node_runs_on_unheard_and_heals(sandbox: Sandbox, jobs: list[str], tmp_path: Path) -> None:
    """A cut node's job runs on while no other node reaches it; healing brings it back unharmed."""
    file, node, other = tmp_path / "ticks", sandbox.nodes[-1], sandbox.nodes[0]
    job = start_ticking(sandbox, jobs, file, f"--nodelist={node}")
    reach = ["srun", "-n1", f"--nodelist={other}", "timeout", "2", "bash", "-c", f"</dev/tcp/{node}/6818"]
    assert sandbox.try_slurm(*reach).returncode == 0
    sandbox.act("cut-node", node)
    try:
        assert sandbox.try_slurm(*reach).returncode != 0
        await_ticks(sandbox, file)
    finally:
        sandbox.act("heal-node", node)
    assert sandbox.try_slurm(*reach).returncode == 0
    assert sandbox.state_of_job(job) == "RUNNING"


def test_controller_outage_refuses_commands_but_not_jobs(
    sandbox: Sandbox, jobs: list[str], tmp_path: Path
) -> None:
    """While the controller is away nothing can be asked, jobs run on, and it finds them again."""
    file = tmp_path / "ticks"
    job = start_ticking(sandbox, jobs, file)
    sandbox.act("stop-controller")
    try:
        assert sandbox.status()["state"] == "degraded"
        assert sandbox.try_slurm("scontrol", "ping").returncode != 0
        await_ticks(sandbox, file)
    finally:
        sandbox.act("start-controller")
    assert sandbox.state_of_job(job) == "RUNNING"
    assert sandbox.status()["state"] == "up"


def test_urgent_job_preempts_a_batch_job_which_is_requeued(
    sandbox: Sandbox, jobs: list[str], tmp_path: Path
) -> None:
    """An urgent job takes the GPUs of a batch job after its grace time; that one starts again."""
    file, node = tmp_path / "starts", sandbox.nodes[1]
    place = [f"--nodelist={node}", "--gpus-per-node=4"]
    script = f"echo start ${{SLURM_RESTART_COUNT:-0}} >> {file}; trap '' TERM; sleep 300"
    job = submit(sandbox, jobs, script, *place)
    sandbox.wait_until(file.exists, f"job {job} starts")
    submit(sandbox, jobs, "sleep 1", "--partition=urgent", *place)
    twice = ["start 0", "start 1"]
    sandbox.wait_until(lambda: file.read_text().splitlines() == twice, f"job {job} starts again")


def test_killed_node_goes_down_and_revives(sandbox: Sandbox, jobs: list[str], tmp_path: Path) -> None:
    """Everything on a killed node dies at once; Slurm notices, ends its job, and takes it back."""
    file, node = tmp_path / "ticks", sandbox.nodes[-1]
    job = start_ticking(sandbox, jobs, file, f"--nodelist={node}", "--no-requeue")
    sandbox.act("kill-node", node)
    ticks = file.read_text()
    try:
        sandbox.wait_until(lambda: "down" in sandbox.state_of_node(node), f"{node} is down", patience_s=180)
        assert file.read_text() == ticks
        sandbox.wait_until(lambda: sandbox.state_of_job(job) in {"", "NODE_FAIL"}, "it fails")
    finally:
        sandbox.act("revive-node", node)
    assert sandbox.slurm("srun", "-n1", f"--nodelist={node}", "hostname").strip() == node
