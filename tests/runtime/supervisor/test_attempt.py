"""Promises of a whole attempt: real supervisor, real agent, real ranks, real process groups."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import LIMIT_S, until

from hpckit.model.events import RankExited
from hpckit.model.failure import Cause, ExitReason
from hpckit.model.launch import Cluster, ClusterKind, Recovery, Resources
from hpckit.model.states import RunState
from hpckit.record.attempts import read_step_and_total_steps
from hpckit.record.launches import read_run_records
from hpckit.record.process import is_process_alive
from hpckit.record.store import read_events

pytestmark = pytest.mark.training

TRAIN = """
import torch, torch.distributed as dist

def main(config, run):
    total = torch.tensor([float(run.rank + 1)])
    dist.all_reduce(total)
    for step in run.steps(5):
        run.log(loss=1.0 / (step + 1), total=total)
    print("draw", torch.rand(1).item(), "seed", config.seed, config["seed"])
"""


def test_attempt_trains_in_one_process_group(workshop: Any, ranks: Any) -> None:
    """Two ranks reduce over one group, are seeded alike, log, and complete."""
    ended = workshop.attempt(TRAIN, **ranks(2, seed=3))
    assert ended.code == 0, ended.output
    record = ended.record
    assert (record.state, record.attempt, record.round) == (RunState.completed, 1, 0)
    assert record.step == 4
    assert record.metrics["total"] == 3.0
    assert record.metrics["loss"] == pytest.approx(0.2)
    assert ended.log(0) == ended.log(1)
    assert "seed 3 3" in ended.log(0)


def test_attempt_keeps_its_folders_private(workshop: Any, ranks: Any) -> None:
    """Everything an attempt writes is the user's alone, and the secret stands in one file."""
    ended = workshop.attempt("def main(config, run): pass\n", **ranks(1))
    secret = ended.paths.secret.read_text().strip()
    files = [path for path in ended.paths.folder.rglob("*") if path.is_file()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files), files
    assert ended.paths.folder.stat().st_mode & 0o077 == 0
    assert [path for path in files if secret in path.read_text()] == [ended.paths.secret]


RAISE = """
def inner(rank):
    raise ValueError(f"boom on {rank}")

def main(config, run):
    for step in run.steps(10):
        if step == 3 and run.rank == 1:
            inner(run.rank)
        import torch.distributed as dist
        dist.barrier()
"""


def test_attempt_shows_the_users_own_traceback(workshop: Any, ranks: Any) -> None:
    """A raising rank is named with its step; its traceback begins in the user's file."""
    ended = workshop.attempt(RAISE, **ranks(2))
    assert ended.code == 1
    failure = ended.record.failure
    assert failure is not None
    assert (failure.cause, failure.rank, failure.step) == (Cause.exception, 1, 3)
    assert failure.message == "ValueError: boom on 1"
    assert failure.traceback is not None
    frames = [line for line in failure.traceback.splitlines() if line.startswith("  File")]
    assert len(frames) == 2
    assert all("task.py" in frame for frame in frames)
    assert "boom on 1" in ended.log(1)
    assert "hpckit/runtime" not in ended.log(1)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys\ndef main(config, run): sys.exit(7)\n", 7),
        ("import os\ndef main(config, run): os.kill(os.getpid(), 9)\n", 137),
        ("import no_such_module\n", 1),
        ("def other(config, run): pass\n", 1),
    ],
    ids=["exit-code", "signal", "import-error", "no-such-function"],
)
def test_attempt_ends_with_the_ranks_code(workshop: Any, ranks: Any, code: str, expected: int) -> None:
    """The attempt's exit code is the failing rank's, as a shell would report it."""
    ended = workshop.attempt(code, **ranks(1))
    assert ended.code == expected, ended.output
    assert ended.record.state is RunState.failed
    assert ended.record.exit_code == expected


KILL_ONCE = """
import os, pathlib, torch.distributed as dist

def main(config, run):
    mark = run.folder / "killed"
    if run.rank == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    dist.barrier()
    run.log(step=0, rounds=run.info.restart_count)
"""


def test_attempt_starts_a_new_round_after_a_kill(workshop: Any, ranks: Any) -> None:
    """With a round left, a killed rank costs a round inside the same attempt, not the run."""
    ended = workshop.attempt(KILL_ONCE, **ranks(2, recovery=Recovery(restarts={"signal": 1})))
    assert ended.code == 0, ended.output
    assert (ended.record.attempt, ended.record.round) == (1, 1)
    assert ended.record.metrics["rounds"] == 1
    first = [exit_ for exit_ in ended.exits() if exit_.signal == "SIGKILL" and not exit_.stopped]
    assert [exit_.rank for exit_ in first] == [1]


def test_attempt_runs_commands_without_a_shell(workshop: Any, ranks: Any) -> None:
    """A command gets torchrun's variables and its words as they are: nothing is expanded."""
    script = "import os, sys\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1:])\n"
    command = ["python", "task.py", "$(touch injected)", "a b", "*"]
    ended = workshop.attempt(script, **ranks(2, entry_point=None, command=command))
    assert ended.code == 0, ended.log(0)
    assert ended.log(1) == "1 2 ['$(touch injected)', 'a b', '*']\n"
    assert not list(Path(ended.launch.folder).rglob("injected"))


UNCHANGED_DDP = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size() == int(os.environ["WORLD_SIZE"])
dist.destroy_process_group()
"""


def test_attempt_runs_an_unchanged_ddp_script(workshop: Any, ranks: Any) -> None:
    """A script written for torchrun finds its process group through env:// as it stands."""
    ended = workshop.attempt(UNCHANGED_DDP, **ranks(2, entry_point=None, command="python task.py"))
    assert ended.code == 0, ended.log(0)
    assert ended.record.state is RunState.completed


ATTACHED = """
import hpckit, torch, torch.distributed as dist
run = hpckit.attach()
total = torch.ones(1)
dist.all_reduce(total)
for step in run.steps(3):
    run.log(total=total)
dist.destroy_process_group()
"""


@thorough
def test_attempt_lets_a_command_attach(workshop: Any, ranks: Any) -> None:
    """`hpckit.attach()` in a command gives it the run: group, steps and metrics."""
    ended = workshop.attempt(ATTACHED, **ranks(2, entry_point=None, command="python task.py"))
    assert ended.code == 0, ended.log(0)
    assert ended.record.metrics == {"total": 2.0}
    assert ended.record.step == 2


@pytest.mark.parametrize(
    ("command", "code"), [("./nothing-here", 127), ("./task.py", 126)], ids=["missing", "not-exec"]
)
def test_attempt_says_which_command_it_cannot_start(
    workshop: Any, ranks: Any, command: str, code: int
) -> None:
    """A command that does not exist or may not run: its name, and the shell's exit code."""
    ended = workshop.attempt("", **ranks(1, entry_point=None, command=command))
    assert ended.code == code
    assert ended.record.failure is not None
    assert command in ended.record.failure.message
    assert "Traceback" not in ended.log(0)


SLEEP = """
import pathlib, time, subprocess
def main(config, run):
    child = subprocess.Popen(["sleep", "600"])
    (run.folder / f"child-{run.rank}").write_text(str(child.pid))
    for step in run.steps(6000):
        time.sleep(0.1)
"""


def _wait_for(path: Path) -> str:
    return str(until(lambda: path.exists() and path.read_text()))


def test_attempt_leaves_nothing_behind_after_sigterm(workshop: Any, ranks: Any) -> None:
    """A notice ends ranks and their children; the run is interrupted, exit code 143."""
    launch = workshop.freeze(SLEEP, **ranks(2))
    process = workshop.start(launch)
    folder = launch.paths.run(0).folder
    children = [int(_wait_for(folder / f"child-{rank}")) for rank in range(2)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert read_run_records(launch)[0].state is RunState.interrupted
    assert not any(_running(pid) for pid in children)


def test_ranks_die_with_their_supervisor(workshop: Any, ranks: Any) -> None:
    """SIGKILL of the supervisor leaves no rank training on unsupervised."""
    launch = workshop.freeze(SLEEP, **ranks(1))
    process = workshop.start(launch)
    child = int(_wait_for(launch.paths.run(0).folder / "child-0"))
    process.kill()
    process.communicate(timeout=LIMIT_S)
    until(lambda: not _running(child))
    record = read_run_records(launch)[0]
    assert record.state is RunState.running
    assert record.supervisor is not None
    assert is_process_alive(*record.supervisor) is False


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_attempt_names_the_agents_that_did_not_come(workshop: Any, ranks: Any) -> None:
    """A step that ends before its agents report is a failure with the step's own words."""
    fake = Path(workshop.project.parent / "bin")
    fake.mkdir()
    (fake / "srun").write_text("#!/bin/sh\necho 'srun: error: no such luck' >&2\nexit 5\n")
    (fake / "srun").chmod(0o700)
    cluster = Cluster(kind=ClusterKind.slurm, bin_dir=str(fake))
    settings = ranks(1, cluster=cluster) | {"resources": Resources(nodes=2)}
    ended = workshop.attempt("", environ={"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[1-2]"}, **settings)
    assert ended.code == 1
    failure = ended.record.failure
    assert failure is not None
    assert failure.cause is Cause.agents_missing
    assert "0 of 2 nodes reported; missing: n[1-2]" in failure.message
    assert failure.node is None, "what no node can do is no node's fault"
    assert "no such luck" in failure.message
    assert "exit code 5" in failure.message


TALK = """
import logging

def main(config, run):
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("my.module").info("said by the module")
    run.logger.info("said by the run")
"""


def test_attempt_leaves_logging_to_the_users_code(workshop: Any, ranks: Any) -> None:
    """What their modules log is in the rank's log once, and so is what the run's logger says."""
    ended = workshop.attempt(TALK, **ranks(1))
    assert ended.code == 0, ended.output
    log = ended.log(0)
    assert [log.count("said by the module"), log.count("said by the run")] == [1, 1], log


def test_attempt_runs_the_frozen_code(workshop: Any, ranks: Any) -> None:
    """What is edited after the freeze changes nothing."""
    launch = workshop.freeze("def main(config, run): run.log(step=0, version=1)\n", **ranks(1))
    (workshop.project / "task.py").write_text("raise SystemExit(9)\n")
    process = workshop.start(launch)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert read_run_records(launch, metrics=True)[0].metrics == {"version": 1}


def test_attempt_hides_nothing_in_arguments(workshop: Any, ranks: Any) -> None:
    """The attempt's secret is in no process's arguments or environment."""
    launch = workshop.freeze(SLEEP, **ranks(1))
    process = workshop.start(launch)
    _wait_for(launch.paths.run(0).folder / "child-0")
    secret = launch.paths.run(0).attempt(1).secret.read_text().strip().encode()
    texts = []
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name != str(os.getpid()):
            for name in ("cmdline", "environ"):
                try:
                    texts.append((folder / name).read_bytes())
                except OSError:
                    continue
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert texts
    assert not any(secret in text for text in texts)


ODD = {
    "class Stop(BaseException): pass\ndef main(config, run): raise Stop('a')\n": "Stop: a",
    "import sys\ndef main(config, run): sys.exit('why')\n": "SystemExit: why",
    "def main(config, run): raise ValueError('\\udcff')\n": "ValueError: ",
    "class Odd(Exception):\n    __str__ = None\ndef main(config, run): raise Odd\n": "Odd: ",
}


@pytest.mark.parametrize(
    ("code", "words"), ODD.items(), ids=["base", "exit-message", "surrogate", "broken-str"]
)
def test_attempt_records_odd_exceptions(workshop: Any, ranks: Any, code: str, words: str) -> None:
    """Whatever the user's code raises is recorded as what it is, with exit code 1."""
    ended = workshop.attempt(code, **ranks(1))
    assert ended.code == 1
    assert ended.record.failure is not None
    assert ended.record.failure.message.startswith(words)
    assert ended.record.failure.cause is Cause.exception


LINGER = """
import threading, time, torch.distributed as dist
def main(config, run):
    if run.rank == 1:
        threading.Thread(target=time.sleep, args=(600,)).start()
        raise ValueError("with a thread left")
    dist.barrier()
"""


def test_attempt_ends_though_a_thread_keeps_the_rank(workshop: Any, ranks: Any) -> None:
    """A raising rank whose threads go on does not hold up its peers and the run."""
    ended = workshop.attempt(LINGER, **ranks(2))
    assert ended.code == 1
    assert ended.record.failure is not None
    assert ended.record.failure.message == "ValueError: with a thread left"


GRACEFUL = """
import signal, sys, time
def main(config, run):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    (run.folder / "child-0").write_text("ready")
    time.sleep(600)
"""


def test_attempt_cut_short_is_not_completed(workshop: Any, ranks: Any) -> None:
    """Ranks that answer a notice with exit code 0 were still interrupted."""
    launch = workshop.freeze(GRACEFUL, **ranks(1))
    process = workshop.start(launch)
    _wait_for(launch.paths.run(0).folder / "child-0")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert read_run_records(launch)[0].state is RunState.interrupted


def test_attempt_survives_a_record_it_cannot_write(workshop: Any, ranks: Any) -> None:
    """Losing the folder of exit records costs no exit code and hangs nothing."""
    script = '#!/bin/sh\nrm -rf "$HPCKIT_ATTEMPT_DIR/rounds"\nexit 3\n'
    (workshop.project).mkdir()
    (workshop.project / "gone.sh").write_text(script)
    (workshop.project / "gone.sh").chmod(0o755)
    ended = workshop.attempt("", **ranks(1, entry_point=None, command="./gone.sh"))
    assert ended.code == 3
    assert ended.record.exit_code == 3


def test_attempt_hears_a_notice_it_cannot_record(workshop: Any, ranks: Any) -> None:
    """With its journal gone, SIGTERM still ends the attempt, and the batch log says why."""
    launch = workshop.freeze(SLEEP, **ranks(1))
    process = workshop.start(launch)
    child = int(_wait_for(launch.paths.run(0).folder / "child-0"))
    journal = launch.paths.run(0).attempt(1).events
    journal.unlink()
    journal.mkdir()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert "cannot record notice_heard" in output
    assert not _running(child)


def test_attempt_says_that_it_cannot_begin(workshop: Any, ranks: Any) -> None:
    """An attempts folder that cannot be written is one clear error, exit code 1."""
    launch = workshop.freeze("", **ranks(1))
    launch.paths.run(0).folder.parent.write_text("in the way")
    process = workshop.start(launch)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "the attempt cannot be recorded" in output
    assert "Traceback" not in output


def test_attempt_leaves_no_child_of_a_rank_that_ended(workshop: Any, ranks: Any) -> None:
    """What a command left in the background ends with its rank, also after success."""
    command = ["bash", "-c", "sleep 600 & echo $! > $HPCKIT_RUN_DIR/child; exit 0"]
    ended = workshop.attempt("", **ranks(1, entry_point=None, command=command))
    assert ended.code == 0
    child = int((Path(ended.launch.folder) / "runs" / "00000" / "child").read_text())
    assert not _running(child)


def test_attempt_believes_no_rank_variables_of_its_surroundings(workshop: Any, ranks: Any) -> None:
    """RANK and its like in the submitter's shell, or an enclosing job, change nothing."""
    surroundings = {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "3",
        "MASTER_PORT": "1",
        "HPCKIT_RANK": "5",
        "TORCHELASTIC_RUN_ID": "x",
        "SLURM_JOB_ID": "999",
        "SLURM_ARRAY_JOB_ID": "990",
        "SLURM_ARRAY_TASK_ID": "4",
    }
    ended = workshop.attempt(TRAIN, environ=surroundings, **ranks(2))
    assert ended.code == 0, ended.output
    assert ended.record.metrics["total"] == 3.0
    assert ended.record.job is None


def test_attempt_takes_path_from_the_configuration(workshop: Any, ranks: Any) -> None:
    """PATH and PYTHONPATH set in `env` reach the ranks, behind the frozen code."""
    command = ["sh", "-c", "echo $PATH; echo $PYTHONPATH"]
    env = {"PATH": "/my/bin:/usr/bin:/bin", "PYTHONPATH": "/my/lib"}
    ended = workshop.attempt("", **ranks(1, entry_point=None, command=command, env=env))
    path, python_path = ended.log(0).splitlines()
    assert path.endswith(":/my/bin:/usr/bin:/bin")
    assert python_path.endswith(":/my/lib")


DDP = """
import torch
from torch.nn.parallel import DistributedDataParallel
def main(config, run):
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.state(model=model, optimizer=optimizer)
    for step in run.steps(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


@thorough
def test_ddp_ranks_leave_in_peace(workshop: Any, ranks: Any) -> None:
    """A trained DDP model does not abort its rank at the interpreter's end (gloo, torch 2.13)."""
    codes = [workshop.attempt(DDP, **ranks(2)).code for _ in range(4)]
    assert codes == [0] * 4


LEAVE = """
import time, torch.distributed as dist
def main(config, run):
    try:
        for step in run.steps(100_000):
            if step == 3:
                (run.folder / f"child-{run.rank}").write_text("ready")
            time.sleep(0.01 * (1 + run.rank))
            dist.barrier()
        run.log(step=0, finished=1)
    finally:
        (run.folder / f"left-{run.rank}").write_text(str(run.step))
"""


STUCK = """
import time
def main(config, run):
    for step in run.steps(100_000):
        time.sleep(600 if step == 60 else 0.004)
"""


def test_step_that_hangs_is_the_one_that_is_shown(workshop: Any, ranks: Any) -> None:
    """Neither ranks nor the supervisor write of each step, but the latest one is always told."""
    launch = workshop.freeze(STUCK, **ranks(2))
    process = workshop.start(launch)
    told = launch.paths.run(0).attempt(1)
    try:
        until(lambda: read_step_and_total_steps(told)[0] == 60)
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize("whom", ["supervisor", "one rank"])
def test_ranks_leave_together_after_a_notice(workshop: Any, ranks: Any, whom: str) -> None:
    """Whoever hears, all ranks leave at one step, with their `finally` and nothing after it."""
    launch = workshop.freeze(LEAVE, **ranks(2, recovery=Recovery(restarts={"signal": 1})))
    process = workshop.start(launch)
    folder = launch.paths.run(0).folder
    for rank in range(2):
        _wait_for(folder / f"child-{rank}")
    if whom == "supervisor":
        process.send_signal(signal.SIGTERM)
    else:
        # As proctrack/linuxproc does: the whole tree is told, and the agent among it.
        for pid in _tree(process.pid)[1:]:
            os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    (record,) = read_run_records(launch, metrics=True)
    assert record.state is RunState.interrupted
    assert "finished" not in record.metrics
    left = {(folder / f"left-{rank}").read_text() for rank in range(2)}
    assert len(left) == 1
    exits = [
        event.exit
        for event in read_events(launch.paths.run(0).attempt(1).events)
        if isinstance(event, RankExited)
    ]
    assert [(exit_.reason, exit_.stopped) for exit_ in exits] == [(ExitReason.left, False)] * 2


def _tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for parent in found:
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, file.read_text().split())
    return found
