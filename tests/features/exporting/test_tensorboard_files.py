"""What exports to TensorBoard promise, read back by TensorBoard itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_world import Writer
from hypothesis import HealthCheck, given, settings
from small_disk import small_disk
from training_record import Trained, TrainingRecord, expected_of, killed_training, trained_rounds

from hpckit.errors import HpckitError
from hpckit.features.exporting.documents import ExportKind

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

FEW = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def reader(record: TrainingRecord, target: Path) -> Any:
    """Return TensorBoard's reader of the run."""
    folder = target / f"{record.launch.id}.0"
    return accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})


def losses(read: Any) -> list[tuple[int, float]]:
    """Return (step, loss) as TensorBoard shows them now."""
    read.Reload()
    if "loss" not in read.Tags()["scalars"]:
        return []
    return [(Scalar.step, Scalar.value) for Scalar in read.Scalars("loss")]


@FEW
@given(rounds=trained_rounds())
def test_tensorboard_has_each_step_once_after_any_kills(
    rounds: list[Trained], tmp_path_factory: pytest.TempPathFactory, export: Any
) -> None:
    """An export after each round is exact, also for a TensorBoard that has read earlier ones."""
    folder = tmp_path_factory.mktemp("export")
    record, target = TrainingRecord.empty(folder), folder / "tensorboard"
    open_all_along = None
    for done in rounds:
        record.train(done)
        export(ExportKind.tensorboard, record, target)
        assert expected_of(losses(reader(record, target)), record)
        open_all_along = open_all_along or reader(record, target)
        assert expected_of(losses(open_all_along), record)


def test_second_export_changes_nothing(tmp_path: Path, export: Any) -> None:
    """One file has the values, however often; files of others stay."""
    record, target = killed_training(tmp_path), tmp_path / "tensorboard"
    for _ in range(3):
        outcome = export(ExportKind.tensorboard, record, target)
        assert outcome.values == 200
        assert expected_of(losses(reader(record, target)), record)
    file, latest = sorted((target / f"{record.launch.id}.0").iterdir())
    assert file.stat().st_size == 0 < latest.stat().st_size
    other = file.with_name("events.out.tfevents.0000000001.host")
    other.write_bytes(b"")
    export(ExportKind.tensorboard, record, target)
    assert other.exists()
    assert not file.exists()


def test_export_that_was_killed_is_made_good_by_the_next(tmp_path: Path, export: Any) -> None:
    """An exporter that was killed before it removed the older file leaves it to the next one."""
    record, target = killed_training(tmp_path), tmp_path / "tensorboard"
    export(ExportKind.tensorboard, record, target)
    (file,) = (target / f"{record.launch.id}.0").iterdir()
    older = file.with_name(file.name.replace("tfevents.0", "tfevents.00", 1))
    older.write_bytes(file.read_bytes())
    assert expected_of(losses(reader(record, target)), record)
    export(ExportKind.tensorboard, record, target)
    assert not older.exists()
    assert expected_of(losses(reader(record, target)), record)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 64 KB; as root only."""
    with small_disk(tmp_path / "small", "64k") as disk:
        yield disk


def test_export_to_a_full_disk_is_an_error_and_keeps_the_one_before(
    tmp_path: Path, small: Path, export: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """TensorBoard's usual writer works in a thread, and tells nobody that it failed."""
    record, target = killed_training(tmp_path), small / "tensorboard"
    export(ExportKind.tensorboard, record, target)
    (small / "fill").write_bytes(bytes(36 << 10))
    with pytest.raises(HpckitError, match="No space left"):
        export(ExportKind.tensorboard, record, target)
    assert expected_of(losses(reader(record, target)), record)
    assert "Traceback" not in capfd.readouterr().err


def test_tensorboard_takes_odd_values(tmp_path: Path, export: Any) -> None:
    """NaN and infinities are shown; texts and fractions of a step are left out, and counted."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "tensorboard"
    Writer(launch=record.launch).start()
    record.log(1, round=0, step=0, a="nan", b="inf", c="text", d=None, e=True, f=10**400)
    record.log(1, round=0, step=1, a=7, g=1e300)
    record.log(1, round=0, step=1.5, a=8)
    record.log(1, round=0, step=None, a=9, alone=1)
    record.log(1, round=0, step=None, alone=2)
    outcome = export(ExportKind.tensorboard, record, target)
    assert (outcome.values, outcome.left_out) == (7, 5)
    read = reader(record, target)
    read.Reload()
    found = {tag: [(Scalar.step, Scalar.value) for Scalar in read.Scalars(tag)] for tag in "abefg"}
    assert math.isnan(found["a"][0][1])
    assert found["a"][1:] == [(1, 7)]
    assert found["b"] == found["f"] == [(0, math.inf)]
    assert found["e"] == [(0, 1)]
    assert found["g"] == [(1, math.inf)]
    assert [(Scalar.step, Scalar.value) for Scalar in read.Scalars("alone")] == [(0, 2)]
