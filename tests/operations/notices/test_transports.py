"""Promises of operations.notices.transports, with a real web server and real commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from notice_server import NoticeServer, notice_server

from hpckit.model.settings import NoticeKind, UserNotice
from hpckit.operations.notices.transports import DeliveryError, deliver
from hpckit.planning.notices import parse_notice_destinations

NOTICE = UserNotice(
    key="finished-00001",
    kind=NoticeKind.finished,
    at=datetime(2026, 1, 2, tzinfo=UTC),
    launch="a-1",
    folder="/l",
    state="completed",
    title="a-1 finished: 1 completed",
    text="best: a-1.0  loss 0.1",
    command="hpckit status a-1",
)


@pytest.fixture
def server() -> Iterator[NoticeServer]:
    """Return a web server on this machine."""
    with notice_server() as running:
        yield running


def send(address: str, *, limit_s: float = 5.0) -> None:
    """Send the notice to an address."""
    (destination,) = parse_notice_destinations(address, "$HPCKIT_NOTIFY")
    environ = {**os.environ, "HPCKIT_NOTIFY": address}
    deliver(destination, NOTICE, environ, limit_s)


def test_ntfy_gets_text_and_headers(server: NoticeServer) -> None:
    """One POST to the topic."""
    send(f"ntfy+http://tk_token@127.0.0.1:{server.port}/topic")
    (one,) = server.received
    assert (one.path, one.body) == ("/topic", "best: a-1.0  loss 0.1")
    assert one.headers["Title"] == "a-1 finished: 1 completed"
    assert (one.headers["Priority"], one.headers["Tags"]) == ("default", "checkered_flag")
    assert one.headers["Authorization"] == "Bearer tk_token"


def test_web_hook_gets_json(server: NoticeServer) -> None:
    """One POST with a text."""
    send(f"http://127.0.0.1:{server.port}/hooks/abc?x=1")
    (one,) = server.received
    assert (one.path, one.headers["Content-Type"]) == ("/hooks/abc?x=1", "application/json")
    assert json.loads(one.body) == {"text": "a-1 finished: 1 completed\nbest: a-1.0  loss 0.1"}


def test_refusal_and_redirection_are_errors(server: NoticeServer) -> None:
    """The answer is named, the address is not; no other place is asked."""
    server.status = 403
    with pytest.raises(DeliveryError, match=r"^the server answered 403$"):
        send(f"http://127.0.0.1:{server.port}/SECRET")
    server.status, server.location = 302, f"http://127.0.0.1:{server.port}/elsewhere"
    with pytest.raises(DeliveryError, match=r"^the server answered 302$"):
        send(f"http://127.0.0.1:{server.port}/SECRET")
    assert [one.path for one in server.received] == ["/SECRET", "/SECRET"]


def test_unreachable_server_is_an_error_without_its_address() -> None:
    """In the system's own words, or in none."""
    with notice_server() as gone:
        port = gone.port
    for address in (f"http://127.0.0.1:{port}/SECRET", "http://SECRET.invalid/SECRET"):
        with pytest.raises(DeliveryError) as caught:
            send(address)
        assert "SECRET" not in str(caught.value).upper().replace("SECRETARY", "")
        assert str(port) not in str(caught.value)


def test_slow_server_is_given_up(server: NoticeServer) -> None:
    """After the limit."""
    server.delay_s = 5.0
    began = time.monotonic()
    with pytest.raises(DeliveryError, match="no answer in time"):
        send(f"http://127.0.0.1:{server.port}/x", limit_s=0.3)
    assert time.monotonic() - began < 3


def test_command_gets_json_and_no_address(tmp_path: Path) -> None:
    """On standard input; no shell reads its words, and its environment has no address."""
    program, got = tmp_path / "take", tmp_path / "got"
    program.write_text(f'#!/bin/sh\necho "$1" >{got}\necho "[$HPCKIT_NOTIFY]" >>{got}\ncat >>{got}\n')
    program.chmod(0o700)
    send(f"exec:{program} '$(id); x'")
    argument, variable, told = got.read_text().splitlines()
    assert (argument, variable) == ("$(id); x", "[]")
    assert json.loads(told)["kind"] == "finished"


def test_command_that_fails_is_an_error() -> None:
    """Its exit code is named; one that is not there cannot be started."""
    with pytest.raises(DeliveryError, match="ended with 3"):
        send("exec:sh -c 'exit 3'")
    with pytest.raises(DeliveryError, match="cannot be started: No such file"):
        send("exec:/nope/SECRET")


def test_command_that_is_killed_is_an_error() -> None:
    """It may have been killed before it told anyone: the notice is kept, and sent again."""
    with pytest.raises(DeliveryError, match=r"^the command was ended by SIGKILL$"):
        send("exec:sh -c 'kill -9 $$'")


BESIDE = """
import sys, threading, time
from pathlib import Path
from hpckit.runtime.left_behind import become_subreaper, end_orphans
from operations.notices.test_transports import send
folder = Path(sys.argv[1])
become_subreaper()
words = f"until [ -e {folder}/go ]; do sleep 0.05; done; cat > {folder}/told"
telling = threading.Thread(target=send, args=[f'exec:sh -c "echo > {folder}/began; {words}"'])
telling.start()
while not (folder / "began").exists():
    time.sleep(0.01)
assert end_orphans() == []
(folder / "go").touch()
telling.join()
"""


def test_command_lives_on_when_what_ranks_left_behind_is_ended(tmp_path: Path) -> None:
    """A supervisor that brings back its agents ends orphans, and not its own notices."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-c", BESIDE, str(tmp_path)]
    done = subprocess.run(words, env=environ, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "told").read_text())["launch"] == "a-1"


def test_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """After the limit nothing of it is left."""
    pids = tmp_path / "pids"
    began = time.monotonic()
    with pytest.raises(DeliveryError, match="did not end in time"):
        send(f"exec:sh -c 'echo $$ >{pids}; sleep 60 & echo $! >>{pids}; wait'", limit_s=0.5)
    assert time.monotonic() - began < 5
    for pid in pids.read_text().split():
        until = time.monotonic() + 5
        while _lives(pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert not _lives(pid)


def _lives(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own imports
def test_apprise_sends_what_hpckit_does_not(server: NoticeServer) -> None:
    """Through the library, if it is installed."""
    pytest.importorskip("apprise")
    send(f"json://127.0.0.1:{server.port}/hook")
    (one,) = server.received
    assert json.loads(one.body)["title"] == "a-1 finished: 1 completed"
