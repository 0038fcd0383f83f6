"""Promises of record.environment."""

from __future__ import annotations

import json
import sys

from hpckit.record.snapshot.environment import capture_environment


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
    assert "torch" in packages
    assert record["hpckit"] == packages["hpckit-slurm"]


def test_capture_holds_no_variable() -> None:
    """Variables hold passwords: none of them is copied, by name or by value."""
    text = json.dumps(
        capture_environment({"API_TOKEN": "hunter2", "HOME": "/home/me", "LOADEDMODULES": ""})
    )
    assert "hunter2" not in text
    assert "API_TOKEN" not in text
    assert "/home/me" not in text
