"""Promises of `hpckit chaos`: faults from outside, on real processes and real files."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from cli_world import make_context
from waiting import LIMIT_S, until

from hpckit.cli.commands.act.chaos import run
from hpckit.cli.main import build_verb_parser
from hpckit.errors import ForeignError, NotFoundError, SchedulerRefusedError, UsageError
from hpckit.model import events
from hpckit.model.launch import ClusterKind
from hpckit.model.parallel.layout import Layout
from hpckit.operations.running.inject_fault import MissedError
from hpckit.record.launches import load_launch, read_run_records
from hpckit.record.process import read_process_start_id, this_host
from hpckit.record.store import read_events, read_json_lines
from hpckit.runtime.checkpoint.folder import CheckpointFolder
from hpckit.runtime.checkpoint.manifest import NAME, FileSum, Manifest, commit_checkpoint

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a starter of sleeping processes that end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(**variables: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", "import time; time.sleep(600)"]
        environ = {**os.environ, **variables}
        process = subprocess.Popen(argv, env=environ, start_new_session=True)
        started.append(process)
        # The kernel closes the pipe that Popen waits for before it shows the new environment.
        until(lambda: Path(f"/proc/{process.pid}/environ").read_bytes())
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def scene(desk: Any, writer: Any, start: Any) -> Any:
    """Return a maker of a launch that runs: its supervisor and two ranks are real processes."""

    def make(**frozen: Any) -> tuple[Any, list[subprocess.Popen[bytes]]]:
        job = frozen.pop("job", None)
        launch = desk.freeze(**frozen)
        if job is not None:
            desk.tell(launch, events.Submitted(at=launch.created_at, job_index=0, job=job))
        supervisor = start()
        process = (this_host(), supervisor.pid, read_process_start_id(supervisor.pid) or "")
        writer(launch=launch).start(process=process, job=job)
        attempt = launch.paths.run(0).attempt(1).folder
        ranks = [start(HPCKIT_ATTEMPT_DIR=str(attempt), HPCKIT_RANK=str(rank)) for rank in range(2)]
        return launch, [supervisor, *ranks]

    return make


def injected(launch: Any) -> list[tuple[str, str]]:
    """Return fault and outcome of every line of the run's chaos.jsonl."""
    return [(line["fault"], line["outcome"]) for line in read_json_lines(log_of(launch))]


def log_of(launch: Any) -> Path:
    """Return where the record of faults lies."""
    path: Path = launch.paths.run(0).chaos_log
    return path


def test_chaos_kills_the_rank_it_is_told_and_records_it(desk: Any, scene: Any) -> None:
    """That rank dies of SIGKILL, the other lives; the run's record says what was done."""
    launch, (supervisor, first, second) = scene()
    said = desk.say("chaos", "kill", "rank=1")
    assert second.wait(timeout=LIMIT_S) == -signal.SIGKILL
    assert (first.poll(), supervisor.poll()) == (None, None)
    assert said.code == 0
    assert f"SIGKILL to rank 1 (pid {second.pid} on n2)" in said.out
    assert injected(launch) == [("kill rank=1", "injected")]


def test_chaos_takes_several_faults_and_a_reference(desk: Any, scene: Any) -> None:
    """A run by name, then as many faults as wanted, in order; --json gives one object each."""
    launch, (supervisor, first, _) = scene()
    said = desk.say("chaos", f"{launch.id}.0", "abort", "term supervisor", "--json")
    assert first.wait(timeout=LIMIT_S) == -signal.SIGABRT
    assert supervisor.wait(timeout=LIMIT_S) == -signal.SIGTERM
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [line["fault"] for line in lines] == ["abort", "term supervisor"]
    assert {line["run"] for line in lines} == {f"{launch.id}.0"}


def test_chaos_stops_and_continues(desk: Any, scene: Any) -> None:
    """SIGSTOP freezes a rank, SIGCONT lets it go on."""
    _, (_, rank, _) = scene()
    desk.say("chaos", "stop")
    until(lambda: "State:\tT" in Path(f"/proc/{rank.pid}/status").read_text())
    desk.say("chaos", "cont")
    until(lambda: "State:\tT" not in Path(f"/proc/{rank.pid}/status").read_text())


def test_chaos_dry_run_does_nothing_but_look(desk: Any, scene: Any) -> None:
    """The very process is named, and lives on; nothing is recorded."""
    launch, (_, rank, _) = scene()
    commit_one(launch)
    said = desk.say("chaos", "kill rank=0", "tear", "--dry-run")
    assert f"dry run: SIGKILL to rank 0 (pid {rank.pid} on n1)" in said.out
    assert f"dry run: removed {newest(launch).name}/{NAME}" in said.out
    assert (rank.poll(), (newest(launch) / NAME).exists()) == (None, True)
    assert not log_of(launch).exists()


def test_chaos_that_finds_nothing_to_hit_fails(desk: Any, scene: Any) -> None:
    """A rank without a process, and one that there never was, are errors with exit code 1."""
    launch, (_, rank, _) = scene()
    rank.kill()
    rank.wait()
    for words in ("kill rank=0", "kill rank=7", "kill agent"):
        with pytest.raises(MissedError) as caught:
            desk.say("chaos", words)
        assert caught.value.exit_code == 1
    assert injected(launch) == []


def test_chaos_refuses_a_run_that_is_not_running(desk: Any, writer: Any) -> None:
    """Nothing is done to what waits or is over."""
    launch = desk.freeze()
    with pytest.raises(UsageError, match=r"is not running \(pending\)"):
        desk.say("chaos", "kill")
    attempt = writer(launch=launch)
    attempt.start()
    attempt.complete()
    with pytest.raises(UsageError, match=r"is not running \(completed\)"):
        desk.say("chaos", "kill")


def test_chaos_refuses_to_guess_between_runs(desk: Any, scene: Any, writer: Any) -> None:
    """Where two runs of a launch run, the user has to name one."""
    launch, processes = scene(sweep=[("a=1",), ("a=2",)])
    pid = processes[0].pid
    writer(launch=launch, index=1).start(process=(this_host(), pid, read_process_start_id(pid) or ""))
    with pytest.raises(UsageError, match="several"):
        desk.say("chaos", "kill")
    assert desk.say("chaos", f"{launch.id}.0", "kill").code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_chaos_refuses_the_run_of_somebody_else(desk: Any, scene: Any) -> None:
    """Faults are for runs of one's own, also for root."""
    launch, (_, rank, _) = scene()
    os.chown(launch.folder, 12345, -1)
    with pytest.raises(ForeignError, match="belongs to uid 12345"):
        desk.say("chaos", launch.id, "kill")
    assert rank.poll() is None


def test_chaos_refuses_a_run_of_another_host(desk: Any, writer: Any) -> None:
    """Local runs elsewhere are out of reach, and the host is named."""
    writer(launch=desk.freeze()).start(process=("elsewhere", 1, "1"))
    with pytest.raises(UsageError, match="carried on elsewhere"):
        desk.say("chaos", "kill")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no fault is named"),
        (("kill", "--mtbf", "soon"), "not a duration"),
        (("kill", "--for", "1m"), "only for random faults"),
        (("kill", "--faults", "stop", "--mtbf", "1s"), "given twice"),
        (("hang",), "not a fault that can be injected here"),
        (("flip",), "destroys the newest checkpoint"),
        (("requeue",), "can only be done by Slurm"),
        (("kill_node", "node=n2"), "sandbox only"),
        (("kill_node", "node=n2", "--sandbox", "nowhere"), "no sandbox program"),
    ],
)
def test_chaos_refuses_what_makes_no_sense(desk: Any, scene: Any, words: tuple[str, ...], said: str) -> None:
    """Each refusal is an error of usage, before anything was done."""
    launch, processes = scene()
    with pytest.raises(UsageError, match=said) as caught:
        desk.say("chaos", *words)
    assert caught.value.hint
    assert ([process.poll() for process in processes], injected(launch)) == ([None] * 3, [])


def test_chaos_names_a_misspelt_fault_beside_the_missing_launch(desk: Any) -> None:
    """`hpckit chaos kil` could be a launch or a fault: the error speaks of both."""
    desk.freeze()
    with pytest.raises(NotFoundError) as caught:
        desk.say("chaos", "kil")
    assert "neither a launch nor a fault" in caught.value.hint


def commit_one(launch: Any) -> None:
    """Commit a checkpoint of two files."""
    checkpoint_folder = CheckpointFolder(launch.paths.run(0).checkpoints)
    folder = checkpoint_folder.make_save_folder(10, 1)
    sums = {}
    for name, size in (("__0_0.distcp", 3000), (".metadata", 1000)):
        (folder / name).write_bytes(bytes(size))
        sums[name] = FileSum(size=size, crc32=zlib.crc32(bytes(size)))
    manifest = Manifest(
        step=10,
        samples=0,
        batches=Fraction(0),
        epoch=1,
        serial=len(checkpoint_folder.list_entries()),
        layout=Layout(replicate=2),
        objects=("model",),
        files=sums,
        created_at="",
    )
    commit_checkpoint(folder, manifest, lambda: True)


def newest(launch: Any) -> Path:
    """Return the newest checkpoint's folder."""
    folder: Path = CheckpointFolder(launch.paths.run(0).checkpoints).list_entries()[0].folder
    return folder


@pytest.mark.parametrize(("fraction", "name", "at"), [("0", ".metadata", 0), ("0.25", "__0_0.distcp", 0)])
def test_chaos_flips_one_bit_where_it_is_told(
    desk: Any, scene: Any, fraction: str, name: str, at: int
) -> None:
    """One bit of the newest checkpoint's files differs afterwards, and no other."""
    launch, _ = scene()
    commit_one(launch)
    desk.say("chaos", f"flip fraction={fraction}", "--yes")
    contents = {path.name: path.read_bytes() for path in newest(launch).iterdir()}
    assert contents[name][at] == 1
    assert sum(map(sum, (contents["__0_0.distcp"], contents[".metadata"]))) == 1


def test_chaos_truncates_and_tears_the_newest_checkpoint(desk: Any, scene: Any) -> None:
    """A cut file is damage that the shelf sees; without its manifest a checkpoint is torn."""
    launch, _ = scene()
    commit_one(launch)
    commit_one(launch)
    desk.say("chaos", "tear", "truncate", "--yes")
    entries = CheckpointFolder(launch.paths.run(0).checkpoints).list_entries()
    assert sorted(entry.is_uncommitted for entry in entries) == [False, True]
    assert [bool(entry.damage) for entry in entries if not entry.is_uncommitted] == [True]
    with pytest.raises(MissedError, match="no committed checkpoint"):
        desk.say("chaos", "flip", "--yes")


def program(path: Path, body: str) -> Path:
    """Write a program that logs its words and then does something."""
    text = f"#!/usr/bin/env python3\nimport os, sys\nwords = sys.argv[1:]\n{body}\n"
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


STEP = """
options = [word for word in words if word.startswith("--") and "=" in word]
open(os.environ["FAKE_SLURM_DIR"] + "/srun", "a").write(" ".join(options) + "\\n")
first = next(n for n, word in enumerate(words) if not word.startswith("-"))
os.execv(words[first], words[first:])
"""


@pytest.fixture
def on_slurm(desk: Any, scene: Any, fake_slurm: Any) -> Any:
    """Return a launch that runs as a job of the fake Slurm, whose srun runs what it is given."""
    desk.environ = fake_slurm.environ
    program(fake_slurm.bin_dir / "srun", STEP)
    job = fake_slurm.slurm("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 600")
    state = ("sacct", f"--jobs={job.strip()}", "--noheader", "--parsable2", "--format=State")
    until(lambda: fake_slurm.slurm(*state).startswith("RUNNING"))
    launch, processes = scene(kind=ClusterKind.slurm, job=job.strip())
    record = json.loads((launch.folder / "launch.json").read_text())
    (launch.folder / "launch.json").write_text(json.dumps(record | {"python": sys.executable}))
    return launch, processes, job.strip()


def test_chaos_reaches_a_rank_through_a_step_on_its_node(desk: Any, on_slurm: Any, fake_slurm: Any) -> None:
    """On Slurm the signal goes out from a step of the job, beside the agents' own."""
    launch, (_, _, rank), job = on_slurm
    desk.say("chaos", "kill rank=1")
    assert rank.wait(timeout=LIMIT_S) == -signal.SIGKILL
    (options,) = (fake_slurm.folder / "srun").read_text().splitlines()
    assert {f"--jobid={job}", "--nodelist=n2"} <= set(options.split())
    assert injected(launch) == [("kill rank=1", "injected")]


def test_chaos_reaches_a_rank_here_while_the_controller_is_away(
    desk: Any, on_slurm: Any, fake_slurm: Any
) -> None:
    """Without a controller there is no new step; a rank on this very host is hit all the same."""
    _, (_, rank, _), _ = on_slurm
    away = 'sys.exit("srun: error: Unable to contact slurm controller (connect failure)")'
    program(fake_slurm.bin_dir / "srun", away)
    desk.say("chaos", "kill rank=0")
    assert rank.wait(timeout=LIMIT_S) == -signal.SIGKILL


LOGGED = 'open(os.environ["FAKE_SLURM_DIR"] + "/asked", "a").write(" ".join(words) + "\\n")'


def test_chaos_asks_slurm_for_requeue_and_preemption(desk: Any, on_slurm: Any, fake_slurm: Any) -> None:
    """A requeue of the run's job, and a job that wants its nodes in the partition named."""
    _, _, job = on_slurm
    program(fake_slurm.bin_dir / "scontrol", LOGGED)
    program(fake_slurm.bin_dir / "sbatch", LOGGED + '\nprint("77")')
    said = desk.say("chaos", "requeue", "preempt partition=urgent seconds=3")
    lines = (fake_slurm.folder / "asked").read_text().splitlines()
    asked = [line for line in lines if line != "show config"]  # which cluster this is
    assert asked[0] == f"requeue {job}"
    assert {"--partition=urgent", "--nodelist=n1,n2", "--nodes=2"} <= set(asked[1].split())
    assert "job 77 in partition urgent wants n1, n2" in said.out


def test_chaos_cancels_behind_our_back(desk: Any, on_slurm: Any, fake_slurm: Any) -> None:
    """`scancel` ends the job as an administrator would: our record knows of no wish."""
    launch, _, job = on_slurm
    desk.say("chaos", "scancel")
    states = ["sacct", f"--jobs={job}", "--noheader", "--parsable2", "--format=State"]
    until(lambda: fake_slurm.slurm(*states).startswith("CANCELLED"))
    assert read_run_records(launch)[0].cancel_requested is False


def test_chaos_breaks_nodes_of_the_sandbox(desk: Any, on_slurm: Any, tmp_path: Path) -> None:
    """The sandbox's own program does it; $HPCKIT_SANDBOX names it, nodes are the run's."""
    launch, _, _ = on_slurm
    box = program(tmp_path / "slurm-sandbox", 'print("did", *words)')
    desk.environ = {**desk.environ, "HPCKIT_SANDBOX": str(box)}
    said = desk.say("chaos", "cut_node node=n2", "stop_controller", "heal_node node=n2")
    outcomes = [line.split("injected: ")[1].split(" (")[0] for line in said.out.splitlines()]
    assert outcomes == ["did cut-node n2", "did stop-controller", "did heal-node n2"]
    with pytest.raises(UsageError, match="is on n1, n2"):
        desk.say("chaos", "kill_node node=n3")
    program(box, 'sys.exit("slurm-sandbox: only root can do this")')
    with pytest.raises(SchedulerRefusedError, match="only root"):
        desk.say("chaos", "stop_controller")
    assert len(injected(launch)) == 3


def at_random(desk: Any, *words: str, on_sleep: Callable[[float], None] | None = None) -> Any:
    """Run the verb with a clock that only sleeping moves; return what it printed, as objects."""
    moved = [0.0]

    def sleep(seconds: float) -> None:
        moved[0] += seconds
        if on_sleep is not None:
            on_sleep(moved[0])

    out = io.StringIO()
    context = make_context(
        desk.folder,
        dict(desk.environ),
        stdout=out,
        now=lambda: BEGAN + timedelta(seconds=moved[0]),
        sleep=sleep,
    )
    given = [*words, "--json", "--output-dir", str(desk.folder)]
    assert run(build_verb_parser("chaos").parse_intermixed_args(given), context) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_chaos_at_random_does_what_its_dry_run_shows(desk: Any, scene: Any) -> None:
    """A seed fixes times and faults: shown beforehand, then injected at those times."""
    launch, _ = scene()
    words = ("--mtbf", "60s", "--faults", "stop,cont", "--seed", "7", "--for", "10m")
    planned = at_random(desk, *words, "--dry-run")
    done = at_random(desk, *words)
    keys = ("fault", "after_s", "seed")
    assert [[line[key] for key in keys] for line in planned] == [[line[key] for key in keys] for line in done]
    assert len(done) > 4
    assert all(line["outcome"] == "injected" for line in done)
    assert [line["after_s"] < 600 for line in done] == [True] * len(done)
    assert len(injected(launch)) == len(done)


def test_chaos_at_random_goes_on_after_a_miss_and_ends_with_the_run(
    desk: Any, scene: Any, writer: Any
) -> None:
    """A rank that is gone is a miss, said and recorded; once the run is over, so is the verb."""
    launch, (_, *ranks) = scene()
    ended: list[float] = []

    def end_later(seconds: float) -> None:
        struck = [line["detail"] for line in read_json_lines(log_of(launch)) if line["outcome"] == "injected"]
        for rank in ranks:
            if any(f"pid {rank.pid} " in told for told in struck):
                rank.wait(timeout=LIMIT_S)  # this clock is faster than any death
        if seconds > 600 and not ended:
            writer(launch=launch).complete()
            ended.append(seconds)

    lines = at_random(desk, "--mtbf", "30s", "--faults", "kill", on_sleep=end_later)
    assert [line["outcome"] for line in lines[:2]].count("injected") >= 1
    assert {line["outcome"] for line in lines[4:]} == {"missed"}
    assert lines[-1]["after_s"] < ended[0]


@pytest.mark.training
def test_chaos_kills_a_rank_of_a_launch_that_really_runs(shell: Any) -> None:
    """From `launch` to the exit record: SIGKILL is what the run itself says its rank died of."""
    words = ("experiment=command", "cluster=local", "code.snapshot=false", "command=sleep 600")
    assert shell("launch", *words, "recovery=never").code == 0
    launch = load_launch(shell.outputs[-1])
    paths = launch.paths.run(0).attempt(1)
    with contextlib.ExitStack() as cleaning:
        cleaning.callback(shell, "cancel")
        until(lambda: read_run_records(launch)[0].round is not None)
        until(lambda: shell("chaos", "kill rank=0", "--dry-run").code == 0)
        said = shell("chaos", "kill rank=0")
        assert said.code == 0, said.err
        until(lambda: read_run_records(launch)[0].state.ended)
    exits = [event.exit for event in read_events(paths.events) if isinstance(event, events.RankExited)]
    assert [one.signal for one in exits] == ["SIGKILL"]
    assert injected(launch) == [("kill rank=0", "injected")]
