"""Ranks that outlive their supervisor on this host: nothing is removed or started beside them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_world import shell
from waiting import until, until_ended

from hpckit.record.launches import load_launch, read_launch_history, read_run_records

__all__ = ["shell"]

STUBBORN = """\
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(Path(os.environ["HPCKIT_RUN_DIR"]) / "pid").write_text(str(os.getpid()))
if (Path(os.environ["HPCKIT_PROJECT"]) / "fixed").exists():
    raise SystemExit(0)
time.sleep(300)
"""
GRACE_S = 8


def rank_of(folder: Path) -> int:
    """Return the pid that the rank wrote, 0 before."""
    with suppress(OSError, ValueError):
        return int((folder / "runs/00000/pid").read_text())
    return 0


@pytest.fixture
def orphan(shell: Any) -> Iterator[tuple[Path, int]]:
    """Start a run whose rank ignores SIGTERM, and kill its executor and its supervisor."""
    (shell.cwd / "stubborn.py").write_text(STUBBORN)
    words = ("cluster=local", f"runtime.stop_grace_s={GRACE_S}", "recovery=never")
    assert shell("launch", *words, "--", "python", "stubborn.py").code == 0
    (folder,) = shell.outputs
    rank = until(lambda: rank_of(folder))
    launch = load_launch(folder)
    (record,) = until(lambda: [record for record in read_run_records(launch) if record.supervisor])
    assert record.supervisor is not None
    executor = read_launch_history(launch).executors[0].pid
    for pid in (executor, record.supervisor[1]):
        os.kill(pid, signal.SIGKILL)
        until_ended(pid)
    yield folder, rank
    with suppress(ProcessLookupError):
        os.kill(rank, signal.SIGKILL)


def test_rm_is_refused_while_a_rank_outlives_its_supervisor(shell: Any, orphan: tuple[Path, int]) -> None:
    """A launch of which a rank still lives on this host stays, and rm says which process it is."""
    folder, rank = orphan
    said = shell("rm", str(folder), "--yes", "--json")
    assert said.code == 2, said.err
    assert folder.is_dir()
    assert "has not ended yet" in json.loads(said.out)["launches"][0]["refused"]
    until(lambda: not Path(f"/proc/{rank}").exists())
    until(lambda: shell("rm", str(folder), "--yes").code == 0)
    assert not folder.exists()


def test_resume_waits_while_a_rank_outlives_its_supervisor(shell: Any, orphan: tuple[Path, int]) -> None:
    """No attempt begins beside a rank of the one before: resume says so in a line, and waits."""
    folder, rank = orphan
    (shell.cwd / "fixed").touch()
    shell.faster, shell.sleep = 1, time.sleep
    said = shell("resume", str(folder))
    assert said.code == 0, said.err
    assert "which still lives" in said.err
    assert not Path(f"/proc/{rank}").exists()
