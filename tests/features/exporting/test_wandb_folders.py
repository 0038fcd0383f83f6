"""What exports to Weights & Biases promise, read back from its own offline files."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_world import Writer
from training_record import Trained, TrainingRecord, expected_of, killed_training

from hpckit.features.exporting.documents import ExportKind

proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

_BLOCK, _HEADER, _FILE_HEADER = 32768, 7, 7
_WHOLE, _LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a `.wandb` file: LevelDB's log format below a header of its own."""
    data, at, part = path.read_bytes(), _FILE_HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + _HEADER])
        at += _HEADER
        part += data[at : at + size]
        at += size
        if kind in {_WHOLE, _LAST}:
            record = proto.Record()
            record.ParseFromString(part)
            part = b""
            yield record


def file_of(target: Path) -> Path:
    """Return the only `.wandb` file there is."""
    (found,) = target.glob("wandb/offline-run-*/*.wandb")
    return found


def history(target: Path) -> list[dict[str, Any]]:
    """Return the rows of the only run there is."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
        for record in records(file_of(target))
        if record.HasField("history")
        for items in [record.history.item]
    ]


def test_wandb_has_each_step_once_after_kills(tmp_path: Path, export: Any) -> None:
    """Exported before and after a restart, it is one run, and its steps are those that hold."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "wandb-export"
    ids = set()
    for done in (
        Trained(attempt=1, number=0, first=0, end=15),
        Trained(attempt=2, number=0, first=10, end=12),
        Trained(attempt=2, number=1, first=11, end=20),
    ):
        record.train(done)
        export(ExportKind.wandb, record, target)
        rows = history(target)
        assert expected_of([(row["_step"], row["loss"]) for row in rows], record)
        (run,) = [record.run for record in records(file_of(target)) if record.HasField("run")]
        ids.add(run.run_id)
    assert len(ids) == 1
    assert (run.project, run.run_group) == ("demo", record.launch.id)
    assert run.display_name == f"{record.launch.id}.0"
    assert rows[0]["_timestamp"] == pytest.approx(1767225601)


def test_wandb_takes_steps_that_a_run_logged_out_of_order(tmp_path: Path, export: Any) -> None:
    """Keys that count in steps and keys that count in epochs lose nothing to each other."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "wandb-export"
    Writer(launch=record.launch).start()
    for step in range(6):
        record.log(1, round=0, step=step, loss=step)
        if step % 3 == 2:
            record.log(1, round=0, step=step // 3, accuracy="nan" if step == 2 else 0.5)
    outcome = export(ExportKind.wandb, record, target)
    assert outcome.values == 8
    rows = history(target)
    assert [row["_step"] for row in rows] == list(range(6))
    assert math.isnan(rows[0]["accuracy"])
    assert [row.get("accuracy") for row in rows[1:]] == [0.5, None, None, None, None]


def test_second_export_replaces_the_first(tmp_path: Path, export: Any) -> None:
    """However often, also after a killed one, there is one folder with one run, and no part."""
    record, target = killed_training(tmp_path), tmp_path / "wandb-export"
    left = tmp_path / ".wandb-export.part-left"
    left.mkdir()
    for _ in range(2):
        export(ExportKind.wandb, record, target)
        assert expected_of([(row["_step"], row["loss"]) for row in history(target)], record)
    assert not left.exists()
    assert sorted(path.name for path in target.iterdir()) == [".hpckit-export", "wandb"]


def test_what_wandb_drops_is_left_out_and_counted(tmp_path: Path, export: Any) -> None:
    """Its steps begin at 0, and it has values of its own under some names."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "wandb-export"
    Writer(launch=record.launch).start()
    record.log(1, round=0, step=-1, loss=3)
    record.log(1, round=0, step=0, loss=2, _step=7, _timestamp=1, _runtime=1, **{"": 1})
    record.log(1, round=0, step=1, loss=1, **{"half\ud800": 5})
    outcome = export(ExportKind.wandb, record, target)
    assert (outcome.values, outcome.left_out) == (3, 5)
    rows = history(target)
    assert [(row["_step"], row["loss"]) for row in rows] == [(0, 2), (1, 1)]
    assert rows[1]["half\\ud800"] == 5
    assert rows[0]["_timestamp"] > 1e9
