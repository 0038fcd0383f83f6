"""What exports to a tracker promise about several runs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_world import Desk, Writer

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.features.exporting import verb as module
from hpckit.features.exporting.documents import ExportKind
from hpckit.features.exporting.exported_run import ExportedRun, Written
from hpckit.features.exporting.verb import ExportRequest, export_runs


def test_a_run_that_a_tracker_refuses_does_not_stop_the_others(
    tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others are written, and the error says which one is not, and how many are."""
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    launch = Desk(folder=outputs).freeze(sweep=[("lr=1",), ("lr=2",), ("lr=3",)])
    for index in range(3):
        writer = Writer(launch=launch, index=index)
        writer.start()
        writer.complete()
    written = []

    def export_run(run: ExportedRun, target: Path) -> Written:
        if run.id.endswith(".1"):
            raise UsageError(f"MLflow refused run {run.id}: no")
        assert target == tmp_path / "store"
        written.append(run.id)
        return Written(values=1)

    monkeypatch.setattr(module, "import_tracker_module", lambda _: SimpleNamespace(export_run=export_run))
    request = ExportRequest(
        kind=ExportKind.mlflow, references=[launch.id], base=outputs, target=tmp_path / "store"
    )
    said = re.escape(f"MLflow refused run {launch.id}.1: no; 2 other runs are exported")
    with pytest.raises(UsageError, match=said):
        export_runs(request, context)
    assert written == [f"{launch.id}.0", f"{launch.id}.2"]
