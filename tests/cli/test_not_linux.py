"""Promises on a system that is not Linux: looking works, running is refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from waiting import run_to_end

PRELUDE = """
import os, platform, signal, socket, sys
for home, name in (
    (signal, "SIGRTMIN"), (signal, "SIGRTMAX"), (signal, "sigwaitinfo"), (os, "memfd_create"),
    (os, "sched_getaffinity"), (os, "pidfd_open"), (socket, "TCP_USER_TIMEOUT"),
):
    delattr(home, name)
platform.system = lambda: "Darwin"
from hpckit.cli.main import main
sys.exit(main())
"""


def call(desk: Any, *words: str) -> subprocess.CompletedProcess[str]:
    """Return how `hpckit WORDS` ended without what only Linux has."""
    return run_to_end(
        [sys.executable, "-c", PRELUDE, *words],
        cwd=desk.folder.parent,
        env={**os.environ, "HPCKIT_OUTPUTS": str(desk.folder)},
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("ls",),
        ("status",),
        ("results",),
        ("logs",),
        ("check", "experiment=command", "command=true", "cluster=local", "code.snapshot=false"),
        ("render", "experiment=command", "command=true", "cluster=slurm", "code.snapshot=false"),
    ],
)
def test_not_linux_still_looks_and_prepares(desk: Any, words: tuple[str, ...]) -> None:
    """Verbs that only read, check or write scripts need nothing of Linux."""
    desk.freeze()
    done = call(desk, *words)
    assert done.returncode == 0, done.stderr


def test_not_linux_refuses_to_run(desk: Any) -> None:
    """`launch cluster=local` says which system is needed, and leaves no folder behind."""
    words = ("launch", "experiment=command", "command=true", "cluster=local", "code.snapshot=false")
    done = call(desk, *words)
    assert done.returncode == 2
    assert "hpckit: error: runs need Linux, but this machine has Darwin" in done.stderr
    assert list(desk.folder.iterdir()) == []
