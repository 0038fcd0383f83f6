"""What exports to text promise: one value per step that holds, after any kills, in valid form."""

from __future__ import annotations

import csv
import io
import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_world import START, Desk, Writer
from hypothesis import HealthCheck, given, settings
from training_record import Trained, TrainingRecord, expected_of, killed_training, trained_rounds

from hpckit.context import Context
from hpckit.errors import HeldError, UsageError
from hpckit.features.exporting.documents import ExportKind
from hpckit.model import events
from hpckit.record.lock import hold_lock
from hpckit.record.store import append_json_lines

FEW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(path.read_text())))


def losses(rows: list[dict[str, str]]) -> list[tuple[int, float]]:
    """Return (step, loss) of the rows that hold."""
    held = [row for row in rows if row["undone"] == "false"]
    return [(int(row["step"]), float(row["value"])) for row in held]


@FEW
@given(rounds=trained_rounds())
def test_csv_has_each_step_once_after_any_kills(
    rounds: list[Trained], tmp_path_factory: pytest.TempPathFactory, export: Any
) -> None:
    """Whenever it is made, an export has exactly the steps that hold, and marks all others."""
    folder = tmp_path_factory.mktemp("export")
    record, target = TrainingRecord.empty(folder), folder / "values.csv"
    for done in rounds:
        record.train(done)
        export(ExportKind.csv, record, target)
        assert expected_of(losses(rows_of(target)), record)
        export(ExportKind.csv, record, target, undone=True)
        assert expected_of(losses(rows_of(target)), record)
        assert len(rows_of(target)) == record.rows


def test_csv_says_which_round_wrote_a_value(tmp_path: Path, export: Any) -> None:
    """A line names launch, run, attempt, round, step, time and key."""
    record, target = killed_training(tmp_path), tmp_path / "values.csv"
    outcome = export(ExportKind.csv, record, target)
    assert outcome.values == 200
    rows = rows_of(target)
    assert rows[-1] == {
        "launch": record.launch.id,
        "run": f"{record.launch.id}.0",
        "attempt": "2",
        "round": "1",
        "step": "199",
        "at": (START + timedelta(seconds=260)).isoformat(timespec="milliseconds"),
        "key": "loss",
        "value": "64.75",
        "undone": "false",
    }
    assert [row["attempt"] for row in rows] == ["1"] * 100 + ["2"] * 100
    assert [row["round"] for row in rows] == ["0"] * 110 + ["1"] * 90


def test_odd_values_stay_valid_in_every_text(tmp_path: Path, export: Any) -> None:
    """NaN, infinities, texts, null, large numbers and control characters break no format."""
    record = TrainingRecord.empty(tmp_path)
    Writer(launch=record.launch).start()
    odd = {"a": "nan", "b": "-inf", "c": 'x"\n,\x1b', "d": None, "e": True, "f": 10**400, "\u202e": 1}
    record.log(1, round=0, step=0, **odd)
    record.log(1, round=0, step=None, late=1)
    for kind in (ExportKind.csv, ExportKind.jsonl, ExportKind.openmetrics, ExportKind.trace):
        export(kind, record, tmp_path / kind)
        assert not {"\x1b", "\u202e"} & set((tmp_path / kind).read_text())
    values = {row["key"]: row["value"] for row in rows_of(tmp_path / "csv")}
    assert values["a"] == "nan"
    assert values["b"] == "-inf"
    assert values["c"] == 'x"\\n,\\x1b'
    assert values["d"] == ""
    assert values["e"] == "true"
    lines = [json.loads(line) for line in (tmp_path / "jsonl").read_text().splitlines()]
    found = {line["key"]: line for line in lines}
    assert (found["a"]["value"], found["a"]["not_finite"]) == (None, "nan")
    assert (found["b"]["value"], found["b"]["not_finite"]) == (None, "-inf")
    assert found["c"]["value"] == odd["c"]
    assert "not_finite" not in found["e"]
    assert found["late"]["step"] is None
    text = (tmp_path / "openmetrics").read_text()
    assert 'key="a"} NaN\n' in text
    assert 'key="b"} -Inf\n' in text
    assert 'key="f"} +Inf\n' in text
    json.loads((tmp_path / "trace").read_text(), parse_constant=pytest.fail)


def test_openmetrics_shows_no_value_that_was_undone(tmp_path: Path, export: Any) -> None:
    """The last value of a metric is the last one that holds; what ends the text says so."""
    record = killed_training(tmp_path)
    record.log(2, round=1, step=120, accuracy=0.5)
    record.train(Trained(attempt=3, number=0, first=110, end=111))
    target = tmp_path / "state.prom"
    export(ExportKind.openmetrics, record, target)
    text = target.read_text()
    labels = f'launch="{record.launch.id}",run="{record.launch.id}.0"'
    assert f'hpckit_run_metric{{{labels},key="loss"}} 65.25\n' in text
    assert 'key="accuracy"' not in text
    assert f'hpckit_run_state{{{labels},state="completed"}} 0\n' in text
    assert f"hpckit_run_attempts_total{{{labels}}} 3\n" in text
    assert text.endswith("# EOF\n")
    assert "lr" not in labels


def test_openmetrics_is_read_by_the_client_of_prometheus(tmp_path: Path, export: Any) -> None:
    """Both of its parsers take the text, with the same samples."""
    new = pytest.importorskip("prometheus_client.openmetrics.parser")
    old = pytest.importorskip("prometheus_client.parser")
    record, target = killed_training(tmp_path), tmp_path / "state.prom"
    record.log(2, round=1, step=200, **{'k"\\\n': "nan"})
    record.end(2)
    export(ExportKind.openmetrics, record, target)
    text = target.read_text()
    found = [
        {sample.name for family in parse(text) for sample in family.samples}
        for parse in (new.text_string_to_metric_families, old.text_string_to_metric_families)
    ]
    assert found[0] == found[1]
    assert {"hpckit_run_info", "hpckit_run_metric", "hpckit_run_attempts_total"} <= found[0]


def test_trace_has_attempts_rounds_saves_and_failures(tmp_path: Path, export: Any) -> None:
    """Each is an event that lies within its run, on a line of its own."""
    record = killed_training(tmp_path)
    writer = Writer(launch=record.launch, attempt=2)
    saved_at = START + timedelta(minutes=2, seconds=30)
    writer.tell(events.CheckpointSaved(at=saved_at, round=1, step=150, size=9, stall_s=0.5, duration_s=5.0))
    writer.fail()
    target = tmp_path / "trace.json"
    export(ExportKind.trace, record, target)
    document = json.loads(target.read_text())
    drawn = [one for one in document["traceEvents"] if one["ph"] != "M"]
    assert [one["name"] for one in drawn if one["tid"] == 0] == ["attempt 1", "attempt 2"]
    assert {one["name"] for one in drawn if one["tid"] == 1} == {
        "attempt 1, round 0",
        "attempt 2, round 0",
        "attempt 2, round 1",
    }
    (save,) = [one for one in drawn if one["tid"] == 2]
    assert (save["name"], save["dur"], save["args"]["stall_s"]) == ("save of step 150", 5e6, 0.5)
    assert save["ts"] == (saved_at - START - timedelta(minutes=1, seconds=5)) / timedelta(microseconds=1)
    assert [one["name"] for one in drawn if one["tid"] == 3] == ["exception"]
    assert all(one["ts"] >= 0 for one in drawn)


def test_run_that_never_began_exports_nothing(tmp_path: Path, export: Any) -> None:
    """Every text is valid without a single value."""
    record = TrainingRecord.empty(tmp_path)
    for kind in (ExportKind.csv, ExportKind.jsonl, ExportKind.openmetrics, ExportKind.trace):
        assert export(kind, record, tmp_path / kind).runs == (f"{record.launch.id}.0",)
    assert len((tmp_path / "csv").read_text().splitlines()) == 1
    assert (tmp_path / "jsonl").read_text() == ""


def test_text_without_a_path_goes_to_standard_output(tmp_path: Path, export: Any, context: Context) -> None:
    """As a table for a pipe."""
    export(ExportKind.csv, killed_training(tmp_path))
    assert isinstance(context.stdout, io.StringIO)
    assert context.stdout.getvalue().count("\n") == 201


def test_follower_repeats_the_export_until_the_run_has_ended(tmp_path: Path, export: Any) -> None:
    """Each time it has each step once, and the last one has all of them."""
    record, target = TrainingRecord.empty(tmp_path), tmp_path / "values.csv"
    record.train(Trained(attempt=1, number=0, first=0, end=9))
    seen, todo = [], [Trained(attempt=2, number=0, first=4, end=20)]

    def sleep(seconds: float) -> None:
        assert seconds >= 1
        assert expected_of(losses(rows_of(target)), record)
        seen.append(target.stat().st_ino)
        if len(seen) == 2:
            return
        if todo:
            record.train(todo.pop())
        else:
            record.end(2)

    export(ExportKind.csv, record, target, sleep=sleep)
    assert expected_of(losses(rows_of(target)), record)
    assert len(seen) == 3
    assert seen[1] == seen[2]


def test_two_exporters_never_write_one_target(tmp_path: Path, export: Any, context: Context) -> None:
    """The second one says who has it, and leaves the file alone."""
    record, target = killed_training(tmp_path), tmp_path / "values.csv"
    lock = hold_lock(tmp_path / ".values.csv.lock", at=context.now(), what="exports")
    with lock, pytest.raises(HeldError, match="has been exporting to"):
        export(ExportKind.csv, record, target)
    assert not target.exists()
    export(ExportKind.csv, record, target)
    assert not list(tmp_path.glob(".values.csv.lock*"))


def test_file_keeps_the_permissions_it_was_given(tmp_path: Path, export: Any) -> None:
    """A new file is private; one that was opened to others stays open."""
    record, target = killed_training(tmp_path), tmp_path / "values.csv"
    export(ExportKind.csv, record, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    target.chmod(0o644)
    export(ExportKind.csv, record, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_wrong_requests_say_what_is_allowed(tmp_path: Path, export: Any) -> None:
    """A folder for a text, no place for a follower, undone values where none can be."""
    record = killed_training(tmp_path)
    with pytest.raises(UsageError, match="is a folder"):
        export(ExportKind.csv, record, tmp_path)
    with pytest.raises(UsageError, match="needs a place"):
        export(ExportKind.csv, record, sleep=lambda _: None)
    with pytest.raises(UsageError, match="one value per step"):
        export(ExportKind.trace, record, tmp_path / "t", undone=True)
    (tmp_path / "plain").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        export(ExportKind.csv, record, tmp_path / "plain" / "values.csv")


def exported(desk: Desk, kind: str, **values: Any) -> str:
    """Return an export of a run that logged these values in one step."""
    launch = desk.freeze()
    Writer(launch=launch).start()
    paths = launch.paths.run(0).attempt(1)
    append_json_lines(paths.metrics, {"at": START.isoformat(), "step": 0, "round": 0, **values})
    return desk.say("export", kind, launch.id).out


_ALIKE = ("\x1bred", "\\x1bred", "\\x5cx1bred", "a\nb", "a\\nb", "\u2028", "\\u2028", "\\\x1b")


def test_keys_that_differ_are_different_series(desk: Desk) -> None:
    """A control character and what it is shown as are two names."""
    values = {key: place for place, key in enumerate(_ALIKE)}
    text = exported(desk, "openmetrics", **values)
    series = [
        splitline.rpartition(" ")[0] for splitline in text.splitlines() if "hpckit_run_metric{" in splitline
    ]
    assert len(series) == len(set(series)) == len(_ALIKE)


def test_keys_that_differ_are_different_in_csv(desk: Desk) -> None:
    """So that a pivot table of pandas has no key twice."""
    keys = (*_ALIKE, "=a", "'=a", "''=a")
    text = exported(desk, "csv", **{key: place for place, key in enumerate(keys)})
    found = [row["key"] for row in csv.DictReader(io.StringIO(text))]
    assert len(found) == len(set(found)) == len(keys)


@pytest.mark.parametrize("attack", ["=cmd|'/c calc'!A1", "+1+1", "-2+3", "@SUM(1)", "\uff1d1"])
def test_no_cell_of_csv_is_a_formula(desk: Desk, attack: str) -> None:
    """A spreadsheet that opens it computes no key, text or override; numbers stay numbers."""
    text = exported(desk, "csv", **{attack: attack, "low": "-inf", "below": -1.5})
    rows = {row["key"]: row["value"] for row in csv.DictReader(io.StringIO(text))}
    assert rows == {f"'{attack}": f"'{attack}", "low": "-inf", "below": "-1.5"}
    launch = desk.freeze("swept", sweep=[(f"x={attack}",), ("x=-1",)])
    for index in range(2):
        Writer(launch=launch, index=index).start()
        paths = launch.paths.run(index).attempt(1)
        append_json_lines(paths.metrics, {"at": START.isoformat(), "step": 0, attack: attack})
    table = list(csv.DictReader(io.StringIO(desk.say("results", launch.id, "--csv").out)))
    assert [row["x"] for row in table] == [f"'{attack}", "-1"]
    assert [row[f"'{attack}"] for row in table] == [f"'{attack}"] * 2
