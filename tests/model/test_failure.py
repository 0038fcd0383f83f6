"""Promises of hpckit.model.failure."""

from __future__ import annotations

import signal

import pytest

from hpckit.model.failure import Cause, ExitReason, RankExit, shell_exit_code, signal_name


@pytest.mark.parametrize("number", range(1, signal.NSIG))
def test_shell_code_of_a_signal_is_128_and_its_number(number: int) -> None:
    """Every signal, real-time ones included, gives the code a shell would."""
    ended = RankExit(rank=0, node="n1", code=None, signal=signal_name(number))
    assert shell_exit_code(ended) == 128 + number


@pytest.mark.parametrize(("code", "expected"), [(1, 1), (7, 7), (255, 255), (0, 1), (None, 1)])
def test_shell_code_of_a_failure_is_never_zero(code: int | None, expected: int) -> None:
    """A rank's own code is kept; where there is none, or a wrong 0, it is 1."""
    assert shell_exit_code(RankExit(rank=0, node="n1", code=code)) == expected


def test_shell_code_of_a_signal_from_elsewhere_is_a_failure() -> None:
    """A name this system does not have still makes a code above 128."""
    assert shell_exit_code(RankExit(rank=0, node="n1", code=None, signal="XYZ12")) > 128


def test_cause_of_a_newer_version_is_unknown() -> None:
    """A cause this version does not know is read as unknown."""
    assert Cause("cosmic_ray") is Cause.unknown


def test_rank_that_only_vanished_has_failed() -> None:
    """Why a rank left says whether it failed; exit code 0 alone does not."""
    assert not RankExit(rank=0, node="n1", code=0, reason=ExitReason.returned).failed
    assert not RankExit(rank=0, node="n1", code=75, reason=ExitReason.left).failed
    assert RankExit(rank=0, node="n1", code=0).failed
