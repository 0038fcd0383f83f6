"""Exports and reports say what a run logged, once, and survive what others wrote."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cli_world import START, Desk, Writer
from report_launches import gathered
from tiers import thorough

from hpckit.model import events
from hpckit.model.diagnosis.collectives import UNNAMED, RankCollectives
from hpckit.model.parallel.layout import name_ranks
from hpckit.planning.recovery.collective_wait import find_wait
from hpckit.planning.recovery.flight_recorder import DumpedBy, read_dumps
from hpckit.record.launches import Launch
from hpckit.record.metrics.history import metric_history, run_metrics
from hpckit.record.store import append_lines

pytestmark = pytest.mark.whole


def log(launch: Launch, attempt: int, **row: Any) -> None:
    """Append a row as rank 0 does."""
    paths = launch.paths.run(0).attempt(attempt)
    append_lines(paths.metrics, {"at": (START + timedelta(minutes=attempt)).isoformat(), **row})


@pytest.mark.parametrize("scale", [1, 64])
def test_a_step_of_ones_own_loses_no_value_in_a_restart(desk: Desk, scale: int) -> None:
    """Rows are undone by the step of the run, not by what the user counts."""
    launch = desk.freeze()
    for attempt, first, end in ((1, 0, 60), (2, 50, 100)):
        writer = Writer(launch=launch, attempt=attempt)
        writer.start()
        writer.tell(events.StepReached(at=START, round=0, step=first))
        for step in range(first, end):
            log(launch, attempt, step=(step + 1) * scale, run_step=step, round=0, loss=attempt)
        if attempt == 1:
            log(launch, 1, step=50 * scale, run_step=49, round=0, checked=7)
    held = {
        one.row.step: one.live()["loss"]
        for one in metric_history(launch.paths.run(0))
        if "loss" in one.live()
    }
    assert held == {(step + 1) * scale: 1 if step < 50 else 2 for step in range(100)}
    assert run_metrics(launch.paths.run(0), (2, 0)) == {"loss": 2, "checked": 7}


@pytest.mark.parametrize(
    "damage", [{"round": None}, {"round": "0"}, {"size": "1"}, {"values": []}, {"v": None}]
)
def test_damaged_last_values_are_made_anew(desk: Desk, damage: dict[str, Any]) -> None:
    """They are a cache: `status` shows what the rows say."""
    launch = desk.freeze()
    writer = Writer(launch=launch)
    writer.start()
    log(launch, 1, step=0, round=0, loss=1)
    paths = launch.paths.run(0).attempt(1)
    size = paths.metrics.stat().st_size
    values = {"loss": {"value": 9, "step": 0, "at": "", "round": 0, "run_step": None}}
    kept = {"v": 3, "size": size, "round": 0, "values": values}
    paths.last_metrics.write_text(json.dumps(kept))
    log(launch, 1, step=1, round=0, other=2)
    assert run_metrics(launch.paths.run(0), (1, 0)) == {"loss": 9, "other": 2}
    paths.last_metrics.write_text(json.dumps(kept | damage))
    assert run_metrics(launch.paths.run(0), (1, 0)) == {"loss": 1, "other": 2}


def test_progress_that_is_no_number_is_unknown(desk: Desk) -> None:
    """What JSON calls true is no step, nor a number of OpenMetrics."""
    launch = desk.freeze()
    Writer(launch=launch).start()
    progress = {"round": 0, "step": True, "total": True, "at": START.isoformat()}
    launch.paths.run(0).attempt(1).progress.write_text(json.dumps(progress))
    assert "hpckit_run_step{" not in desk.say("export", "openmetrics", launch.id).out
    assert json.loads(desk.say("status", launch.id, "--json").out)["runs"][0]["step"] is None


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_event_of_an_impossible_time_is_damaged(desk: Desk, at: str) -> None:
    """Verbs that read it go on without it."""
    launch = desk.freeze()
    writer = Writer(launch=launch)
    writer.start()
    path = launch.paths.run(0).attempt(1).events
    good = path.read_text()
    (first, *_) = good.splitlines()
    event = json.loads(first)
    path.write_text(good + json.dumps(event | {"at": at}) + "\n")
    assert gathered(desk, launch).rows[0].attempt == 1
    assert desk.say("status", launch.id, "--json").code == 0
    assert desk.say("export", "trace", launch.id, "-o", str(desk.folder / "t")).code == 0


@pytest.mark.parametrize("dirty", [5, "yes", []])
def test_report_takes_any_state_of_the_code(desk: Desk, dirty: Any) -> None:
    """What a file says of changes is not trusted to be true or false."""
    launch = desk.freeze()
    path = launch.paths.folder / "code.json"
    path.chmod(0o600)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dirty": dirty}))
    target = desk.folder / "r.html"
    assert desk.say("report", launch.id, "-o", str(target)).code == 0
    assert target.exists()


def test_report_of_many_metrics_is_no_larger_than_of_one(desk: Desk) -> None:
    """Twelve runs with twelve long curves each, on two time axes."""
    launch = desk.freeze("wide", sweep=[(f"a={number}",) for number in range(12)])
    for index in range(12):
        writer = Writer(launch=launch, index=index)
        writer.start()
        writer.tell(events.StepReached(at=START, round=0, step=0))
        paths = launch.paths.run(index).attempt(1)
        lines = [
            {
                "at": (START + timedelta(seconds=step)).isoformat(),
                "round": 0,
                "step": step,
                **{f"m{name}": ((step * 7919 + name * 104_729) % 1000) / 7 for name in range(12)},
            }
            for step in range(600)
        ]
        paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = gathered(desk, launch)
    curves = [run.live for metric in document.curves for run in metric.runs]
    assert len(curves) == 144
    assert all(one.wall_s for one in curves)
    assert sum(len(one.steps) for one in curves) <= 26_000


def every_eighth(world: int, absent: int) -> list[RankCollectives]:
    """Return what ranks in groups of every eighth one say, if one rank stays out of the tenth."""
    told = []
    for rank in range(world):
        group = rank % 8
        entries = [
            {
                "profiling_name": "nccl:all_reduce",
                "collective_seq_id": number,
                "is_p2p": False,
                "process_group": [f"dp{group}", "undefined"],
                "state": "completed" if number < 10 or group else "scheduled",
                "time_created_ns": 10**9 * number,
            }
            for number in range(9, 10 if rank == absent else 11)
        ]
        groups = {f"dp{group}": range(group, world, 8)}
        by = DumpedBy(rank=rank, at_s=100.0, node=f"n{rank // 8}", groups=groups)
        one = read_dumps([{"version": "2.5", "pg_config": {}, "entries": entries}], by)
        assert one is not None
        told.append(one)
    return told


@pytest.mark.parametrize("world", [64, 4096])
def test_flight_recorder_blames_one_rank_of_any_world(world: int) -> None:
    """Members of large groups are known as well as those of small ones."""
    found = find_wait(every_eighth(world, absent=8), world)
    assert found is not None
    assert (found.missing, found.culprit) == ((8,), 8)
    assert "rank 8 " in found.words
    assert len(found.words) < 300


def test_members_that_no_message_holds_blame_nobody_outside() -> None:
    """A group without a pattern is what those who were in it make it."""
    told = every_eighth(64, absent=8)
    unnamed = [
        replace(one, groups=tuple(replace(at, ranks=UNNAMED) for at in one.groups)) for one in told
    ]
    found = find_wait(unnamed, 64)
    assert found is not None
    assert (found.missing, found.culprit) == ((8,), 8)


def test_message_counts_ranks_that_it_does_not_name() -> None:
    """Of very many ranks the first ones are named; a few, or neighbours, are named whole."""
    found = find_wait(every_eighth(4096, absent=8), 4096)
    assert found is not None
    assert "ranks 0, 16, 24, 32, 40, 48, 56, 64, … (511 in all) wait in it" in found.words
    assert len(found.waiting) == 511
    assert name_ranks(range(4096), None) == "ranks 0-4095"
    assert name_ranks(range(0, 64, 8), None) == "ranks 0, 8, 16, 24, 32, 40, 48, 56"


def test_report_of_many_restarts_is_no_larger_than_of_few(desk: Desk) -> None:
    """What forty restarts have undone of a curve has as many columns as the curve."""
    launch = desk.freeze("wide", sweep=[(f"a={number}",) for number in range(4)])
    for index in range(4):
        writer = Writer(launch=launch, index=index)
        writer.start()
        lines = []
        for again in range(40):
            writer.tell(events.StepReached(at=START, round=again, step=20 * again))
            for step in range(20 * again, 20 * again + 100):
                row = {"at": START.isoformat(), "round": again, "step": step}
                lines.append(row | {f"m{name}": (step * 7919 + name) % 997 for name in range(12)})
        paths = launch.paths.run(index).attempt(1)
        paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curves = [run for metric in gathered(desk, launch).curves for run in metric.runs]
    assert len(curves) == 48
    assert all(len(run.undone) == 39 for run in curves)
    assert sum(len(piece.steps) for run in curves for piece in run.undone) <= 36_000


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "metrics"), [(434, 12), (3, 200)])
@thorough
def test_report_of_a_thousand_runs_is_below_eight_megabytes_whatever_they_log(
    desk: Desk, rows: int, metrics: int
) -> None:
    """Neither long curves nor many metrics make it larger, and it says what it leaves out.

    Twelve runs have curves of their own; most of the others are short, as is the time of this test.
    """
    pytest.importorskip("plotly")
    launch = desk.freeze("wide", sweep=[(f"a={number}",) for number in range(1000)])
    for index in range(1000):
        Writer(launch=launch, index=index).start()
        lines = (
            {
                "at": (START + timedelta(seconds=step)).isoformat(),
                "step": step,
                **{f"metric_{name}": (step * 7919 + name + index) / 7 for name in range(metrics)},
            }
            for step in range(rows if index < 60 else min(rows, 40))
        )
        paths = launch.paths.run(index).attempt(1)
        paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert desk.say("report", launch.id, "-o", "big.html").code == 0
    text = (desk.folder / "big.html").read_bytes()
    assert len(text) < 8_000_000
    assert (b"184 more metrics not in this table" in text) is (metrics == 200)


def exported(desk: Desk, kind: str, **values: Any) -> str:
    """Return an export of a run that logged these values in one step."""
    launch = desk.freeze()
    Writer(launch=launch).start()
    log(launch, 1, step=0, round=0, **values)
    return desk.say("export", kind, launch.id).out


_ALIKE = ("\x1bred", "\\x1bred", "\\x5cx1bred", "a\nb", "a\\nb", "\u2028", "\\u2028", "\\\x1b")


def test_keys_that_differ_are_different_series(desk: Desk) -> None:
    """A control character and what it is shown as are two names."""
    values = {key: place for place, key in enumerate(_ALIKE)}
    text = exported(desk, "openmetrics", **values)
    series = [one.rpartition(" ")[0] for one in text.splitlines() if "hpckit_run_metric{" in one]
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
        append_lines(paths.metrics, {"at": START.isoformat(), "step": 0, attack: attack})
    table = list(csv.DictReader(io.StringIO(desk.say("results", launch.id, "--csv").out)))
    assert [row["x"] for row in table] == [f"'{attack}", "-1"]
    assert [row[f"'{attack}"] for row in table] == [f"'{attack}"] * 2


def test_names_of_metrics_are_short_for_people(desk: Desk) -> None:
    """`status` and `results` stay readable whatever a key is; JSON has it whole."""
    launch = desk.freeze()
    Writer(launch=launch).start()
    log(launch, 1, step=0, round=0, **{"k" * 5000: 1})
    for verb in ("status", "results"):
        lines = desk.say(verb, launch.id).out.splitlines()
        assert max(map(len, lines)) < 400
    assert "k" * 5000 in desk.say("status", launch.id, "--json").out
