"""Second tries: which failed tests have one, and what comes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from second_try import MOST, Failed, Lane, objections, read_lane
from waiting import run_to_end

TESTS = Path(__file__).parents[1]
ONE = Failed(lane="a", name="tests/a.py::test_one", exact=False, reason="late")
NAMES = [f"tests/a.py::test_{number}" for number in range(6)]

failures = st.builds(
    Failed,
    lane=st.sampled_from("ab"),
    name=st.sampled_from(NAMES),
    exact=st.sampled_from((True, False, None)),
    reason=st.just("late"),
)


@given(
    failed=st.lists(failures, unique_by=lambda one: (one.lane, one.name), max_size=5),
    flaky=st.frozensets(st.sampled_from(NAMES), max_size=2),
    troubled=st.booleans(),
)
def test_second_try_is_given_to_few_new_failures_of_tests_that_are_not_exact(
    failed: list[Failed], flaky: frozenset[str], *, troubled: bool
) -> None:
    """Whatever failed: no objection if, and only if, each rule allows it."""
    lanes = [
        Lane(
            name=name,
            failed=tuple(one for one in failed if one.lane == name),
            trouble="it broke off" if troubled and name == "b" else "",
        )
        for name in "ab"
    ]
    against = objections(lanes, flaky)
    some_exact = any(one.exact for one in failed)
    known = any(one.name in flaky and not one.exact for one in failed)
    many = len([one for one in failed if not one.exact]) > MOST
    assert bool(against) == (troubled or some_exact or known or many)
    assert any("is exact" in reason for reason in against) == some_exact
    assert any("FLAKY.md" in reason for reason in against) == known
    assert any("need a second try" in reason for reason in against) == many


def record(*entries: dict[str, Any]) -> Lane:
    """Read a record of these lines."""
    return read_lane("a", [json.dumps(entry) for entry in entries])


FAILS = {"failed": ONE.name, "exact": False, "reason": "late"}
ENDS = {"status": 1, "stopped": "", "passed": 7, "closing": "1 failed, 7 passed"}


def test_record_of_a_lane_has_each_failed_test_once() -> None:
    """A test that fails and then fails to tidy up is one test, with its first reason."""
    lane = record(FAILS, {**FAILS, "reason": "untidy"}, ENDS, {"exit": 1})
    assert lane == Lane(name="a", failed=(ONE,), passed=7, closing="1 failed, 7 passed")


@pytest.mark.parametrize(
    ("entries", "trouble"),
    [
        ([], "it has not ended"),
        ([FAILS, ENDS], "it has not ended"),
        ([{"exit": 1}], "it exited with 1 before pytest had finished"),
        ([FAILS, {"exit": 1}], "it exited with 1 before pytest had finished"),
        ([FAILS, {**ENDS, "status": 2}, {"exit": 2}], "pytest exited with 2, not by failed tests"),
        ([{**ENDS, "status": 5}, {"exit": 5}], "pytest exited with 5, not by failed tests alone"),
        ([FAILS, ENDS, {"exit": -11}], "pytest exited with -11, not by failed tests alone"),
        ([FAILS, {**ENDS, "stopped": "stopping after 3"}, {"exit": 1}], "stopping after 3"),
        ([{"broken": "a.py cannot"}, ENDS, {"exit": 1}], "a.py cannot"),
        ([ENDS, {"exit": 1}], "it exited with 1, which its tests do not explain"),
        ([FAILS, ENDS, {"exit": 0}], "it exited with 0, which its tests do not explain"),
        ([{**ENDS, "status": 0}, {"exit": 1}], "it exited with 1, which its tests do not explain"),
    ],
)
def test_lane_that_its_failed_tests_do_not_explain_has_no_second_try(
    entries: list[dict[str, Any]], trouble: str
) -> None:
    """An interrupt, a crash, an error of collection, tests that did not run: nothing is tried."""
    lane = record(*entries)
    assert lane.trouble.startswith(trouble)
    assert objections([lane], frozenset())


def test_lane_that_passes_needs_nothing() -> None:
    """No trouble, and no objection."""
    lane = record({**ENDS, "status": 0}, {"exit": 0})
    assert (lane.trouble, lane.failed, objections([lane], frozenset())) == ("", (), [])


def test_same_name_in_two_lanes_counts_twice() -> None:
    """Slurm's releases are two runs of a test, each of which failed."""
    lanes = [Lane(name=name, failed=(replace(ONE, lane=name),)) for name in ("a", "b", "c")]
    assert objections(lanes[:2], frozenset()) == []
    assert objections(lanes, frozenset()) == ["3 tests need a second try, of which 2 may have one"]


LIGHT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""A pytest that starts quickly, of the plugins that the suite has."""

SUITE = r'''
import os
from pathlib import Path

import pytest


def once(name):
    """Fail the first time only."""
    place = Path(__file__).with_name(f"{name}.seen")
    seen = place.exists()
    place.touch()
    return seen


@pytest.mark.parametrize("word", ["a b", "x::y", "[1]-[2]", "ü-中", "", "a/b.py::c[d"])
def test_once(word):
    assert once("once-" + word.encode().hex())


def test_always():
    raise ValueError("always so\nand more")


@pytest.mark.exact
def test_exact():
    assert once("exact")


@pytest.mark.exact
def test_exact_that_ends_its_process():
    assert once("exact-crash") or os._exit(3)


def test_ends_its_process():
    assert once("crash") or os._exit(3)


@pytest.fixture
def untidy():
    yield
    assert once("untidy")


def test_untidy(untidy):
    pass


def test_listed():
    assert once("listed")


def test_skips_then():
    if once("skips"):
        pytest.skip("cannot")
    raise AssertionError


def test_hangs():
    if once("hangs"):
        import time
        time.sleep(600)
    raise AssertionError


@pytest.mark.parametrize("number", range(3))
def test_many(number):
    assert once(f"many-{number}")


def test_good():
    pass
'''


class Suite:
    """A project of its own, of which chosen tests run in one lane."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.records = folder, folder / "records"
        (folder / "tests").mkdir()
        self.records.mkdir()
        (folder / "tests" / "test_all.py").write_text(SUITE, encoding="utf-8")
        (folder / "tests" / "conftest.py").write_text('pytest_plugins = ("outcomes",)\n')
        options = "[pytest]\nmarkers = exact: no second try\n"
        (folder / "pytest.ini").write_text(options)
        script = (TESTS / "second_try.py").read_text(encoding="utf-8")
        (folder / "tests" / "second_try.py").write_text(script, encoding="utf-8")
        self.flaky()

    def flaky(self, *names: str) -> None:
        """Write the list of flaky names."""
        lines = "".join(f"- {name}\n" for name in names)
        (self.folder / "tests" / "FLAKY.md").write_text(f"# Flaky\n\n## Names\n\n{lines}")

    def run(self, *words: str) -> int:
        """Run these tests as scripts/test runs a lane."""
        how = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-q"]
        (self.records / "lane.pytest").write_text("".join(f"{word}\0" for word in how))
        record = self.records / "lane.jsonl"
        done = self._call([*how, *words], HPCKIT_TEST_RECORD=str(record))
        with record.open("a") as file:
            file.write(json.dumps({"exit": done.returncode}) + "\n")
        return done.returncode

    def settle(self, **environ: str) -> subprocess.CompletedProcess[str]:
        """Let second tries decide."""
        return self._call([sys.executable, "tests/second_try.py", str(self.records)], **environ)

    def _call(self, words: Sequence[str], **environ: str) -> subprocess.CompletedProcess[str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        return run_to_end(
            words, cwd=self.folder, env={**clean, "PYTHONPATH": str(TESTS), **LIGHT, **environ}, timeout=250
        )


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """Make the project."""
    return Suite(tmp_path)


def named(*names: str) -> list[str]:
    """Return whole names of tests of the suite."""
    return [f"tests/test_all.py::test_{name}" for name in names]


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (("a b", "x::y"), ()),
        (("[1]-[2]", r"\xfc-\u4e2d"), ("-n", "2")),
        (("", "a/b.py::c[d"), ()),
        (("x::y", "a/b.py::c[d"), ("-n", "1")),
    ],
)
def test_suite_passes_where_what_failed_passes_alone(
    suite: Suite, words: tuple[str, str], workers: tuple[str, ...]
) -> None:
    """Whatever is in a name: it is tried again by it, and both outcomes are printed."""
    names = named(*(f"once[{word}]" for word in words))
    assert suite.run(*workers, *names, *named("good")) == 1
    done = suite.settle()
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        assert f"flaky: {name}\n    first: lane, call after" in done.stdout
    assert done.stdout.count("second: passed alone, after") == MOST
    assert done.stdout.endswith("lane: 2 failed, 1 passed\n")


def test_test_that_fails_again_fails_the_suite(suite: Suite) -> None:
    """Beside another one that passes, which is named all the same."""
    assert suite.run(*named("always", "untidy")) == 1
    done = suite.settle()
    assert done.returncode == 1
    always, untidy = named("always", "untidy")
    assert f"failed: {always}\n    first: lane, call after" in done.stdout
    assert "ValueError: always so\n    second: failed alone, after" in done.stdout
    assert f"flaky: {untidy}\n    first: lane, teardown after" in done.stdout


@pytest.mark.parametrize(
    ("names", "because"),
    [
        (["exact", "once[a b]"], "test_exact is exact: a wrong result has no second try"),
        (["many[0]", "many[1]", "many[2]"], "3 tests need a second try, of which 2 may have one"),
        (["listed", "once[a b]"], "test_listed stands in tests/FLAKY.md: its cause is to be"),
    ],
)
def test_suite_fails_without_a_second_try(suite: Suite, names: list[str], because: str) -> None:
    """By the rules: no test runs again, each is named, and the reason is given."""
    suite.flaky(*named("listed"))
    assert suite.run(*named(*names)) == 1
    done = suite.settle()
    assert done.returncode == 1
    assert because in done.stdout
    assert "test session starts" not in done.stdout
    assert "second:" not in done.stdout
    assert done.stdout.count("failed: tests/test_all.py::test_") == len(names)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("ends_its_process", 0, "second: passed alone"),
        ("exact_that_ends_its_process", 1, "second: none: it is exact"),
        ("skips_then", 1, "second: not passed alone, after"),
        ("hangs", 1, "ended by the limit"),
    ],
)
def test_second_try_passes_only_if_the_test_does(suite: Suite, name: str, code: int, words: str) -> None:
    """A worker that ends is a failure of its test; a test that is skipped or hangs has not passed.

    The limit of time is one of its own, as nothing else ends what hangs then.
    """
    if name == "hangs":
        script = suite.folder / "tests" / "second_try.py"
        script.write_text(script.read_text().replace("LIMIT_S = 600.0", "LIMIT_S = 2.0"))
    assert suite.run("-n", "1", *named(name)) == 1
    done = suite.settle()
    assert (done.returncode, words in done.stdout) == (code, True), done.stdout + done.stderr


@pytest.mark.parametrize("words", [["tests/test_nothing.py"], ["--nonsense"], ["-k", "no_test"]])
def test_suite_that_did_not_run_has_no_second_try(suite: Suite, words: list[str]) -> None:
    """Tests that were not found are no failed ones."""
    code = suite.run(*words)
    done = suite.settle()
    assert (code in (0, 1), done.returncode) == (False, 1)
    assert f"lane: pytest exited with {code}, not by failed tests alone" in done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_file_that_cannot_be_collected_has_no_second_try(suite: Suite, workers: tuple[str, ...]) -> None:
    """Its tests have not run, so nothing is known of them."""
    (suite.folder / "tests" / "test_broken.py").write_text("1 / 0\n")
    suite.run(*workers, "tests/test_broken.py", *named("once[a b]"))
    done = suite.settle()
    assert done.returncode == 1
    assert "second:" not in done.stdout


def test_suite_without_a_failure_is_silent(suite: Suite) -> None:
    """The last lines stay those of pytest."""
    assert suite.run(*named("good")) == 0
    done = suite.settle()
    assert (done.returncode, done.stdout) == (0, "")
