"""How calls and results travel: by name and JSON where that loses nothing, else in pickles of one's own."""

from __future__ import annotations

import functools
import json
import math
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hpckit.api.pickling import describe_value, pickle_for_run
from hpckit.errors import ForeignError, RunFailedError, UsageError
from hpckit.executor.encoding import (
    DelayedSubmission,
    commit_result,
    encode_calls,
    read_call,
    read_result,
    write_calls,
)
from hpckit.record.layout import RunPaths

WORK = """
import functools


@functools.cache
def count(number):
    return number and 1 + count(number - 1)


def add(left, right=0):
    return left + right


class Point:
    def __init__(self, x):
        self.x = x
"""
PROGRAM = "import sys; from hpckit.executor.encoding import read_call; print(read_call(sys.argv[1]).result())"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module of a user's project, which this process has imported."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path / "project")
    monkeypatch.delitem(sys.modules, "work", raising=False)
    return __import__("work")


def sent(call: DelayedSubmission, folder: Path, *roots: Path) -> str:
    """Return what a run gets of a call."""
    (text,) = write_calls(encode_calls([call], roots), folder)
    return text


def test_importable_call_is_words_of_a_configuration(work: Any, tmp_path: Path) -> None:
    """Nothing is pickled, and nothing in its arguments is an interpolation or loses its type."""
    arguments = ([1, 2.5, None, True, {"a": "${b}"}], 'it\'s "$x", é\n')
    text = sent(
        DelayedSubmission(work.add, *arguments, right="${c}"), tmp_path / "calls", tmp_path / "project"
    )
    assert sorted(json.loads(text)) == ["call", "file", "places"]
    (file,) = (tmp_path / "calls").iterdir()
    assert (json.loads(file.read_text())["function"], file.stat().st_mode & 0o777) == ("work:add", 0o600)
    assert "$" not in text
    call = read_call(text)
    assert (call.function, call.args, call.kwargs) == (work.add, arguments, {"right": "${c}"})
    assert read_call(sent(DelayedSubmission(pow, 2, 10), tmp_path / "more")).result() == 1024
    words = [
        sys.executable,
        "-P",
        "-m",
        "hpckit.executor.call",
        sent(DelayedSubmission(pow, 2, 3), tmp_path / "more"),
    ]
    assert subprocess.run(words, capture_output=True, check=True).stdout == b"8\n"


def make_list_in_itself() -> list[Any]:
    """Return a list without an end."""
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "argument", [(1, 2), {1: 2}, math.nan, b"x", {"a": (1,)}, 2**2000, make_list_in_itself()]
)
def test_what_json_does_not_hold_is_pickled(work: Any, tmp_path: Path, argument: Any) -> None:
    """A tuple stays a tuple, a key a number; JSON has no end of digits, nor of lists."""
    text = sent(DelayedSubmission(work.add, argument), tmp_path / "calls", tmp_path / "project")
    assert len(json.loads(text)["places"]) == 2
    (value,) = read_call(text).args
    assert pickle.dumps(value) == pickle.dumps(argument)
    (file,) = (tmp_path / "calls").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_module_that_runs_cannot_import_goes_by_value(work: Any, tmp_path: Path) -> None:
    """A function of a folder that is on the path of this process alone works where that is missing."""
    calls = [DelayedSubmission(work.add, 1, 2), DelayedSubmission(functools.partial(work.add, 3), 4)]
    texts = write_calls(encode_calls(calls, [tmp_path / "elsewhere"]), tmp_path / "calls")
    for text, value in zip(texts, ("3\n", "7\n"), strict=True):
        words = [sys.executable, "-c", PROGRAM, text]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.stdout == value, done.stderr


def run_elsewhere(call: DelayedSubmission, folder: Path) -> str:
    """Return what a call prints in a Python that has none of this one's folders."""
    words = [sys.executable, "-P", "-c", PROGRAM, sent(call, folder, folder)]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False)
    return done.stdout.strip() + done.stderr


def test_what_a_call_meets_goes_by_value(work: Any, tmp_path: Path) -> None:
    """Not its outermost function alone: what is in lists, in partials, in other modules, and modules."""
    folder = tmp_path / "elsewhere"
    (tmp_path / "project" / "upon.py").write_text(
        "import work\nclass More(work.Point): pass\ndef add(left): return work.add(left, 1)\n"
    )
    upon = __import__("upon")
    sys.modules.pop("upon")
    sys.modules["upon"] = upon
    calls = [
        DelayedSubmission(lambda: work.add(1, 2)),
        DelayedSubmission(lambda points: points[0].x, [upon.More(3)]),
        DelayedSubmission(upon.add, 2),
        DelayedSubmission(work.count, 3),
        DelayedSubmission(functools.partial(lambda point: point.x, work.Point(3))),
    ]
    try:
        assert [run_elsewhere(call, folder) for call in calls] == ["3"] * 5
    finally:
        del sys.modules["upon"]


def test_library_that_new_pythons_import_goes_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of PYTHONPATH, or of an editable installation."""
    (tmp_path / "of_path.py").write_text("def add(left): return left + 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    of_path = __import__("of_path")
    try:
        ((_, parts),) = encode_calls([DelayedSubmission(of_path.add, 1)], [])
        assert json.loads(parts[0])["function"] == "of_path:add"
    finally:
        del sys.modules["of_path"]


def test_function_of_many_calls_is_pickled_once(tmp_path: Path) -> None:
    """A closure over much data does not multiply it."""
    data = os.urandom(100_000)
    calls = [DelayedSubmission(function, number) for function in [lambda n: data[n]] for number in range(20)]
    texts = write_calls(encode_calls(calls, []), tmp_path / "calls")
    (file,) = (tmp_path / "calls").iterdir()
    assert file.stat().st_size < 110_000
    assert [read_call(text).result() for text in texts] == list(data[:20])


def test_call_that_cannot_be_pickled_says_what_and_why(tmp_path: Path) -> None:
    """The error comes at once, with the reason and a way out."""
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"the arguments of pow cannot be sent to a run: .*lock") as caught:
        sent(DelayedSubmission(pow, lock), tmp_path)
    assert "make them in the function" in caught.value.hint
    with pytest.raises(UsageError, match="<lambda> cannot be sent"):
        sent(DelayedSubmission(lambda: lock), tmp_path)
    with Path(__file__).open() as file, pytest.raises(UsageError, match="is an open file"):
        sent(DelayedSubmission(len, file), tmp_path)
    call = DelayedSubmission(print, function=1, self=2)
    assert call.kwargs == {"function": 1, "self": 2}


def test_errors_keep_their_arguments_and_causes() -> None:
    """Also one whose constructor takes others than it keeps, and one that a module of C makes."""
    error = RunFailedError("it failed", run="a.0", state="failed", cause=None)
    error.__cause__ = UnicodeDecodeError("utf8", b"x", 0, 1, "bad")
    found = pickle.loads(pickle_for_run("the error", error))  # noqa: S301
    assert (str(found), found.run, found.__cause__.args[0]) == ("it failed", "a.0", "utf8")


def test_pickles_that_others_can_write_are_refused(tmp_path: Path) -> None:
    """Unpickling is running code: neither the file nor its folder may be writable by others."""
    text = sent(DelayedSubmission(lambda: 1), tmp_path / "calls")
    (file,) = (tmp_path / "calls").iterdir()
    for path, mode in ((file, 0o620), (file.parent, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(ForeignError, match=rf"is not read, .*{path.name}.* can be written by others"):
            read_call(text)
        path.chmod(before)
    assert read_call(text).result() == 1
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ForeignError, match="every user can replace files"):
        sent(DelayedSubmission(lambda: 1), tmp_path / "open" / "calls")
    with pytest.raises(UsageError, match="calls cannot be written to /proc/"):
        sent(DelayedSubmission(lambda: 1), Path("/proc/1/calls"))
    if os.geteuid() == 0:
        os.chown(file, 12345, 12345)
        with pytest.raises(ForeignError, match="belongs to uid 12345"):
            read_call(text)


def test_first_committed_result_stays(tmp_path: Path, work: Any) -> None:
    """A call may be made twice; what JSON holds is in the record, the rest in a pickle beside it."""
    paths = RunPaths(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_result(paths, 0)
    commit_result(paths, 0, {"attempt": 1, "round": 0}, {"loss": [0.5, None]})
    commit_result(paths, 0, {"attempt": 2, "round": 0}, "later")
    assert read_result(paths, 0) == {"loss": [0.5, None]}
    commit_result(paths, 300, {"attempt": 1, "round": 2}, work.Point(7))
    commit_result(paths, 300, {"attempt": 2, "round": 0}, work.Point(8))
    assert read_result(paths, 300).x == 7
    assert json.loads(paths.call_result(300).read_text())["repr"].startswith("<work.Point")
    array = type("array", (), {"__reduce__": lambda _: "array"})
    commit_result(paths, 2, {"attempt": 1, "round": 0}, [work.Point(1), 10**5000])
    assert read_result(paths, 2)[1] == 10**5000
    assert describe_value(array()).startswith("<")
    with pytest.raises(UsageError, match="the returned generator cannot be sent"):
        commit_result(paths, 1, {"attempt": 1, "round": 0}, (number for number in range(2)))
