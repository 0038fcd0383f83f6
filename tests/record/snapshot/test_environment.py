"""Promises of record.environment."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

from hpckit.record.snapshot.environment import capture_environment, find_setup_line_syntax_error


def test_capture_names_python_packages_modules_and_host() -> None:
    """What is needed to build the surroundings again is there."""
    record = capture_environment({"LOADEDMODULES": "gcc/12:cuda/12.4"})
    assert record["python"] == {
        "version": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
    }
    assert record["modules"] == ["gcc/12", "cuda/12.4"]
    packages = record["packages"]
    assert isinstance(packages, dict)
    assert "numpy" in packages
    assert record["hpckit"] == packages["hpckit-slurm"]


def test_packages_are_named_as_python_itself_names_them() -> None:
    """Name and version of each are those that its metadata has."""
    named: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        metadata = distribution.metadata
        named.setdefault(metadata["Name"], metadata["Version"])
    assert capture_environment({})["packages"] == named


def test_an_old_egg_is_a_package_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be one file, and what follows the headers is text."""
    text = "Metadata-Version: 1.0\nName: old \nVersion: 0.1\n\nName: prose\nVersion: 9\n"
    (tmp_path / "old.egg-info").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    packages = capture_environment({})["packages"]
    assert isinstance(packages, dict)
    assert (packages["old"], "prose" in packages) == ("0.1", False)


def test_capture_holds_no_variable() -> None:
    """Variables hold passwords: none of them is copied, by name or by value."""
    text = json.dumps(capture_environment({"API_TOKEN": "hunter2", "HOME": "/home/me", "LOADEDMODULES": ""}))
    assert "hunter2" not in text
    assert "API_TOKEN" not in text
    assert "/home/me" not in text


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["module load cuda", "cat <<EOF", "it's", "EOF", "f() {", "  true", "}"], None),
        (["if [ -e x ]; then", "  source x", "fi", "exit 3; touch ran"], None),
        (["true", "export A=(1", "true"], "bash cannot read line"),
        (["true", "echo 'x"], 'line 2 of cluster.setup, "echo \'x"'),
        (["echo $(ls", "true )", "fi"], "line 3 of cluster.setup, 'fi'"),
    ],
)
def test_setup_that_bash_cannot_read_is_an_error_with_the_line(
    lines: list[str], named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements over several lines are whole; nothing of it is run."""
    monkeypatch.chdir(tmp_path)
    found = [one.message for one in find_setup_line_syntax_error(lines)]
    assert [named in one if named else one for one in found] == [True] * bool(named), found
    assert not (tmp_path / "ran").exists()
