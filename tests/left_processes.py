"""Ends what a failed test has left running in its folder: it would slow the tests after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the processes of a test that failed, such as runs that wait for a file of it."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.when == "call" and report.failed and folder is not None:
        end_processes_in(folder)
    return report


def end_processes_in(folder: Path) -> list[int]:
    """Kill the processes that work in a folder, or name it in their command; return their ids."""
    ended = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        with suppress(OSError):
            place = (process / "cwd").readlink()
            command = (process / "cmdline").read_bytes()
            if place.is_relative_to(folder) or os.fsencode(folder) in command:
                os.kill(int(process.name), signal.SIGKILL)
                ended.append(int(process.name))
    return ended
