"""Promises of record.code and record.git: the snapshot of the user's project, with real git."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from waiting import run_to_end

from hpckit.errors import SnapshotError
from hpckit.model.settings import Code
from hpckit.record.snapshot import collect
from hpckit.record.snapshot.git import Git

ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(folder: Path, *words: str) -> str:
    """Run git as the tests' user."""
    done = run_to_end(
        ["git", "-C", str(folder), "-c", "protocol.file.allow=always", *words], env=ENVIRON, check=True
    )
    return done.stdout.strip()


def write(folder: Path, **files: str) -> None:
    """Write files; in names, `__` stands for a slash and `_dot_` for a dot."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a checkout with a tracked, an untracked, an ignored and a changed file."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    write(folder, train_dot_py="one\n", pkg__lib_dot_py="lib\n", _dot_gitignore="data/\n*.bin\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    write(folder, train_dot_py="two\n", notes_dot_txt="new\n", data__big_dot_csv="1,2\n", w_dot_bin="x")
    return folder


def collected(cwd: Path, settings: Code | None = None) -> collect.CodeSnapshot:
    """Collect as `launch` would, with outputs in the working folder."""
    return collect.find_project_files_to_freeze(
        settings or Code(), cwd=cwd, output_dir=cwd / "outputs", git=Git(ENVIRON)
    )


def names(snapshot: collect.CodeSnapshot) -> set[str]:
    """Return the paths of a snapshot."""
    assert snapshot.files is not None
    return {file.path for file in snapshot.files}


def test_snapshot_holds_tracked_and_untracked_but_no_ignored_files(project: Path) -> None:
    """What git tracks or would offer to track belongs to the project; what it ignores does not."""
    assert names(collected(project)) == {".gitignore", "train.py", "pkg/lib.py", "notes.txt"}


def test_snapshot_records_commit_branch_dirty_flag_and_diff(project: Path) -> None:
    """The state of the checkout is recorded, with the changes that no commit holds."""
    state = collected(project).git
    assert state is not None
    assert state.commit == git(project, "rev-parse", "HEAD")
    assert (state.branch, state.dirty) == ("main", True)
    assert "-one" in state.diff
    assert "+two" in state.diff


def test_snapshot_of_a_clean_checkout_is_not_dirty(project: Path) -> None:
    """A checkout without changes has no dirty flag and no diff."""
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "second")
    state = collected(project).git
    assert state is not None
    assert (state.dirty, state.diff) == (False, "")


def test_snapshot_copies_the_working_tree_as_it_is(project: Path, tmp_path: Path) -> None:
    """The copy has the changed text, executable bits, links, and is the user's alone."""
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "inner").symlink_to("pkg/lib.py")
    (project / "outer").symlink_to("../elsewhere")
    collect.copy_snapshot(collected(project), tmp_path / "copy")
    copy = tmp_path / "copy"
    assert (copy / "train.py").read_text() == "two\n"
    assert (copy / "run.sh").stat().st_mode & 0o777 == 0o500
    assert (copy / "train.py").stat().st_mode & 0o777 == 0o400
    assert (copy / "inner").readlink() == Path("pkg/lib.py")
    assert (copy / "outer").readlink() == tmp_path / "elsewhere"


def test_a_link_to_a_file_of_the_project_leads_to_its_copy(project: Path, tmp_path: Path) -> None:
    """However it is written: a run reads what was launched, whatever is edited afterwards."""
    (tmp_path / "alias").symlink_to(project)
    (project / "absolute").symlink_to(project / "pkg" / "lib.py")
    (project / "pkg" / "out_and_back").symlink_to("../../project/train.py")
    (project / "by_alias").symlink_to(tmp_path / "alias" / "pkg")
    (project / "ignored").symlink_to(project / "data" / "big.csv")
    collect.copy_snapshot(collected(project), tmp_path / "copy")
    write(project, train_dot_py="edited\n", pkg__lib_dot_py="edited\n", data__big_dot_csv="new\n")
    copy = tmp_path / "copy"
    assert (copy / "absolute").read_text() == "lib\n"
    assert (copy / "pkg" / "out_and_back").read_text() == "two\n"
    assert (copy / "by_alias" / "lib.py").read_text() == "lib\n"
    assert (copy / "ignored").read_text() == "new\n"  # data that git ignores is not frozen


def test_snapshot_takes_the_whole_checkout_from_a_folder_inside(project: Path) -> None:
    """Started in a subfolder, the checkout around it is the project and the folder is kept."""
    snapshot = collected(project / "pkg")
    assert "train.py" in names(snapshot)
    assert snapshot.working_dir == "pkg"
    assert snapshot.python_path == ("pkg", ".")


def test_snapshot_leaves_out_files_deleted_from_the_working_tree(project: Path) -> None:
    """A tracked file that the user removed is not brought back."""
    (project / "pkg/lib.py").unlink()
    assert "pkg/lib.py" not in names(collected(project))


def test_snapshot_holds_the_files_of_submodules(project: Path, tmp_path: Path) -> None:
    """A submodule's files are part of the project's code."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    write(other, sub_dot_py="sub\n")
    git(other, "add", ".")
    git(other, "commit", "-q", "-m", "sub")
    git(project, "submodule", "add", "-q", str(other), "vendor")
    assert "vendor/sub.py" in names(collected(project))


def test_snapshot_never_holds_outputs_environments_or_launches(project: Path) -> None:
    """Outputs, virtual environments, caches and other launch folders are not code."""
    write(
        project,
        outputs__l1__launch_dot_json="{}",
        old__l0__launch_dot_json="{}",
        old__l0__runs__0__run_dot_json="{}",
        venv__pyvenv_dot_cfg="home",
        venv__lib__x_dot_py="x",
        pkg____pycache____lib_dot_pyc="x",
    )
    found = names(collected(project))
    assert not {name for name in found if name.startswith(("outputs", "old", "venv"))}
    assert not {name for name in found if "__pycache__" in name}


def test_snapshot_leaves_out_what_sweeps_of_hydra_wrote(tmp_path: Path) -> None:
    """Folders of jobs, and sweeps of hpckit's launcher; but not code that was once started in its place."""
    write(tmp_path, app_dot_py="1", sub__lib_dot_py="2", conf__multirun_dot_yaml="3")
    for folder in ("multirun__a__0___dot_", "sub___dot_"):
        write(tmp_path, **{f"{folder}hydra__hydra_dot_yaml": "4"})
    write(tmp_path, multirun__a__0__model_dot_bin="5", sweep__0__rank_dot_bin="6")
    (tmp_path / "sweep" / ".hpckit").mkdir()
    assert names(collected(tmp_path)) == {
        "app.py",
        "sub/lib.py",
        "sub/.hydra/hydra.yaml",
        "conf/multirun.yaml",
    }


def test_snapshot_outside_git_holds_all_files_below(tmp_path: Path) -> None:
    """Without git, every file below the working folder is the project."""
    write(tmp_path, a_dot_py="a", sub__b_dot_py="b", outputs__x="x", _dot_git__config="no")
    (tmp_path / ".git" / "config").unlink()
    snapshot = collected(tmp_path)
    assert names(snapshot) == {"a.py", "sub/b.py"}
    assert snapshot.git is None


def test_snapshot_of_an_ignored_folder_is_that_folder(project: Path) -> None:
    """Where a checkout ignores the working folder, the folder stands for itself."""
    snapshot = collected(project / "data")
    assert snapshot.root == project / "data"
    assert names(snapshot) == {"big.csv"}


def test_snapshot_too_large_names_limit_and_largest_files(project: Path) -> None:
    """A project over the limit is refused with the files that make it so, and ways out."""
    (project / "weights.npy").write_bytes(b"\0" * 3_000_000)
    with pytest.raises(SnapshotError) as caught:
        collected(project, Code(max_mb=2))
    assert "more than 2 MB" in caught.value.message
    assert "weights.npy (3.0 MB)" in caught.value.message
    assert "code.max_mb" in caught.value.hint


def test_snapshot_can_be_left_out(project: Path) -> None:
    """With code.snapshot=false no file is listed, and the checkout's state still is recorded."""
    snapshot = collected(project, Code(snapshot=False))
    assert snapshot.files is None
    assert snapshot.git is not None


def test_snapshot_root_can_be_named(project: Path) -> None:
    """code.root narrows the project to a folder, which has to hold the working folder."""
    snapshot = collected(project / "pkg", Code(root="."))
    assert names(snapshot) == {"lib.py"}
    with pytest.raises(SnapshotError, match="does not contain the working folder"):
        collected(project, Code(root="pkg"))
    with pytest.raises(SnapshotError, match="is not a folder"):
        collected(project, Code(root="nowhere"))


def test_snapshot_paths_stay_inside_the_project(project: Path) -> None:
    """code.paths are folders of the project: others would not be frozen."""
    with pytest.raises(SnapshotError, match=r"'\.\./lib', which is not below the project"):
        collected(project, Code(paths=["../lib"]))


def test_snapshot_ignores_variables_of_a_surrounding_git(project: Path, tmp_path: Path) -> None:
    """Called from a git hook, it still looks at the project and not at the hook's checkout."""
    leaking = Git({**ENVIRON, "GIT_DIR": str(tmp_path / "other.git")})
    assert leaking.find_checkout(project) == project


def test_snapshot_works_without_git_installed(project: Path, tmp_path: Path) -> None:
    """Where there is no git program, the folder itself is the project."""
    bare = Git({"PATH": str(tmp_path)})
    snapshot = collect.find_project_files_to_freeze(
        Code(), cwd=project, output_dir=project / "outputs", git=bare
    )
    assert {"train.py", "w.bin"} <= names(snapshot)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("checkout", [False, True])
def test_what_the_user_cannot_read_is_left_out(*, checkout: bool) -> None:
    """A container or root may have left it in the project: that ends no launch."""
    with tempfile.TemporaryDirectory(prefix="hpckit-project-") as name:
        folder = Path(name)
        write(folder, train_dot_py="one\n", theirs__a="x", of_root="x")
        (folder / "theirs").chmod(0o700)
        (folder / "of_root").chmod(0o600)
        os.chown(folder, 65534, -1)
        os.seteuid(65534)
        try:
            if checkout:
                git(folder, "init", "-q", "-b", "main")
            files = collected(folder).files
        finally:
            os.seteuid(0)
    assert [file.path for file in files or ()] == ["train.py"]
