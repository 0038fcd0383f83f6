"""Writes runs as offline runs of Weights & Biases, with its own library; `wandb sync` uploads them.

One folder for each run, which an export replaces. The id of a run is made from hpckit's own id, so
that every export of it, on any host, is the same run there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import wandb

from hpckit.features.exporting.exported_run import ExportedRun, Points, Written
from hpckit.operations.output_file import make_export_scratch_folder
from hpckit.planning.tracker import compute_wandb_id
from hpckit.record.launches import load_run_settings
from hpckit.record.store import make_private_folder

_DROPPED = frozenset({"", "_step", "_timestamp", "_runtime"})
"""Names that W&B gives to values of its own, and the one that it passes over."""


def export_run(run: ExportedRun, target: Path) -> Written:
    """Write a run to a folder below `target`/wandb; raises OSError.

    All its points are held in memory: W&B takes steps in ascending order only.
    """
    name = compute_wandb_id(run.id)
    folder = make_private_folder(target / "wandb")
    # W&B's steps begin at 0.
    points = Points(run=run, fits=lambda one: one.step >= 0 and one.key not in _DROPPED)
    with make_export_scratch_folder(target) as part:
        tracked = _start_offline_wandb_run(run, name, part)
        for row in _merge_values_by_step(points):
            step = row.pop("_step")
            tracked.log(row, step=step)
        made = Path(tracked.dir).parent
        tracked.finish(exit_code=0)
        for earlier in folder.glob(f"offline-run-*-{name}"):
            shutil.rmtree(earlier)
        made.rename(folder / made.name)
    return Written(values=points.written, left_out=points.left_out)


def _start_offline_wandb_run(run: ExportedRun, name: str, folder: Path) -> Any:
    """Begin an offline run that reads nothing of this machine and prints nothing."""
    _, config = load_run_settings(run.launch, run.view.record.index)
    return wandb.init(
        id=name,
        name=run.id,
        project=run.launch.name,
        group=run.launch.id,
        job_type=run.view.record.stage,
        config=config,
        reinit="finish_previous",
        settings=wandb.Settings(
            mode="offline",
            root_dir=str(folder),
            silent=True,
            console="off",
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
        ),
    )


def _merge_values_by_step(points: Points) -> Iterator[dict[str, Any]]:
    """Yield a row for each step, in ascending order, at the time of its last value."""
    of_step = attrgetter("step")
    for step, found in groupby(sorted(points, key=of_step), key=of_step):
        at, row = 0.0, dict[str, Any]()
        for point in found:
            at = max(at, point.at)
            row[point.key] = point.number
        yield {**row, "_timestamp": at, "_step": step}
