"""Promises of `hpckit export`."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest
from cli_world import Desk, Writer
from training_record import killed_training

from hpckit.errors import NotFoundError, UsageError

pytestmark = pytest.mark.whole


def test_export_prints_a_table_of_what_holds(tmp_path: Path) -> None:
    """Without a path, CSV goes to standard output, and nothing else does."""
    record = killed_training(tmp_path)
    said = Desk(folder=tmp_path / "outputs").say("export", "csv", record.launch.id)
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert said.code == 0
    assert said.err == ""
    assert [int(row["step"]) for row in rows] == list(range(200))


def test_export_with_undone_values_marks_them(tmp_path: Path) -> None:
    """`--undone` has every row, and says which hold."""
    record = killed_training(tmp_path)
    said = Desk(folder=tmp_path / "outputs").say("export", "jsonl", ".0", "--undone")
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert len(rows) == record.rows
    assert [row["step"] for row in rows if not row["undone"]] == list(range(200))


def test_export_to_a_file_says_what_it_wrote(tmp_path: Path) -> None:
    """How many runs and values, and where; a relative path is of the working folder."""
    record = killed_training(tmp_path)
    desk = Desk(folder=tmp_path / "outputs")
    (desk.folder / "table").mkdir()
    said = desk.say("export", "csv", record.launch.id, "-o", "table/values.csv")
    target = desk.folder / "table" / "values.csv"
    assert said.out == ""
    assert said.err == f"hpckit: exported 1 run, 200 values to {target}\n"
    assert target.exists()
    said = desk.say("export", "trace", "-o", "trace.json")
    assert said.err == f"hpckit: exported 1 run to {desk.folder / 'trace.json'}\n"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_export_of_a_run_without_metrics_says_so(desk: Desk, kind: str) -> None:
    """An empty table alone leaves open what is wrong."""
    Writer(launch=desk.freeze("silent")).start()
    said = desk.say("export", kind)
    assert said.err == "hpckit: this run has no metrics: run.log(loss=...) writes them\n"
    assert desk.say("export", "trace").err == ""


def test_export_takes_several_launches_and_runs(desk: Desk) -> None:
    """All that is named, each once; the same computation in two launches twice."""
    first = desk.freeze("first", sweep=[("a=1",), ("a=2",)])
    second = desk.freeze("second", sweep=[("a=1",)], minute=1)
    for launch, index in ((first, 0), (first, 1), (second, 0)):
        writer = Writer(launch=launch, index=index)
        writer.start()
        writer.metrics(0, loss=1.0)
    words = (f"{first.id}.1", second.id, f"{second.id}.0")
    rows = list(csv.DictReader(io.StringIO(desk.say("export", "csv", *words).out)))
    assert [row["run"] for row in rows] == [f"{first.id}.1", f"{second.id}.0"]
    assert [row["launch"] for row in rows] == [first.id, second.id]


def test_export_of_nothing_is_an_error(desk: Desk) -> None:
    """A launch that is not there is said to be missing."""
    with pytest.raises(NotFoundError, match="no launch or run matching"):
        desk.say("export", "csv", "missing")


def test_refused_export_leaves_nothing_behind(desk: Desk) -> None:
    """Neither the folder of a tracker nor a lock next to a file is made for a run that is not."""
    pytest.importorskip("tensorboard")
    before = sorted(desk.folder.rglob("*"))
    for words in (["tensorboard"], ["csv", "-o", "values.csv"]):
        with pytest.raises(NotFoundError):
            desk.say("export", *words, "missing")
    assert sorted(desk.folder.rglob("*")) == before


def test_place_that_cannot_be_written_is_named(desk: Desk) -> None:
    """It is the file that was asked for, not a lock of which nobody has heard."""
    desk.freeze("new")
    with pytest.raises(UsageError, match=r"/proc/values\.csv cannot be written: No such file"):
        desk.say("export", "csv", "-o", "/proc/values.csv")


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "mlflow"])
def test_export_without_its_library_names_the_extra(kind: str, tmp_path: Path) -> None:
    """One error, with the words that install it."""
    if importlib.util.find_spec(kind) is not None:
        pytest.skip(f"{kind} is installed")
    killed_training(tmp_path)
    with pytest.raises(UsageError, match=f"an export to {kind} needs {kind}") as caught:
        Desk(folder=tmp_path / "outputs").say("export", kind)
    assert f"pip install '.[{kind}]' in hpckit's checkout" in caught.value.hint


def test_export_to_a_tracker_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """Without a path it is ./exports/KIND, and what has no place there is counted."""
    pytest.importorskip("tensorboard")
    record = killed_training(tmp_path)
    record.log(2, round=1, step=200, note="a text")
    desk = Desk(folder=tmp_path / "outputs")
    said: Any = desk.say("export", "tensorboard")
    folder = desk.folder / "exports" / "tensorboard"
    assert f"200 values to {folder}" in said.err
    assert "left out 1 value that tensorboard has no place for" in said.err
    assert {path.name for path in folder.iterdir()} == {f"{record.launch.id}.0", ".hpckit-export"}
