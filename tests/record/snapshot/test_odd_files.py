"""Things in a project that are no files: a launch neither waits for them nor copies them."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from hpckit.record.snapshot.secrets import holds_private_key

pytestmark = pytest.mark.whole

LAUNCH = ("hpckit", "launch", "experiment=command", "command=[true]", "cluster=local", "--wait")


@pytest.mark.parametrize("checkout", [False, True])
def test_fifos_and_sockets_do_not_hold_a_launch_up(tmp_path: Path, *, checkout: bool) -> None:
    """A FIFO without a writer would be waited for; it is left out, as a socket is."""
    if checkout:
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "train.py").write_text("steps = 3\n")
    os.mkfifo(tmp_path / "orders")
    os.mkfifo(tmp_path / "id_rsa")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        done = subprocess.run(LAUNCH, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (code,) = tmp_path.glob("outputs/*/code")
    names = {path.name for path in code.rglob("*")}
    assert "train.py" in names
    assert not names & {"orders", "id_rsa", "s"}


def test_key_is_looked_for_in_regular_files_alone(tmp_path: Path) -> None:
    """Neither a folder nor a FIFO nor a missing file is one, and none is an error."""
    os.mkfifo(tmp_path / "fifo")
    key = tmp_path / "key"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    assert holds_private_key(key)
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "missing"):
        assert not holds_private_key(path)
