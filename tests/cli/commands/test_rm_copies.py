"""`hpckit rm` among copies of launches, and names that other users choose."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from waiting import until_ended

from hpckit.record.launches import load_launch, read_launch_history

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
    for executor in read_launch_history(load_launch(folder)).executors.values():
        until_ended(executor.pid)
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
    assert f"is a copy of {folder}" in json.dumps(json.loads(said.out))
    assert shell("rm", folder.name, "--yes").code == 0
    assert not checkpoints.exists()


def _copy(folder: Path, backup: Path) -> Path:
    """Copy a folder as `cp -a` does, under the same name."""
    copy = backup / folder.name
    shutil.copytree(folder, copy, symlinks=True)
    return copy


@pytest.mark.parametrize("verb", ["rm", "clean"])
def test_a_copy_of_the_same_name_leaves_the_checkpoints_of_the_original(
    shell: Any, kept_elsewhere: tuple[Path, Path], tmp_path: Path, verb: str
) -> None:
    """Neither rm nor clean of a backup takes what the original keeps elsewhere; both say so."""
    folder, checkpoints = kept_elsewhere
    torn = checkpoints / "00000" / "00000001-000007.part"
    torn.mkdir(mode=0o700)
    copy = _copy(folder, tmp_path / "backup")
    said = shell(verb, str(copy), "--yes", "--json")
    assert said.code == 0, said.err
    assert torn.is_dir()
    assert f"is a copy of {folder}" in json.dumps(json.loads(said.out)["launches"][0]["left"])


def test_rm_of_a_copy_that_outlives_the_place_of_the_original_is_careful(
    shell: Any, kept_elsewhere: tuple[Path, Path], tmp_path: Path
) -> None:
    """A copy takes no checkpoints either where the original has been moved or renamed."""
    folder, checkpoints = kept_elsewhere
    copy = _copy(folder, tmp_path / "backup")
    folder.rename(folder.with_name("renamed"))
    said = shell("rm", str(copy), "--yes")
    assert said.code == 0, said.err
    assert checkpoints.is_dir()
    assert f"may be a copy of {folder}, which does not exist" in said.out


def test_rm_of_a_copy_in_the_place_of_the_original_is_careful(
    shell: Any, kept_elsewhere: tuple[Path, Path], tmp_path: Path
) -> None:
    """What was copied back to where the launch was made is not the launch that was made."""
    folder, checkpoints = kept_elsewhere
    moved = tmp_path / "moved" / folder.name
    moved.parent.mkdir()
    folder.rename(moved)
    shutil.copytree(moved, folder, symlinks=True)
    said = shell("rm", str(folder), "--yes")
    assert said.code == 0, said.err
    assert checkpoints.is_dir()
    assert "not the folder that was made there" in said.out


def test_rm_of_a_moved_launch_takes_its_checkpoints_along(
    shell: Any, kept_elsewhere: tuple[Path, Path], tmp_path: Path
) -> None:
    """A launch folder that was moved on its file system is still the launch that was made."""
    folder, checkpoints = kept_elsewhere
    moved = tmp_path / "moved" / "named-otherwise"
    moved.parent.mkdir()
    folder.rename(moved)
    said = shell("rm", str(moved), "--yes")
    assert said.code == 0, said.err
    assert not checkpoints.exists()
    assert not moved.exists()


def test_rm_of_a_launch_that_does_not_say_where_it_was_made_keeps_checkpoints(
    shell: Any, kept_elsewhere: tuple[Path, Path]
) -> None:
    """Where the record of the origin is missing, what is elsewhere stays, and is named."""
    folder, checkpoints = kept_elsewhere
    record = json.loads((folder / "launch.json").read_text())
    del record["origin"]
    (folder / "launch.json").write_text(json.dumps(record))
    said = shell("rm", str(folder), "--yes")
    assert said.code == 0, said.err
    assert checkpoints.is_dir()
    assert str(checkpoints) in said.out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folders")
def test_rm_takes_no_leftover_of_another_user(shell: Any, kept_elsewhere: tuple[Path, Path]) -> None:
    """Leftovers have names that anyone can choose; a stranger's stays, and blocks nothing."""
    folder, checkpoints = kept_elsewhere
    strangers = [place.with_name(f".removed.{folder.name}.aabbccdd") for place in (folder, checkpoints)]
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
