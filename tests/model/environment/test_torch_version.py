"""Promises about versions of torch: what is too old is refused, with what to install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from hpckit.errors import UsageError
from hpckit.model.environment.torch_version import (
    OLDEST_TORCH,
    check_torch_version,
    format_version,
    is_version_older,
)


@pytest.mark.parametrize(
    ("version", "older"),
    [
        ("2.6.0+cu124", True),
        ("2.8.0a0+5228986c39.nv25.06", True),
        ("2.9.0", False),
        ("2.10.1", False),
        ("v2.8", True),
        ("2", True),
        ("3.0.0", False),
        ("git", False),
        (None, False),
    ],
)
def test_versions_are_compared_as_numbers(version: str | None, *, older: bool) -> None:
    """2.10 is newer than 2.9; what cannot be read is not refused."""
    assert is_version_older(version, (2, 9)) == older


def test_old_torch_is_one_error_that_says_what_to_install() -> None:
    """Not the traceback of a name that torch did not have yet."""
    with pytest.raises(UsageError, match=r"torch 2\.6\.0 is installed, .* 2\.9 or newer") as caught:
        check_torch_version("2.6.0")
    assert "pip install 'torch>=2.9'" in caught.value.hint
    check_torch_version("2.9.0")


def test_oldest_version_is_the_packages_own() -> None:
    """What pip installs with the extra is what runs accept."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["train"]
    (wanted,) = (one for one in extra if one.startswith("torch"))
    assert re.search(r">=([\d.]+)", wanted)[1] == format_version(OLDEST_TORCH)  # type: ignore[index]
