"""Exports of recorded runs, as `hpckit export` makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cli_world import NOW, make_context
from training_record import TrainingRecord

from hpckit.context import Context
from hpckit.features.exporting.documents import ExportKind
from hpckit.features.exporting.exported_run import Written
from hpckit.features.exporting.verb import ExportRequest, export_runs

Export = Callable[..., Written]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Return an invocation in an empty folder; a follower that sleeps is a mistake."""
    return make_context(tmp_path, now=lambda: NOW, sleep=lambda _: pytest.fail("nothing is to be waited for"))


@pytest.fixture
def export(context: Context) -> Export:
    """Return what exports the run of a record."""

    def call(
        kind: ExportKind,
        record: TrainingRecord,
        target: Path | None = None,
        *,
        sleep: Callable[[float], None] | None = None,
        undone: bool = False,
    ) -> Written:
        request = ExportRequest(
            kind=kind,
            references=[record.launch.id],
            base=record.launch.folder.parent,
            target=target,
            undone=undone,
            follow=sleep is not None,
        )
        own = context if sleep is None else replace(context, sleep=sleep)
        return export_runs(request, own)

    return call
