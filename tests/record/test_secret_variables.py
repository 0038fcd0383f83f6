"""Promises of the file that holds the secrets of a launch."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.errors import FrozenFolderError
from hpckit.model.launch import Cluster, LaunchConfig
from hpckit.model.plan import SecretVariables
from hpckit.record.layout import LaunchPaths
from hpckit.record.secret_variables import read_secrets, write_secrets

SETTINGS = LaunchConfig(env={"A_TOKEN": "***"}, cluster=Cluster(env={"B_TOKEN": "***"}))


@pytest.fixture
def paths(tmp_path: Path) -> LaunchPaths:
    """Return the paths of a launch in an empty folder."""
    return LaunchPaths(tmp_path)


def secrets(value: str) -> SecretVariables:
    """Return the secrets of a run."""
    return SecretVariables(env={"A_TOKEN": value}, cluster={"B_TOKEN": "b"})


def test_secrets_come_back_for_each_run(paths: LaunchPaths) -> None:
    """Those that all runs share, and those of one; none where the configuration has none."""
    write_secrets(paths, [secrets("a"), secrets("a"), secrets("c")])
    assert [read_secrets(paths, run, SETTINGS) for run in range(3)] == [
        secrets("a"),
        secrets("a"),
        secrets("c"),
    ]
    assert read_secrets(paths, 0, LaunchConfig()) == SecretVariables()


def test_secrets_file_exists_only_where_there_are_any(paths: LaunchPaths) -> None:
    """A launch without secrets has no such file."""
    write_secrets(paths, [SecretVariables()] * 2)
    assert not paths.secrets.exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_secrets_file_is_the_users_alone(paths: LaunchPaths, umask: int) -> None:
    """0600, whatever the umask."""
    before = os.umask(umask)
    try:
        write_secrets(paths, [secrets("a")])
    finally:
        os.umask(before)
    assert stat.S_IMODE(paths.secrets.stat().st_mode) == 0o600


def test_missing_secret_is_an_error_that_names_it(paths: LaunchPaths) -> None:
    """A rank is never given the mask: where file or value is gone, the run does not start."""
    with pytest.raises(FrozenFolderError, match=r"env\.A_TOKEN, cluster\.env\.B_TOKEN"):
        read_secrets(paths, 0, SETTINGS)
    write_secrets(paths, [replace(secrets("a"), cluster={})])
    with pytest.raises(FrozenFolderError, match=r"it has no cluster\.env\.B_TOKEN of run 0"):
        read_secrets(paths, 0, SETTINGS)
