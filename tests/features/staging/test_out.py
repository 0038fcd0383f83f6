"""Results that leave a node."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpckit.features.staging.items import OutItem
from hpckit.features.staging.out import OutCopier
from hpckit.record.layout import LaunchPaths


def _copier(folder: Path) -> OutCopier:
    context: Any = SimpleNamespace(
        launch=SimpleNamespace(paths=LaunchPaths(folder / "launch")), index=0, node="n1", tell=lambda _: None
    )
    copier = OutCopier([OutItem(name="res", every_s=1e6)], context)
    copier.start(folder / "node")
    return copier


def _list_brought_out(folder: Path) -> set[str]:
    """Return the files that are in the run's folder, all of which its manifest has to list."""
    out = LaunchPaths(folder / "launch").run(0).folder / "out" / "res"
    found = {str(path.relative_to(out / "n1")) for path in (out / "n1").rglob("*") if path.is_file()}
    assert json.loads((out / "n1.manifest.json").read_text())["files"].keys() == found
    return found


@pytest.mark.parametrize("name", ["found", "n" * 255])
def test_an_agent_that_ends_brings_out_what_is_new(tmp_path: Path, name: str) -> None:
    """Without a supervisor nobody asks for it; any name of a file is a name of its copy."""
    copier = _copier(tmp_path)
    Path(copier.get_variables()["HPCKIT_OUT_RES"], name).write_text("42")
    copier.stop()
    assert (copier.complete, _list_brought_out(tmp_path)) == (True, {name})


def test_a_later_attempt_adds_to_the_manifest_and_its_kinds_of_files_win(tmp_path: Path) -> None:
    """What was a file may be a folder now, or the reverse; all else of earlier attempts stays."""
    for names in (("kept", "both", "log/a", "log/b"), ("new", "both/c", "log")):
        copier = _copier(tmp_path)
        source = Path(copier.get_variables()["HPCKIT_OUT_RES"])
        for name in names:
            (source / name).parent.mkdir(exist_ok=True)
            (source / name).touch()
        copier.stop()
        assert copier.complete
        shutil.rmtree(tmp_path / "node")
    assert _list_brought_out(tmp_path) == {"kept", "new", "both/c", "log"}
