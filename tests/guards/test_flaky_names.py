"""Guards over second tries: the names of flaky tests, and which tests are exact."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import second_try
from tiers import EXACT, NOT_EXACT, is_exact_place

TESTS = Path(__file__).parents[1]
NUMBERS = re.compile(r"\b(losses|undisturbed|approx|allclose|assert_close|torch\.equal)\b")
"""What an assertion about a loss, a number or a state has in it."""

MEASURED = {
    "integration/test_telemetry.py",
    "observe/test_sampler.py",
    "runtime/rank/test_fault_injector.py",
    "runtime/supervisor/test_resizing.py",
    "runtime/test_pauses.py",
    "slurm/test_job_limits.py",
}
"""Their numbers are times and memory that this machine took."""


def missing(names: list[str]) -> list[str]:
    """Return the names that no test has."""
    ask = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    return [
        name
        for name in names
        if subprocess.run(
            [*ask, name], cwd=TESTS.parent, capture_output=True, check=False, timeout=120
        ).returncode
    ]


def test_flaky_names_are_those_of_tests() -> None:
    """A test that is renamed or removed leaves no name behind; one that no test has is found."""
    here = f"{Path(__file__).relative_to(TESTS.parent)}::test_flaky_names_have_their_format"
    listed = second_try.flaky_names(second_try.NAMES.read_text(encoding="utf-8"))
    assert missing([*listed, here, "tests/guards/test_none.py::test_none"]) == [
        "tests/guards/test_none.py::test_none"
    ]


@pytest.mark.parametrize("line", ["tests/a.py::test_b", "* tests/a.py::test_b", "- test_b", "text"])
def test_flaky_names_have_their_format(line: str) -> None:
    """A line that would count for nothing is refused, not passed over."""
    good = "- tests/a.py::test_b[x y-[1]-ü::z]"
    assert second_try.flaky_names(f"# Title\n\n- text\n\n## Names\n\n{good}\n") == [good[2:]]
    with pytest.raises(ValueError, match="is not"):
        second_try.flaky_names(f"# Title\n\n## Names\n\n{good}\n{line}\n")
    with pytest.raises(ValueError, match="no heading"):
        second_try.flaky_names(f"{good}\n")


def test_exact_places_exist() -> None:
    """A folder, file or test that is moved takes its line along."""
    for place in (*EXACT, *NOT_EXACT):
        file, _, name = place.partition("::")
        assert (TESTS / file).exists(), place
        assert not name or f"def {name}(" in (TESTS / file).read_text(encoding="utf-8"), place


def test_tests_of_numbers_losses_and_states_are_exact() -> None:
    """Whoever compares losses gets no second try, wherever the test stands."""
    found = [place for place in _places_of_numbers() if not is_exact_place(place)]
    assert found == [], "add these to EXACT in tests/tiers.py"


def _places_of_numbers() -> Iterator[str]:
    for path in sorted(TESTS.rglob("test_*.py")):
        file, text = path.relative_to(TESTS).as_posix(), path.read_text(encoding="utf-8")
        if file in MEASURED or is_exact_place(file) or not NUMBERS.search(text):
            continue
        for function in ast.parse(text).body:
            name = getattr(function, "name", "")
            if name.startswith("test_") and any(
                NUMBERS.search(ast.unparse(line))
                for line in ast.walk(function)
                if isinstance(line, ast.Assert)
            ):
                yield f"{file}::{name}"
