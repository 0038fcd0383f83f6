"""Promises of record.snapshot.frozen_files: what nodes will have of a project, and why not."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpckit.model.settings import Code
from hpckit.record.snapshot.collect import find_project_files_to_freeze
from hpckit.record.snapshot.frozen_files import FrozenFiles
from hpckit.record.snapshot.git import Git

IGNORED = "data/\nraw/*\n!raw/.gitkeep\nlink\n"
FILES = ("train.py", "data/x.npz", "raw/a.csv", "raw/.gitkeep", "docs/README.md", "src/m.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a checkout with ignored data, a folder that is only kept, and a secret."""
    root = tmp_path / "project"
    for name in (*FILES, ".env", "outputs/old/x.pt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "empty").mkdir()
    (root / ".gitignore").write_text(IGNORED)
    (root / "sets").symlink_to(tmp_path)
    (root / "link").symlink_to(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def frozen(root: Path, **code: Any) -> FrozenFiles:
    """Return what is frozen of the project."""
    git = Git({"PATH": "/usr/local/bin:/usr/bin:/bin"})
    outputs = root / "outputs"
    snapshot = find_project_files_to_freeze(Code(**code), cwd=root, output_dir=outputs, git=git)
    return FrozenFiles(snapshot=snapshot, output_dir=outputs)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("train.py", None),
        ("src", None),
        ("src/../train.py", None),
        (".", None),
        ("docs", None),
        ("docs/README.md", None),
        ("sets/anything", None),
        ("lib/site-packages/x.py", None),
        ("../elsewhere", None),
        ("data", "git ignores what is in it"),
        ("data/x.npz", "git ignores it"),
        ("raw", "git ignores what is in it"),
        ("raw/a.csv", "git ignores it"),
        ("raw/.gitkeep", None),
        ("link/x", "git ignores it"),
        ("empty", "it contains no files"),
        (".env", "it looks like a secret (code.secrets takes it)"),
        ("outputs/old/x.pt", "it is in the folder of launches"),
    ],
)
def test_what_nodes_lack_has_its_reason(project: Path, name: str, why: str | None) -> None:
    """Tracked or neither tracked nor ignored is there; a link is frozen as one."""
    assert frozen(project).explain_path_missing_on_nodes(project / name) == why


def test_all_is_there_without_a_snapshot(project: Path) -> None:
    """The project itself is used then."""
    found = frozen(project, snapshot=False)
    assert found.explain_path_missing_on_nodes(project / "data/x.npz") is None
    assert found.explain_relative_path_missing(project / "../elsewhere") is None


def test_path_that_leads_out_is_not_reached(project: Path) -> None:
    """A run starts in a folder of its own: `..` leads elsewhere from there."""
    found = frozen(project)
    assert "leads out of the project" in str(found.explain_relative_path_missing(project / "../elsewhere"))
    assert found.explain_relative_path_missing(project / "src/../train.py") is None


def test_reason_without_git_does_not_name_it(project: Path) -> None:
    """Outside a checkout only caches, installations and outputs are left out."""
    found = frozen(project)
    plain = replace(found, snapshot=replace(found.snapshot, git=None))
    assert "git" not in str(plain.explain_path_missing_on_nodes(project / "data/x.npz"))
