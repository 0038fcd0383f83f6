"""`hpckit rm` among copies of launches, and names that other users choose."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

STRANGER = 65534


@pytest.fixture
def kept_elsewhere(shell: Any, tmp_path: Path) -> tuple[Path, Path]:
    """Return a completed launch's folder, and that of its checkpoints in a place of its own."""
    base = tmp_path / "scratch"
    base.mkdir(mode=0o700)
    words = ("cluster=local", "experiment=command", "command=[true]", f"checkpoint.dir={base}")
    assert shell("launch", *words, "--wait").code == 0
    (folder,) = shell.outputs
    checkpoints = base / folder.name
    checkpoints.mkdir(mode=0o700, exist_ok=True)
    (checkpoints / "00000").mkdir(mode=0o700, exist_ok=True)
    return folder, checkpoints


def test_rm_of_a_copy_leaves_what_the_original_keeps_elsewhere(
    shell: Any, kept_elsewhere: tuple[Path, Path]
) -> None:
    """A copied launch folder owns nothing outside of itself; the output names what stays."""
    folder, checkpoints = kept_elsewhere
    copy = folder.with_name("backup")
    shutil.copytree(folder, copy, symlinks=True)
    said = shell("rm", str(copy), "--yes", "--json")
    assert said.code == 0, said.err
    assert not copy.exists()
    assert (checkpoints / "00000").is_dir()
    assert "is a copy of that launch" in json.dumps(json.loads(said.out))
    assert shell("rm", folder.name, "--yes").code == 0
    assert not checkpoints.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folders")
def test_rm_takes_no_leftover_of_another_user(
    shell: Any, kept_elsewhere: tuple[Path, Path]
) -> None:
    """Leftovers have names that anyone can choose; a stranger's stays, and blocks nothing."""
    folder, checkpoints = kept_elsewhere
    strangers = [
        place.with_name(f".removed.{folder.name}.aabbccdd") for place in (folder, checkpoints)
    ]
    for stranger in strangers:
        (stranger / "x").mkdir(parents=True)
        os.chown(stranger, STRANGER, STRANGER)
    name = folder.name.rpartition("-")[0]
    said = shell("rm", name, "--yes")
    assert said.code == 0, said.err
    assert not folder.exists()
    assert not checkpoints.exists()
    assert all((stranger / "x").is_dir() for stranger in strangers)
    assert str(strangers[1]) in said.out
