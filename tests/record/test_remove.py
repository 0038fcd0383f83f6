"""Promises of hpckit.record.remove."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpckit.record.remove import (
    count_freed_bytes,
    is_reached_without_links,
    list_removal_leftovers,
    remove_path,
)


def test_size_counts_what_would_be_freed(tmp_path: Path) -> None:
    """Files in all folders, but neither what links point to nor files with another name."""
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tmp_path / "outside").write_bytes(b"x" * 1000)
    (tree / "sub" / "a").write_bytes(b"x" * 10)
    (tree / "b").write_bytes(b"x" * 5)
    (tree / "link").symlink_to(tmp_path / "outside")
    os.link(tmp_path / "outside", tree / "same")
    link = (tree / "link").lstat().st_size
    assert count_freed_bytes(tree) == 15 + link
    assert count_freed_bytes(tree / "b") == 5
    assert count_freed_bytes(tree / "missing") == 0


def test_plain_is_what_is_reached_without_a_link(tmp_path: Path) -> None:
    """A link anywhere below the base makes a path not plain; the base itself may be one."""
    base, real = tmp_path / "base", tmp_path / "real"
    (real / "a" / "b").mkdir(parents=True)
    (real / "link").symlink_to("a")
    base.symlink_to(real)
    assert is_reached_without_links(base / "a" / "b", base)
    assert not is_reached_without_links(base / "link", base)
    assert not is_reached_without_links(base / "link" / "b", base)
    assert not is_reached_without_links(base / "missing", base)


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_remove_takes_the_thing_and_nothing_else(tmp_path: Path, kind: str) -> None:
    """A folder with all in it, a file, or a link but not what it points to."""
    (tmp_path / "kept").mkdir()
    path = tmp_path / "gone"
    if kind == "folder":
        (path / "sub").mkdir(parents=True)
        (path / "sub" / "link").symlink_to(tmp_path / "kept")
    elif kind == "file":
        path.touch()
    else:
        path.symlink_to(tmp_path / "kept")
    remove_path(path)
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]


def test_remove_that_is_cut_off_leaves_a_name_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thing is gone under its own name before anything in it is, and is removed later."""
    path = tmp_path / "gone"
    path.mkdir()
    (path / "a").touch()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            remove_path(path)
    (left,) = list_removal_leftovers(tmp_path)
    assert (path.exists(), (left / "a").exists()) == (False, True)
    remove_path(left)
    assert list(tmp_path.iterdir()) == []
