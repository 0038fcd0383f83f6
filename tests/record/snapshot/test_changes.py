"""Promises of hpckit.record.snapshot.changes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpckit.errors import UsageError
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot import collect
from hpckit.record.snapshot.changes import (
    check_snapshot_exists,
    describe_changes_in_frozen_code,
    list_modified_snapshot_files,
    write_snapshot_checksums,
)
from hpckit.record.snapshot.git import Git
from hpckit.record.store import write_json

NAMES = ("plain.py", "two words.py", "back\\slash.py", "new\nline.py", "größe.py")


@pytest.fixture
def paths(tmp_path: Path) -> LaunchPaths:
    """Return a launch folder with a snapshot of files with difficult names, and a link."""
    project = tmp_path / "project"
    project.mkdir()
    for name in NAMES:
        (project / name).write_text(name)
    (project / "link").symlink_to("plain.py")
    files = tuple(collect.CodeFile(path=name, size=1, executable=False) for name in NAMES)
    link = collect.CodeFile(path="link", size=0, executable=False, link="plain.py")
    snapshot = collect.CodeSnapshot(
        root=project, working_dir=".", python_path=(), files=(*files, link), git=None
    )
    (tmp_path / "launch").mkdir()
    launch = LaunchPaths(tmp_path / "launch")
    collect.copy_snapshot(snapshot, launch.code)
    write_snapshot_checksums(snapshot, launch)
    write_json(launch.code_record, collect.snapshot_to_json(snapshot))
    return launch


def changed(paths: LaunchPaths) -> tuple[str, ...]:
    """Return what has changed."""
    return describe_changes_in_frozen_code(paths, Git(os.environ))


def test_changes_are_none_where_only_runs_wrote(paths: LaunchPaths) -> None:
    """Files that appeared beside the frozen ones are no change of code."""
    (paths.code / "__pycache__").mkdir()
    (paths.code / "__pycache__" / "x.pyc").touch()
    assert changed(paths) == ()


@pytest.mark.parametrize("name", NAMES)
def test_changes_name_the_file(paths: LaunchPaths, name: str) -> None:
    """An edit of the same length is seen, and so is a file that is gone, whatever its name."""
    (paths.code / name).write_text(name[:-1] + "x")
    assert changed(paths) == (f"code/{name} was edited",)
    (paths.code / name).unlink()
    assert changed(paths) == (f"code/{name} is gone",)


def test_sums_are_what_sha256sum_reads(paths: LaunchPaths) -> None:
    """Users can check the snapshot without hpckit."""
    words = ["sha256sum", "--check", "--strict", "--quiet", str(paths.code_sums)]
    done = subprocess.run(words, cwd=paths.code, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_changes_that_cannot_be_told_are_an_error(paths: LaunchPaths) -> None:
    """Without code.json nobody knows; that is said rather than passed over."""
    paths.code_record.unlink()
    with pytest.raises(UsageError, match="cannot determine whether the code"):
        changed(paths)


def test_changes_of_a_checkout_need_a_git_to_be_told(tmp_path: Path) -> None:
    """Without a snapshot the commit counts; a node without git does not call that a change."""
    project, launch = tmp_path / "project", LaunchPaths(tmp_path / "launch")
    project.mkdir()
    launch.folder.mkdir()
    for words in (["init", "-q"], ["commit", "-qm", "start", "--allow-empty"]):
        identity = ["-c", "user.name=u", "-c", "user.email=u@example.org"]
        subprocess.run(["git", *identity, *words], cwd=project, check=True)
    write_json(launch.code_record, {"snapshot": False, "commit": "0" * 40, "project": str(project)})
    (said,) = changed(launch)
    assert "is at commit" in said
    assert describe_changes_in_frozen_code(launch, Git({"PATH": str(tmp_path)})) == ()


def test_changes_say_in_one_phrase_that_the_snapshot_is_gone(paths: LaunchPaths) -> None:
    """Not a phrase for each of its files."""
    check_snapshot_exists(paths)
    paths.code.rename(paths.folder / "elsewhere")
    assert changed(paths) == ("the snapshot code/ is gone",)
    with pytest.raises(UsageError, match="is gone, so no run of this launch can start again"):
        check_snapshot_exists(paths)


def test_foreign_files_are_those_that_runs_wrote(paths: LaunchPaths) -> None:
    """New files and changed ones, but neither links nor what Python compiled."""
    assert list(list_modified_snapshot_files(paths)) == []
    (paths.code / "sub").mkdir()
    (paths.code / "sub" / "x.pyc").touch()
    (paths.code / "sub" / "out.txt").touch()
    (paths.code / "plain.py").write_text("edited")
    (paths.code / "sub" / "link").symlink_to("/")
    assert sorted(list_modified_snapshot_files(paths)) == ["plain.py", "sub/out.txt"]
