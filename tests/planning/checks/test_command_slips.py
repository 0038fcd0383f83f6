"""Promises of planning.checks.command_slips: signs that nothing will read, and the cure."""

from __future__ import annotations

import pytest

from hpckit.planning.checks.command_slips import command_slips


@pytest.mark.parametrize(
    ("words", "cures"),
    [
        (("python", "train.py", "$params.lr"), ["write ${params.lr}"]),
        (("python", "train.py", "--lr={params.lr}"), ["write ${params.lr}"]),
        (("python", "train.py", "$HOME/data"), ["let one read it"]),
        (("python", "train.py", "$params.lr", "$HOME"), ["let one read it", "write ${params.lr}"]),
        (("python", "train.py", "0.1"), []),
        (("bash", "-c", "echo $HOME"), []),
    ],
)
def test_slips_name_the_way_out(words: tuple[str, ...], cures: list[str]) -> None:
    """A configured value is no variable of a shell: another cure, and a shell would lose it."""
    found = [finding.hint for finding in command_slips(words, 1)]
    assert [hint[: len(cure)] for hint, cure in zip(found, cures, strict=True)] == cures
