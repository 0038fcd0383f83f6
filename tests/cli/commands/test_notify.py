"""Promises of notices, with real runs on this machine and a real web server."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from cli_world import NOW
from notice_server import NoticeServer, notice_server
from tiers import thorough

from hpckit.cli.main import build_process_context
from hpckit.model.events import CancelRequested, LocalStarted, RoundEnded, Submitted
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import ClusterKind
from hpckit.model.settings import NoticeKind, Notify
from hpckit.model.states import RoundAction
from hpckit.operations.notices.tell import LIMIT_S, AttemptTeller, announce_launch_end
from hpckit.record.launch_events import read_merged_events
from hpckit.record.launches import load_launch, load_run_settings
from hpckit.record.layout import LaunchPaths
from hpckit.record.process import is_process_alive
from hpckit.views.launch_view import Ask, build_launch_view

pytestmark = pytest.mark.slow

TASK = ("cluster=local", "code.snapshot=false", "recovery=never", "observe=off")


@pytest.fixture
def server() -> Iterator[NoticeServer]:
    """Return a web server on this machine."""
    with notice_server() as running:
        yield running


@pytest.fixture
def told(shell: Any, server: NoticeServer) -> NoticeServer:
    """Let the shell's notices go to the server."""
    shell.environ["HPCKIT_NOTIFY"] = f"http://127.0.0.1:{server.port}/hook"
    return server


def run(shell: Any, *words: str) -> int:
    """Run a verb that waits for runs, and wait for their executor, too; return the exit code."""
    code: int = shell(*words).code
    while not _ended(shell.outputs[-1]):
        time.sleep(0.05)
    return code


def texts(server: NoticeServer) -> list[str]:
    """Return what the server was sent, in the order of its texts."""
    return sorted(json.loads(one.body)["text"] for one in server.received)


def titles(server: NoticeServer) -> list[str]:
    """Return the first lines of what the server was sent, without the launch's id."""
    lines = [text.splitlines()[0] for text in texts(server)]
    return sorted(line.partition("-t")[2][2:] for line in lines)


def files(launch: Path) -> list[str]:
    """Return the files of notices."""
    return sorted(path.name for path in (launch / "notices").iterdir())


def test_failed_run_sends_one_notice_with_cause_and_place(shell: Any, told: NoticeServer) -> None:
    """The default events of `notify=ends`: the failure, and that all is over."""
    words = ("notify=ends", *TASK, "--", "python", "-c", "raise ValueError('boom')")
    assert run(shell, "launch", "--wait", *words) == 1
    (launch,) = shell.outputs
    finished, failed = texts(told)
    assert failed.splitlines()[0] == f"{launch.name}.0 failed"
    assert failed.splitlines()[1].startswith("exception, rank 0 on ")
    assert failed.splitlines()[1].endswith("ValueError: boom")
    command = failed.splitlines()[-1]
    # The run's process looked for launches elsewhere, so it names the folder.
    assert command == f"hpckit logs {launch}.0"
    assert "boom" in shell(*command.split()[1:]).out
    assert finished.splitlines()[0] == f"{launch.name} finished: 1 failed"
    names = ("failed-00000-001", "finished-00001")
    assert files(launch) == [f"{name}.{end}" for name in names for end in ("json", "sent")]
    shell("watch", launch.name)
    shell("status", launch.name)
    assert len(told.received) == 2


@thorough
def test_sweep_finishes_once(shell: Any, told: NoticeServer) -> None:
    """The last run to end tells of all, whichever it is."""
    words = ("notify=ends", *TASK, "cluster.max_parallel=4", "command=true", "experiment=command")
    assert run(shell, "launch", "--wait", "-m", *words, "seed=range(6)") == 0
    assert titles(told) == ["finished: 6 completed"]


def test_run_that_is_blocked_is_over(shell: Any, told: NoticeServer) -> None:
    """A stage that will not begin does not keep the launch open."""
    conf = shell.cwd / "conf" / "experiment"
    conf.mkdir(parents=True)
    (conf / "two.yaml").write_text(
        "# @package _global_\nstages:\n  a: {overrides: ['command=[\"false\"]']}\n"
        "  b: {overrides: ['command=[\"true\"]']}\n"
    )
    words = ("notify=ends", *TASK, "experiment=two", "name=x")
    assert run(shell, "launch", "--wait", *words) == 1
    assert titles(told) == ["0 failed", "finished: 1 failed, 1 cancelled"]


def test_launch_on_slurm_counts_what_was_cancelled_before_it_began(desk: Any, writer: Any) -> None:
    """Its supervisor reads the record alone, and the wish says that such a run will not run."""
    notify = Notify(events=[NoticeKind.finished])
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)], kind=ClusterKind.slurm, notify=notify)
    desk.tell(launch, Submitted(at=launch.created_at, job_index=0, job="7"))
    attempt = writer(launch=launch, index=0)
    attempt.start(job="7_0")
    attempt.complete()
    desk.tell(launch, CancelRequested(at=launch.created_at, runs=(1,)))
    context = replace(build_process_context(), environ={"HPCKIT_NOTIFY": "exec:true"})
    AttemptTeller(launch=launch, index=0, notify=notify, context=context).send_notices_of_attempt_end()
    (told,) = (launch.folder / "notices").glob("*.json")
    assert json.loads(told.read_text())["counts"] == {"completed": 1, "cancelled": 1}


def test_nothing_is_told_by_default(shell: Any, told: NoticeServer) -> None:
    """`notify=none`, and a cancelled run."""
    assert run(shell, "launch", "--wait", *TASK, "--", "false") == 1
    assert not (shell.outputs[0] / "notices").exists()
    assert told.received == []


@thorough
def test_restart_resume_and_completion_are_told(shell: Any, told: NoticeServer) -> None:
    """`notify=all`: a round that starts again says why; a resumed run says that it is."""
    program = shell.cwd / "often.py"
    program.write_text(
        "import os, pathlib\n"
        "mark = pathlib.Path(os.environ['HPCKIT_PROJECT'], 'starts')\n"
        "mark.open('a').write('x')\n"
        "raise SystemExit(0 if len(mark.read_text()) > 2 else 3)\n"
    )
    words = ("notify=all", *TASK, "+recovery.restarts.exit_code=1", "--", "python", str(program))
    assert run(shell, "launch", "--wait", *words) == 1
    assert titles(told) == ["0 failed", "0 starts again", "finished: 1 failed"]
    (again,) = (text for text in texts(told) if "starts again" in text)
    assert "exit_code, rank 0" in again
    assert "round 1 of attempt 1" in again
    told.received.clear()
    assert run(shell, "resume", "--wait") == 0
    assert titles(told) == ["0 completed", "0 starts again", "finished: 1 completed"]


@thorough
def test_slow_server_does_not_hold_the_end_up(shell: Any, told: NoticeServer) -> None:
    """Beyond the limit; what was not sent is kept, and `status` sends it, once."""
    told.delay_s = 120.0
    began = time.monotonic()
    assert run(shell, "launch", "--wait", "notify=ends", *TASK, "--", "false") == 1
    (launch,) = shell.outputs
    assert time.monotonic() - began < LIMIT_S + 5
    names = ("failed-00000-001", "finished-00001")
    assert files(launch) == [f"{name}.{end}" for name in names for end in ("delivered", "json")]
    warned = (launch / "logs" / "local.log").read_text()
    assert "destination 1 (web hook): no answer in time" in warned
    assert "/hook" not in warned
    told.delay_s = 0.0
    told.received.clear()
    assert shell("status", launch.name).code == 0
    assert titles(told) == ["0 failed", "finished: 1 failed"]
    assert shell("status", launch.name).code == 0
    assert len(told.received) == 2


def _ended(launch: Path) -> bool:
    """Whether the latest local executor, which waits for its supervisors, has exited."""
    told = read_merged_events(LaunchPaths(launch))
    *_, last = (event for event in told if isinstance(event, LocalStarted))
    return is_process_alive(last.host, last.pid, last.started) is not True


def test_wait_says_at_its_end_what_could_not_be_sent(shell: Any, tmp_path: Path) -> None:
    """Once for all notices, with the reason and both ways out; so does the next `status`."""
    hook = tmp_path / "hook"
    hook.write_text("#!/bin/sh\nrm -f $0; exit 7\n")
    hook.chmod(0o700)
    shell.environ["HPCKIT_NOTIFY"] = f"exec:{hook}"
    said = shell("launch", "--wait", "notify.events=[failed]", *TASK, "--", "false")
    (launch,) = shell.outputs
    (warning,) = [line for line in said.err.splitlines() if "not sent" in line]
    problem = "destination 1 (exec): the command ended with 7"
    verb = f"hpckit status {launch.name}"
    assert warning == (
        f"hpckit: warning: 1 notice not sent, but kept: {problem}; to send them: "
        f"export HPCKIT_NOTIFY as for the launch, then {verb}; to discard them: "
        f"HPCKIT_NOTIFY=exec:true {verb}"
    )
    again = shell("status", launch.name).err
    assert "cannot be started: No such file or directory; to send them" in again
    shell.environ["HPCKIT_NOTIFY"] = "exec:true"
    assert "not sent" not in shell("status", launch.name).err
    shell.environ["HPCKIT_NOTIFY"] = "exec:false"
    assert "not sent" not in shell("status", launch.name).err
    assert files(launch) == ["failed-00000-001.json", "failed-00000-001.sent"]


def test_one_warning_for_all_notices_with_one_problem(shell: Any) -> None:
    """Two notices, one remark."""
    shell.environ["HPCKIT_NOTIFY"] = "exec:false"
    said = shell("launch", "--wait", "notify=ends", *TASK, "--", "false").err
    assert said.count("not sent") == 1
    assert "warning: 2 notices not sent, but kept: destination 1 (exec)" in said


def test_notice_is_kept_where_no_address_is_known(shell: Any, told: NoticeServer) -> None:
    """The node may lack the variable: the next verb that has it sends the notice."""
    address = shell.environ["HPCKIT_NOTIFY"]
    assert run(shell, "launch", "--wait", *TASK, "--", "false") == 1
    launch = load_launch(shell.outputs[0])
    _set_events(launch.folder, ["failed"])
    context = build_process_context()
    views = build_launch_view(launch, context, ask=Ask.nothing).runs
    announce_launch_end(launch, views, context)
    assert files(launch.folder) == [f"failed-00000-001.{end}" for end in ("delivered", "json")]
    assert told.received == []
    shell.environ.pop("HPCKIT_NOTIFY")
    said = shell("status")
    assert "1 notice not sent, but kept: notify.events asks" in said.err
    assert f"then hpckit status {launch.id}; to discard them" in said.err
    shell.environ["HPCKIT_NOTIFY"] = address
    assert "warning" not in shell("status").err
    assert titles(told) == ["0 failed"]


def _set_events(folder: Path, wanted: list[str]) -> None:
    """Let a launch tell of these events, as if it had been launched so."""
    path = folder / "configs" / "00000.jsonl"
    config = json.loads(path.read_text())
    config["notify"]["events"] = wanted
    path.write_text(json.dumps(config) + "\n")


def _decide(folder: Path, start: Barrier, address: str, who: int) -> None:
    launch = load_launch(folder)
    context = build_process_context()
    context = replace(context, environ={**context.environ, "HPCKIT_NOTIFY": address})
    settings, _ = load_run_settings(launch, 0)
    views = build_launch_view(launch, context, ask=Ask.nothing).runs
    start.wait()
    if who % 2:
        announce_launch_end(launch, views, context)
    else:
        AttemptTeller(
            launch=launch, index=0, notify=settings.notify, context=context
        ).send_notices_of_attempt_end()


@thorough
def test_processes_that_decide_at_once_send_one_notice(shell: Any, told: NoticeServer) -> None:
    """Supervisor and `watch` may see the same end at the same moment."""
    address = shell.environ["HPCKIT_NOTIFY"]
    assert run(shell, "launch", "--wait", *TASK, "--", "false") == 1
    (folder,) = shell.outputs
    _set_events(folder, ["failed", "finished"])
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(4)
    deciding = [context.Process(target=_decide, args=(folder, start, address, who)) for who in range(4)]
    for one in deciding:
        one.start()
    for one in deciding:
        one.join()
    assert [one.exitcode for one in deciding] == [0, 0, 0, 0]
    assert titles(told) == ["0 failed", "finished: 1 failed"]


@thorough
def test_hang_is_told_when_it_is_noticed(shell: Any, told: NoticeServer) -> None:
    """Each event of an attempt once, however often it is heard."""
    shell.environ["HPCKIT_NOTIFY"] += "?hang"
    assert run(shell, "launch", "--wait", "notify.events=[stalled]", *TASK, "--", "false") == 1
    assert told.received == []
    launch = load_launch(shell.outputs[0])
    failure = Failure(cause=Cause.hang, message="no step for 300 s", rank=2, node="n1")
    hang = RoundEnded(at=NOW, round=4, first_step=0, step=9, action=RoundAction.new_round, failure=failure)
    context = replace(build_process_context(), environ=shell.environ)
    for _ in range(2):
        teller = AttemptTeller(
            launch=launch, index=0, notify=load_run_settings(launch, 0)[0].notify, context=context
        )
        teller.send_notices_of_event(1, hang)
        teller.send_notices_of_attempt_end()
    assert titles(told) == ["0 hung"]
    assert "hang, rank 2 on n1: no step for 300 s" in texts(told)[0]
    assert files(launch.folder) == [f"stalled-00000-001-004.{end}" for end in ("json", "sent")]


@pytest.mark.parametrize(
    ("words", "address", "message"),
    [
        ((), "", "notify.events asks for notices, but $HPCKIT_NOTIFY holds no address"),
        ((), "mytopic", "address 1 of $HPCKIT_NOTIFY has no scheme"),
        ((), "exec:/nope/x", "exec: with a command that does not exist on this host"),
        ((), "exec:/etc/passwd", "exec: with a command that is not executable on this host"),
        (("notify.file=notify",), "", "notify.file is 'notify'; it must begin with /"),
        (("notify.file=/nope",), "", "notify.file is '/nope', which cannot be read: No such file"),
        (("+env.HPCKIT_NOTIFY=exec:true",), "", "env.HPCKIT_NOTIFY is set, but hpckit sends"),
    ],
)
def test_bad_configuration_is_one_clear_error(
    shell: Any, words: tuple[str, ...], address: str, message: str
) -> None:
    """Before anything is written."""
    shell.environ["HPCKIT_NOTIFY"] = address
    for verb in ("check", "launch"):
        said = shell(verb, "notify=ends", *TASK, *words, "--", "true")
        assert said.code == 2
        (error,) = [line for line in said.err.splitlines() if "error:" in line]
        assert message in error
    assert shell.outputs == []


def test_event_that_does_not_exist_is_refused(shell: Any) -> None:
    """With the names that do."""
    said = shell("check", "notify.events=[exploded]", *TASK, "--", "true")
    assert said.code == 2
    assert "exploded" in said.err
    assert "finished" in said.err


def test_check_says_that_addresses_are_well_formed(shell: Any, told: NoticeServer) -> None:
    """Without sending anything."""
    said = shell("check", "notify=ends", *TASK, "--", "true")
    assert "notices  web hook: well-formed; nothing was sent" in said.out
    document = json.loads(shell("check", "--json", "notify=ends", *TASK, "--", "true").out)
    assert document["notices"] == ["web hook"]
    assert told.received == []


def test_only_what_starts_needs_an_address(shell: Any) -> None:
    """The words of a completed launch again, in a new shell: nothing starts, and nothing is told.

    A dry run prints its scripts, and then says what launch would refuse.
    """
    shell.environ["HPCKIT_NOTIFY"] = "exec:true"
    words = ("notify=ends", "cluster=local", "observe=off", "--", "true")
    assert run(shell, "launch", "--wait", *words) == 0
    shell.environ.pop("HPCKIT_NOTIFY")
    assert run(shell, "launch", *words) == 0
    assert run(shell, "launch", "--dry-run", *words) == 0
    said = shell("launch", "--dry-run", "--rerun", *words)
    assert said.code == 2
    assert "HPCKIT_NOTIFY holds no address" in said.err
    assert "1 run on this machine" in said.out
