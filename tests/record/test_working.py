"""Promises of a run's working folder."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from runtime.conftest import Workshop

from hpckit.model.launch import WorkingFolder
from hpckit.model.settings import Code
from hpckit.record.launches import Launch
from hpckit.record.remove import remove_tree
from hpckit.record.working import (
    fill_working_folder,
    find_working_folder,
    list_files_written_into_code,
    remove_code_from_working_folder,
)

FILES = {
    "notes.txt": "notes",
    "big.bin": "x" * 1_000_001,
    "data/raw/x.csv": "1,2",
    "runs/.gitkeep": "",
    "model/net.py": "width = 8",
    "model/cache/y.txt": "y",
    ".hidden/z": "z",
}


def freeze(tmp_path: Path, files: Mapping[str, str] = FILES, **settings: object) -> Launch:
    """Freeze a project of these files, and of task.py."""
    workshop = Workshop(tmp_path / "project")
    for name, text in files.items():
        path = workshop.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return workshop.freeze("", entry_point="task:main", **settings)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Return a launch of a project with data, a package and a folder for outputs."""
    frozen = freeze(tmp_path)
    yield frozen
    remove_tree(frozen.folder)


def fill(launch: Launch) -> Path:
    """Fill the working folder of run 0 and return it."""
    fill_working_folder(launch, 0)
    return find_working_folder(launch, 0, WorkingFolder.run)


def contents(folder: Path) -> dict[str, str]:
    """Return all files of a folder, by links also, with their text."""
    paths = [Path(here, name) for here, _, names in os.walk(folder, followlinks=True) for name in names]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def test_working_folder_shows_all_of_the_code(launch: Launch) -> None:
    """Whatever a relative path led to in the project, it leads to in the working folder."""
    assert contents(fill(launch)) == {**FILES, "task.py": ""}


@pytest.mark.parametrize(
    "name", ["new.txt", "notes.txt", "runs/default/last.pt", "data/raw/new.csv", "data/raw/x.csv"]
)
def test_working_folder_keeps_what_a_run_writes_from_the_code(launch: Launch, name: str) -> None:
    """New files, files that the code has, and files below its folders: no other run sees them."""
    before = contents(launch.paths.code)
    path = fill(launch) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    assert contents(launch.paths.code) == before


def test_working_folder_of_a_completed_run_holds_only_what_it_wrote(launch: Launch) -> None:
    """New and rewritten files stay; nothing else does, so that a large sweep costs few files."""
    work = fill(launch)
    written = {"notes.txt": "changed", "runs/default/last.pt": "mine", "mine/new.txt": "new"}
    for name, text in written.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    remove_code_from_working_folder(launch, 0)
    assert contents(work) == written
    assert sorted(path.name for path in work.iterdir()) == ["mine", "notes.txt", "runs"]


def test_working_folder_leaves_nothing_of_a_run_that_wrote_nothing(launch: Launch) -> None:
    """Not even the folder itself is left."""
    work = fill(launch)
    remove_code_from_working_folder(launch, 0)
    assert not work.exists()


def test_working_folder_of_a_later_attempt_keeps_what_earlier_ones_wrote(launch: Launch) -> None:
    """Filled again, it holds the run's own files, new and rewritten, and all of the code."""
    work = fill(launch)
    (work / "notes.txt").write_text("changed")
    (work / "task.py").unlink()
    (work / "runs" / "last").write_text("mine")
    fill(launch)
    expected = {**FILES, "task.py": "", "notes.txt": "changed", "runs/last": "mine"}
    assert contents(work) == expected


def test_working_folder_is_bounded_for_a_large_project(tmp_path: Path) -> None:
    """A thousand files in folders cost a run a few hundred entries at most, and all are seen."""
    files = {f"data/{part}/{number}.txt": "1" for part in range(10) for number in range(100)}
    launch = freeze(tmp_path, files)
    work = fill(launch)
    made = sum(len(folders) + len(names) for _, folders, names in os.walk(work))
    assert made < 300
    assert contents(work) == {**files, "task.py": ""}
    remove_tree(launch.folder)


def test_working_folder_lies_where_the_user_stood(tmp_path: Path) -> None:
    """Started in a folder of the project, a run sees the folders above it as the user did."""
    root = tmp_path / "root"
    (root / "shared").mkdir(parents=True)
    (root / "shared" / "x.txt").write_text("x")
    launch = freeze(root, code=Code(root=str(root)))
    work = fill(launch)
    assert work == launch.paths.run(0).work / "project"
    assert (work / ".." / "shared" / "x.txt").read_text() == "x"
    assert (work / "notes.txt").read_text() == "notes"
    assert find_working_folder(launch, 0, WorkingFolder.project) == root / "project"


def test_working_folder_without_a_snapshot_shows_the_project(tmp_path: Path) -> None:
    """With code.snapshot=false it shows the project, without the folder of launches in it."""
    launch = freeze(tmp_path, {"data/x.txt": "x"}, code=Code(snapshot=False, root=str(tmp_path)))
    work = fill(launch)
    assert (work / "data" / "x.txt").read_text() == "x"
    assert (work / ".." / "outputs").is_symlink()


def test_code_is_read_only(launch: Launch) -> None:
    """Neither a frozen file nor a folder of them may be written by its owner."""
    paths = [launch.paths.code, *launch.paths.code.rglob("*")]
    assert [path for path in paths if path.stat().st_mode & 0o222] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mode bits keep others from writing there")
def test_code_tells_what_root_wrote_into_it(launch: Launch, tmp_path: Path) -> None:
    """New and edited files are named, those of before and what Python compiled are not."""
    began = tmp_path / "began"
    began.touch()
    assert list(list_files_written_into_code(launch, since=began)) == []
    for name in ("runs/last.pt", "notes.txt", "model/__pycache__/net.pyc"):
        path = launch.paths.code / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        os.utime(path, ns=(began.stat().st_mtime_ns + 1,) * 2)
    assert sorted(list_files_written_into_code(launch, since=began)) == ["notes.txt", "runs/last.pt"]
