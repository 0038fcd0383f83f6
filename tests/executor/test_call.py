"""One rank of a call as its agent starts it, alone: what it leaves behind, and its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpckit.api.pickling import load_own_pickle
from hpckit.executor.encoding import DelayedSubmission, encode_calls, read_result, write_calls
from hpckit.record.layout import RunPaths


def start(
    folder: Path, function: Any, *arguments: Any, rank: int = 0, ranks: int = 1
) -> subprocess.Popen[str]:
    """Start a rank of a run in this folder."""
    (text,) = write_calls(encode_calls([DelayedSubmission(function, *arguments)], []), folder / "calls")
    attempt = RunPaths(folder).attempt(1)
    attempt.round(0).folder.mkdir(parents=True, exist_ok=True)
    named: dict[str, object] = {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": ranks,
    }
    named |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    of_run = {"HPCKIT_RUN_DIR": folder, "HPCKIT_LAUNCH_DIR": folder, "HPCKIT_ATTEMPT_DIR": attempt.folder}
    environ = {**named, **{f"HPCKIT_{name}": one for name, one in named.items()}, **of_run}
    environ |= {"HPCKIT_ROUND": 0, "HPCKIT_RUN_INDEX": 0}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hpckit.executor.call", text],
        env=os.environ | {name: str(value) for name, value in environ.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code of a rank, and what it printed to standard error."""
    _, printed = process.communicate(timeout=60)
    return process.returncode, printed


def test_returned_rank_has_committed_and_is_not_called_again(tmp_path: Path) -> None:
    """A kill between the commit and the end of the process costs nothing."""
    mark = tmp_path / "calls.txt"

    def count() -> tuple[int, int]:
        with mark.open("a") as file:
            return (1, file.write("x"))

    for _ in range(2):
        assert end(start(tmp_path, count))[0] == 0
    assert read_result(RunPaths(tmp_path), 0) == (1, 1)
    assert mark.read_text() == "x"
    assert end(start(tmp_path, count, rank=1, ranks=2))[0] == 0
    assert end(start(tmp_path, count, rank=0, ranks=2))[0] == 0
    assert mark.read_text() == "xx"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: sys.exit(), "the function called sys.exit(), so there is no result"),  # noqa: PLW0108
        (lambda: (number for number in range(2)), "the returned generator cannot be sent to a run"),
        (lambda: dict[str, int]()["absent"], "KeyError: 'absent'"),
        (lambda: (_ for _ in ()).throw(KeyboardInterrupt("by hand")), "KeyboardInterrupt: by hand"),
    ],
)
def test_end_without_a_result_is_a_failure_with_its_reason(tmp_path: Path, function: Any, words: str) -> None:
    """Exit code 0 alone, a value that no file can hold, an exception: recorded, printed, exit code 1."""
    code, printed = end(start(tmp_path, function))
    assert code == 1
    assert words in printed
    assert "hpckit/executor" not in printed
    paths = RunPaths(tmp_path).attempt(1).round(0)
    record = json.loads(paths.rank_exception_file(0).read_text())
    assert words.rpartition(": ")[2] in f"{record['exception']}: {record['message']}"
    assert isinstance(load_own_pickle(paths.rank_exception_file(0).with_suffix(".pkl")), BaseException)
    assert not RunPaths(tmp_path).call_result(0).exists()


def test_exit_code_of_the_function_is_the_ranks(tmp_path: Path) -> None:
    """75 asks for another attempt, as that of a step loop that leaves does."""
    assert end(start(tmp_path, sys.exit, 75))[0] == 75


class Slow:
    """A callable that says how to go on, under either of submitit's names."""

    def __call__(self, mark: Path, start: int = 0) -> int:
        """Return where it began."""
        if start:
            return start
        mark.touch()
        time.sleep(60)
        return -1

    def __submitit_checkpoint__(self, mark: Path) -> DelayedSubmission:
        """Go on from 5."""
        return DelayedSubmission(self, mark, start=5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_notice_writes_the_next_call_and_leaves(tmp_path: Path, number: signal.Signals) -> None:
    """Rank 0 leaves with the code that asks for another attempt, which calls what was written."""
    process = start(tmp_path, Slow(), tmp_path / "mark")
    while not (tmp_path / "mark").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    assert end(process)[0] == 75
    assert not RunPaths(tmp_path).call_result(0).exists()
    assert end(start(tmp_path, Slow(), tmp_path / "mark"))[0] == 0
    assert read_result(RunPaths(tmp_path), 0) == 5
