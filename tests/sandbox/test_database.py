"""Promises about the sandbox's database: an installation that crashed is made again, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.sandbox import daemons
from hpckit.sandbox.settings import SandboxError

PROGRAM = """#!/bin/sh
for word; do case $word in --datadir=*) data=${word#--datadir=} ;; esac; done
echo x >>$COUNT
[ -e "$data/part" ] && exit 9
touch "$data/part"
[ "$(wc -l <$COUNT)" -gt "$CRASHES" ] || kill -SEGV $$
mkdir "$data/mysql"
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data folder to be, and let the program crash as often as a test says."""
    program = tmp_path / "bin" / "mariadb-install-db"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    return tmp_path / "data"


@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_installation_that_crashed_is_made_again(
    data: Path, monkeypatch: pytest.MonkeyPatch, crashes: int
) -> None:
    """What it left is removed first: the database would start on a part of its tables."""
    monkeypatch.setenv("CRASHES", str(crashes))
    daemons._initialize_database_folder(data)  # noqa: SLF001  # what `up` calls, without a database
    assert (data / "mysql").is_dir()


def test_installation_that_always_crashes_is_an_error(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times are enough; nothing is left that looks like a database."""
    monkeypatch.setenv("CRASHES", "99")
    with pytest.raises(SandboxError, match="mariadb-install-db"):
        daemons._initialize_database_folder(data)  # noqa: SLF001  # as above
    assert not data.exists()
