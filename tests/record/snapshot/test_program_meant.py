"""Promises of record.snapshot.environment: a misspelled program is told, others are left alone."""

from __future__ import annotations

import pytest

from hpckit.record.snapshot.environment import suggest_for_misspelled_program


def here(program: str) -> str | None:
    """Return the place of a program of a machine with python, python3 and bash."""
    return f"/bin/{program}" if program in {"python", "python3", "bash"} else None


@pytest.mark.parametrize(
    ("program", "meant"),
    [
        ("pyhton", "python"),
        ("pytho", "python"),
        ("pythonn", None),
        ("pyhton3", "python3"),
        ("bsah", "bash"),
        ("python3.11", None),
        ("ipython", None),
        ("base", None),
        ("torchrn", None),
        ("solve", None),
    ],
)
def test_known_program_is_told_for_a_misspelled_one(program: str, meant: str | None) -> None:
    """Only one that is here; a version or a relative of it is a program of its own."""
    found, cure = suggest_for_misspelled_program(program, here)
    assert found == meant
    assert (f"did you mean {meant}?" in cure) == (meant is not None)
