"""Results that leave a node."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hpckit.features.staging.items import OutItem
from hpckit.features.staging.out import OutCopier
from hpckit.record.layout import LaunchPaths


def test_an_agent_that_ends_brings_out_what_is_new(tmp_path: Path) -> None:
    """Without a supervisor nobody asks for it."""
    context: Any = SimpleNamespace(
        launch=SimpleNamespace(paths=LaunchPaths(tmp_path / "launch")),
        index=0,
        node="n1",
        tell=lambda _: None,
    )
    copier = OutCopier([OutItem(name="res", every_s=1e6)], cast("Any", context))
    copier.start(tmp_path / "node")
    Path(copier.get_variables()["HPCKIT_OUT_RES"], "found").write_text("42")
    copier.stop()
    run = context.launch.paths.run(0).folder
    assert (run / "out" / "res" / "n1" / "found").read_text() == "42"
