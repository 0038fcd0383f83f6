"""Promises of docs/explanations/security.md about the addresses of notices."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_world import shell
from notice_server import notice_server
from tiers import thorough
from waiting import until

from hpckit.model.events import LocalStarted
from hpckit.operations.notices.addresses import find_notice_destinations
from hpckit.record.launch_events import read_merged_events
from hpckit.record.layout import LaunchPaths
from hpckit.record.process import is_process_alive

__all__ = ["shell"]

pytestmark = pytest.mark.slow

TOPIC = "topic-that-nobody-may-know"
# Records its environment, and the arguments of all its ancestors up to the test.
TRAIN = """\
import json, os, sys
from pathlib import Path
texts, pid = [json.dumps(dict(os.environ))], os.getpid()
while pid > 1:
    text = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\\0", " ")
    if "pytest" in text:
        break
    texts.append(text)
    pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
Path(os.environ["HPCKIT_PROJECT"], "..", "texts").write_text("\\n".join(texts))
own = os.environ["MY_PASSWORD"]
raise ValueError("boom hf_FirstValue0123456789 " + "x" * 360 + own)
"""
OWN = "correct-horse-battery-staple"
TASK = (
    *(f"+env.MY_PASSWORD={OWN}", "cluster=local", "recovery=never", "notify=all"),
    *("--", "python", "train.py"),
)


def settled(shell: Any) -> Path:
    """Wait until the executor of the latest launch has exited; return the launch's folder."""
    folder = shell.outputs[-1]
    assert isinstance(folder, Path)
    *_, last = (e for e in read_merged_events(LaunchPaths(folder)) if isinstance(e, LocalStarted))
    until(lambda: is_process_alive(last.host, last.pid, last.started) is not True)
    return folder


def holding(folder: Path, secret: str) -> list[str]:
    """Return the files below a folder that hold a secret, by name or content."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert found
    return [str(one) for one in found if secret in str(one) or secret.encode() in one.read_bytes()]


@pytest.mark.parametrize("way", ["variable", "file"])
@pytest.mark.parametrize("status", [pytest.param(200, marks=thorough), 500])
def test_security_addresses_of_notices_are_nowhere(shell: Any, way: str, status: int) -> None:
    """Not in the launch folder, an answer, an argument, or a rank; sent or refused."""
    (shell.cwd / "train.py").write_text(TRAIN)
    with notice_server() as server:
        server.status = status
        address = f"http://me:{TOPIC}-pw@127.0.0.1:{server.port}/{TOPIC}"
        words: tuple[str, ...] = TASK
        if way == "variable":
            shell.environ["HPCKIT_NOTIFY"] = address
        else:
            private = shell.cwd.parent / "addresses"
            private.write_text(address + "\n")
            private.chmod(0o600)
            words = (f"notify.file={private}", *TASK)
        said = [shell("check", *words), shell("launch", "--wait", *words)]
        folder = settled(shell)
        said += [shell("status"), shell("show"), shell("watch"), shell("rerun", "--dry-run")]
        assert {one.path for one in server.received} == {f"/{TOPIC}"}
        bodies = [json.loads(one.body)["text"] for one in server.received]
    assert any("boom ***" in body for body in bodies)
    assert [body for body in bodies if OWN[:8] in body] == []
    assert holding(folder / "notices", OWN[:8]) == []
    assert holding(folder, TOPIC) == []
    assert [one for one in said if TOPIC in one.out + one.err] == []
    texts = (shell.cwd.parent / "texts").read_text()
    assert "supervise" in texts or "local" in texts
    assert TOPIC not in texts
    told = "\n".join(one.err for one in said)
    assert ("the server answered 500" in told) == (status == 500)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_security_file_of_addresses_that_others_may_use_is_refused(shell: Any, mode: int) -> None:
    """With its mode, and what to do."""
    private = shell.cwd.parent / "addresses"
    private.write_text(f"https://host/{TOPIC}\n")
    private.chmod(mode)
    said = shell("launch", f"notify.file={private}", *TASK)
    assert said.code == 2
    assert f"has the mode {mode:04o}" in said.err
    assert "chmod 600" in said.err
    assert TOPIC not in said.err
    assert shell.outputs == []


def test_security_file_of_addresses_is_not_copied_with_the_code(shell: Any) -> None:
    """A file inside the project would be part of the snapshot."""
    (shell.cwd / "train.py").write_text(TRAIN)
    private = shell.cwd / "addresses.txt"
    private.write_text(f"https://host/{TOPIC}\n")
    private.chmod(0o600)
    said = shell("launch", f"notify.file={private}", *TASK)
    assert said.code == 2
    assert "would be copied into the launch folder" in said.err
    assert shell.outputs == []


def test_security_file_of_addresses_is_a_regular_file_of_ones_own(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe does not hold the verb up, and a stranger's file says nothing."""
    pipe = shell.cwd.parent / "pipe"
    os.mkfifo(pipe, 0o600)
    said = shell("check", f"notify.file={pipe}", *TASK)
    assert "is not a regular file" in said.err
    private = shell.cwd.parent / "addresses"
    private.write_text(f"https://host/{TOPIC}\n")
    private.chmod(0o600)
    monkeypatch.setattr(find_notice_destinations.__globals__["os"], "geteuid", lambda: 12345)
    said = shell("check", f"notify.file={private}", *TASK)
    assert "not to you" in said.err
