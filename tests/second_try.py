"""Decides what failed tests mean for a run of the suite, and runs a few of them once more.

    python tests/second_try.py FOLDER

FOLDER has, for each lane of scripts/test, LANE.pytest (how pytest is called in it, a word each
ended by a null byte) and LANE.jsonl (what tests/outcomes.py recorded of it). Everything else of
the suite must have ended. Exits 0 if nothing failed, or what failed passed when run alone.

A failed test fails the suite without a second try if it is marked `exact`, if its name stands in
tests/FLAKY.md, if more than two tests failed, or if pytest itself broke off in any lane.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST = 2
"""More tests than these in need of a second try are no chance."""
LIMIT_S = 600.0
"""A second try takes no longer, with a sandbox that it may have to bring up."""
ENDING_S = 30.0
NAMES = Path(__file__).with_name("FLAKY.md")
_HEADING = "## Names"
_NOTHING_SELECTED = 5  # of pytest's exit codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A test that failed. `exact` is None if its process ended before it could say."""

    lane: str
    name: str
    exact: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What came of one call of pytest. `trouble` says why its failed tests are not all there is."""

    name: str
    failed: tuple[Failed, ...] = ()
    trouble: str = ""
    passed: int = 0
    closing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondTry:
    """How a failed test ended when it was run alone."""

    passed: bool
    words: str


def objections(lanes: Iterable[Lane], flaky: frozenset[str]) -> list[str]:
    """Return why the suite fails whatever second tries give; nothing: failed tests may have one."""
    lanes = list(lanes)
    found = [f"{lane.name}: {lane.trouble}" for lane in lanes if lane.trouble]
    failed = [one for lane in lanes for one in lane.failed]
    for one in failed:
        if one.exact:
            found.append(f"{one.name} is exact: a wrong result has no second try")
        elif one.name in flaky:
            found.append(f"{one.name} stands in tests/{NAMES.name}: its cause is to be mended")
    again = [one for one in failed if not one.exact]
    if len(again) > MOST:
        found.append(f"{len(again)} tests need a second try, of which {MOST} may have one")
    return found


def read_lane(name: str, lines: Iterable[str]) -> Lane:
    """Return what a record says; its last line is the exit code that scripts/test saw."""
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
    failed: dict[str, Failed] = {}
    for entry in entries:
        if test := entry.get("failed"):
            one = Failed(lane=name, name=test, exact=entry["exact"], reason=entry["reason"])
            failed.setdefault(test, one)
    last: dict[str, Any] = {key: value for entry in entries for key, value in entry.items()}
    return Lane(
        name=name,
        failed=tuple(failed.values()),
        trouble=_trouble(last, some_failed=bool(failed)),
        passed=last.get("passed", 0),
        closing=last.get("closing", ""),
    )


def _trouble(last: dict[str, Any], *, some_failed: bool) -> str:
    if "exit" not in last:
        return "it has not ended"
    if last["exit"] not in (0, 1):
        return f"pytest exited with {last['exit']}, not by failed tests alone"
    if "status" not in last:
        return f"it exited with {last['exit']} before pytest had finished"
    if broken := last.get("broken") or last["stopped"]:
        return str(broken)
    if last["status"] != last["exit"] or bool(last["exit"]) != some_failed:
        return f"it exited with {last['exit']}, which its tests do not explain"
    return ""


def flaky_names(text: str) -> list[str]:
    """Return the names of FLAKY.md. Raises ValueError for a line that is not in its format."""
    _, heading, listed = text.partition(f"\n{_HEADING}\n")
    if not heading:
        raise ValueError(f"{NAMES.name} has no heading {_HEADING!r}")
    names = [line for line in listed.splitlines() if line]
    for line in names:
        if not line.startswith("- tests/") or "::" not in line:
            raise ValueError(f"{NAMES.name}: {line!r} is not `- tests/FILE.py::TEST`")
    return [line.removeprefix("- ") for line in names]


def try_again(how: list[str], test: str) -> SecondTry:
    """Run one test alone, as pytest is called in its lane, for at most LIMIT_S."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "second.jsonl"
        record.touch()
        # A test whose process ended could not say that it is exact: then this selects nothing.
        words = [*how, "-m", "not exact", test]
        begun = time.monotonic()
        code = _run(words, {**os.environ, "HPCKIT_TEST_RECORD": str(record)})
        took = f"alone, after {time.monotonic() - begun:.1f} s"
        if code is None:
            return SecondTry(passed=False, words=f"not done {took}: ended by the limit")
        lines = record.read_text(encoding="utf-8").splitlines()
        lane = read_lane("second", [*lines, json.dumps({"exit": code})])
    if code == _NOTHING_SELECTED:
        return SecondTry(passed=False, words="none: it is exact")
    if lane.failed:
        return SecondTry(passed=False, words=f"failed {took}: {lane.failed[0].reason}")
    if lane.trouble or not lane.passed:
        why = lane.trouble or "it was skipped"
        return SecondTry(passed=False, words=f"not passed {took}: {why}")
    return SecondTry(passed=True, words=f"passed {took}")


def _run(words: list[str], environ: dict[str, str]) -> int | None:
    """Return the exit code, or None if the time was over. What it started ends with it."""
    process = subprocess.Popen(words, env=environ, start_new_session=True)
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for number, patience_s in ((signal.SIGINT, ENDING_S), (signal.SIGKILL, None)):
            if process.poll() is None:
                os.killpg(process.pid, number)
                try:
                    process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    continue


def main(folder: Path) -> int:
    """Read the lanes, give second tries, print the outcome; return the exit code of the suite."""
    how = {path.stem: path.read_text().split("\0")[:-1] for path in folder.glob("*.pytest")}
    records = {name: folder / f"{name}.jsonl" for name in sorted(how)}
    lanes = [read_lane(name, path.read_text().splitlines()) for name, path in records.items()]
    failed = [one for lane in lanes for one in lane.failed]
    against = objections(lanes, frozenset(flaky_names(NAMES.read_text(encoding="utf-8"))))
    if not failed and not against:
        return 0
    _say("\n== what failed")
    code = _judge(failed, against, how)
    for lane in lanes:
        _say(f"{lane.name}: {lane.closing or 'no closing line of pytest'}")
    return code


def _judge(failed: list[Failed], against: list[str], how: dict[str, list[str]]) -> int:
    if against:
        for one in failed:
            _say(f"failed: {one.name}\n    {one.lane}: {one.reason}")
        _say("no second try:", *(f"\n    {reason}" for reason in against))
        return 1
    tries = [(one, try_again(how[one.lane], one.name)) for one in failed]
    for one, second in tries:
        _say(f"{'flaky' if second.passed else 'failed'}: {one.name}")
        _say(f"    first: {one.lane}, {one.reason}\n    second: {second.words}")
    if all(second.passed for _, second in tries):
        _say(f"Add each flaky name to tests/{NAMES.name}, mend its cause, remove it again.")
        return 0
    return 1


def _say(*words: str) -> None:
    print(*words, flush=True)  # noqa: T201


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(128 + signal.SIGINT)
