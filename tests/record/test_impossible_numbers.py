"""Promises of every verb that reads about numbers that nothing measures, and JSON can hold."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_world import START, Desk, Writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record.damage import Damaged, Place, documents, places
from report_launches import gathered

from hpckit.model import events
from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.launch import ClusterKind
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import append_json_lines, make_private_folder, write_json

pytestmark = pytest.mark.whole

HUGE = 10**400
"""JSON has it, Python reads it, and no float holds it."""

IMPOSSIBLE = (float("nan"), float("inf"), float("-inf"), HUGE, -1, 7.0, 1e300, -1e300, 2**70)
BEGIN = START + timedelta(minutes=1)
PROFILE = "20260101T000100Z-a"
STRAGGLER = Straggler(
    rank=0, node="n1", gpu=None, slower_by=0.3, own_s=1.3, peers_s=1, step_s=1.4, windows=20, judged=20
)
READING = (
    ("ls", "--sort", "loss"),
    ("status", "LAUNCH", "--json", "--goodput"),
    ("results", "LAUNCH", "--json"),
    ("report", "LAUNCH", "--json"),
    ("report", "LAUNCH", "--markdown"),
    ("export", "csv", "LAUNCH"),
    ("export", "openmetrics", "LAUNCH"),
    ("export", "trace", "LAUNCH"),
    ("profile", "LAUNCH", "--last", "--json"),
)


def completed(desk: Desk) -> tuple[Launch, AttemptPaths]:
    """Return a launch whose only run has completed, and its attempt."""
    launch = desk.freeze()
    writer = Writer(launch=launch)
    writer.start()
    writer.metrics(0, loss=2.0)
    writer.metrics(1, loss=1.0)
    writer.complete()
    return launch, launch.paths.run(0).attempt(1)


def plain_total(**changed: Any) -> dict[str, Any]:
    """Return the JSON of a total of one GPU over two minutes, with some of it replaced."""
    gpus = {
        "uuids": ["GPU-1"],
        "samples": [30],
        "gauges": {"power_w": [300], "memory_used_bytes": [10**9], "busy_share": [0.5]},
        "counters": {"energy_j": [36000], "ecc_uncorrected": [0], "thermal_capped_s": [1]},
        "reasons": {"power_cap": [0.5]},
        "troubles": {},
    }
    gpus |= changed.pop("gpus", {})
    start, end = BEGIN.isoformat(), (BEGIN + timedelta(minutes=2)).isoformat()
    return {"v": 1, "kind": "total", "start": start, "end": end, "gpus": gpus, **changed}


def ranks(**changed: Any) -> dict[str, Any]:
    """Return the steps of a rank in a row, with some of it replaced."""
    plain = {"rank": [0], "first_step": [0], "steps": [99], "samples": [990], "seconds": [100.5]}
    waits = {"data_s": [50.5], "own_s": [90.5], "waiting_s": [2.5], "phases": {"forward": [9.1]}}
    return {**plain, **waits, **changed}


def host(**gauges: Any) -> dict[str, Any]:
    """Return a node in a row, with these gauges beside its own."""
    own = {"cpu_share": [0.1, 0.2, 0.4, 0.4, 20], "infiniband_ports_active": 4}
    return {"samples": 30, "gauges": {**own, **gauges}, "counters": {"job_cpu_s": 12.5}}


def profiled(attempt: AttemptPaths, took: float) -> None:
    """Record a profile of one kernel that took so many microseconds."""
    result = {"rank": 0, "node": "n1", "first_step": 1, "steps": 5, "size": 3}
    asked = {"id": PROFILE, "at": BEGIN.isoformat(), "round": 0, "steps": 5, "ranks": [0]}
    said = {"tool": "torch", "refused": None, "done": True, "results": [result]}
    make_private_folder(attempt.profiles)
    write_json(attempt.profile_answer(PROFILE), {**asked, **said})
    make_private_folder(attempt.round(0).profile_folder(PROFILE))
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": took, "pid": 0, "tid": 0}
    trace = json.dumps({"traceEvents": [kernel]}).encode()
    attempt.round(0).profile_trace(PROFILE, 0).write_bytes(gzip.compress(trace))


def measured(launch: Launch) -> None:
    """Record something of every kind that has numbers of a run."""
    writer, attempt = Writer(launch=launch), launch.paths.run(0).attempt(1)
    writer.start()
    for step in range(3):
        writer.metrics(step, loss=0.5, accuracy=0.9)
    writer.tell(
        events.StepReached(at=START, round=0, step=0),
        events.CheckpointSaved(at=BEGIN, round=0, step=1, size=9, stall_s=0.1, duration_s=1.5),
        events.StragglerFound(at=BEGIN, round=0, straggler=STRAGGLER),
        events.NodeLost(at=BEGIN, node="n1", silent_s=6.5),
    )
    file, at = attempt.newest_telemetry_file("n1"), BEGIN.isoformat()
    append_json_lines(file, {"v": 1, "kind": "segment", "node": "n1", "start": at, "row_s": 30.0})
    device = {"uuid": "GPU-1", "vendor": "nvidia", "index": 0, "name": "H100"}
    limits = {"memory_bytes": 80 << 30, "sm_clock_max_mhz": 1980, "slowdown_c": 90}
    append_json_lines(file, {"v": 1, "kind": "device", **device, **limits})
    append_json_lines(file, {"v": 1, "kind": "event", "at": at, "what": "xid", "code": 79, "count": 1})
    total = plain_total(host=host(), ranks=ranks())
    append_json_lines(file, {**total, "kind": "row"})
    append_json_lines(file, total)
    profiled(attempt, 12.5)
    writer.complete()


def numbers(folder: Path) -> list[Place]:
    """Return every number of the records of a launch."""
    known = {name: documents(folder / name) for name, _, _ in places(folder)}
    return [place for place in places(folder) if _is_number(known, place)]


def _is_number(known: dict[str, list[Any]], place: Place) -> bool:
    name, line, way = place
    value = known[name][line]
    for key in way:
        value = value[key]
    return type(value) in {int, float}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    """Return a launch whose numbers are all possible."""
    outputs = tmp_path_factory.mktemp("numbers") / "outputs"
    outputs.mkdir()
    launch = Desk(folder=outputs).freeze(kind=ClusterKind.local)
    measured(launch)
    return Damaged(outputs=outputs, launch=launch)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_verb_ends_in_a_traceback_whatever_number_a_record_holds(
    whole: Damaged, data: st.DataObject
) -> None:
    """A number that nothing measures costs its line or its own launch, and JSON stays JSON."""
    place = data.draw(st.sampled_from(numbers(whole.launch.folder)))
    for words, said in whole.answers(place, data.draw(st.sampled_from(IMPOSSIBLE)), READING):
        if said.code == 0 and "--json" in words:
            json.loads(said.out, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "changed",
    [
        {"gpus": {"gauges": {"memory_used_bytes": [float("inf")]}}},
        {"gpus": {"gauges": {"memory_used_bytes": [float("nan")]}}},
        {"gpus": {"gauges": {"power_w": [-300]}}},
        {"gpus": {"gauges": {"busy_share": [7.0]}}},
        {"gpus": {"counters": {"energy_j": [HUGE]}}},
        {"gpus": {"counters": {"energy_j": [-1]}}},
        {"gpus": {"counters": {"ecc_uncorrected": [float("inf")]}}},
        {"gpus": {"samples": [float("inf")]}},
        {"gpus": {"reasons": {"power_cap": [7.0]}}},
        {"ranks": ranks(seconds=[float("inf")], data_s=[float("inf")])},
        {"ranks": ranks(steps=[HUGE])},
        {"ranks": ranks(phases={"forward": [-1]})},
        {"host": host(infiniband_ports_active=float("inf"))},
        {"host": host(cpu_share=[0.1, 0.2, 0.4, 0.4, float("inf")])},
    ],
    ids=[
        *("infinite", "nan", "negative power", "share", "huge counter", "negative energy"),
        *("infinite counter", "samples", "reasons", "seconds", "steps", "phases", "host", "count"),
    ],
)
def test_a_line_of_telemetry_with_an_impossible_number_is_passed_over(
    desk: Desk, changed: dict[str, Any]
) -> None:
    """One bad line of one node takes neither `status` nor `report` away; the line before counts."""
    launch, attempt = completed(desk)
    append_json_lines(attempt.newest_telemetry_file("n1"), plain_total())
    append_json_lines(attempt.newest_telemetry_file("n1"), plain_total(**changed))
    for verb in ("status", "report"):
        said = desk.say(verb, launch.id, "--json")
        assert said.code == 0
        (run,) = json.loads(said.out, parse_constant=pytest.fail)["runs"]
        assert (run["telemetry"]["energy_j"], run["telemetry"]["power_w"]) == (36000, 300)


@pytest.mark.parametrize(
    "event",
    [
        {"event": "checkpoint_saved", "step": 1, "size": 9, "duration_s": HUGE, "stall_s": 0.1},
        {"event": "checkpoint_saved", "step": HUGE, "size": 9, "duration_s": 1, "stall_s": 0.1},
        {"event": "straggler_found", "straggler": {"slower_by": HUGE}},
        {"event": "straggler_found", "straggler": {"own_s": float("inf")}},
        {"event": "straggler_found", "straggler": {"own_s": 1e300}},
    ],
    ids=["duration", "step", "slower by", "infinite seconds", "more than seconds"],
)
def test_an_event_with_an_impossible_number_is_passed_over(desk: Desk, event: dict[str, Any]) -> None:
    """It ends neither an account nor a diagnosis nor an export."""
    launch, attempt = completed(desk)
    if "straggler" in event:
        fields = (*("rank", "node", "gpu", "slower_by", "own_s", "peers_s", "step_s"),)
        known = {name: getattr(STRAGGLER, name) for name in (*fields, "windows", "judged")}
        event = {**event, "straggler": {**known, **event["straggler"]}}
    append_json_lines(attempt.events, {"v": 1, "at": BEGIN.isoformat(), "round": 0, **event})
    for words in (("status", "--json", "--goodput"), ("report", "--json")):
        said = desk.say(words[0], launch.id, *words[1:])
        assert said.code == 0
        assert json.loads(said.out)["runs"][0]["stragglers"] == []
    assert desk.say("export", "trace", launch.id).code == 0
    assert desk.say("export", "openmetrics", launch.id).code == 0


@pytest.mark.parametrize("kind", ["csv", "jsonl", "openmetrics"])
def test_a_huge_step_ends_no_export(desk: Desk, kind: str) -> None:
    """`run.log(step=…)` took any integer: beyond 64 bits it is no step, and the value has none."""
    launch, attempt = completed(desk)
    for value in (1, 2):
        row = {"step": HUGE, "at": BEGIN.isoformat(), "round": 0, "loss": value}
        append_json_lines(attempt.metrics, row)
    assert desk.say("export", kind, launch.id).code == 0


def test_a_huge_metric_ends_no_report(desk: Desk) -> None:
    """`run.log(loss=10**400)` was taken, and exports show it; for a report it is infinite."""
    launch, attempt = completed(desk)
    append_json_lines(attempt.metrics, {"step": 2, "at": BEGIN.isoformat(), "round": 0, "loss": HUGE})
    assert desk.say("report", "--json", launch.id).code == 0
    assert desk.say("results", launch.id).code == 0


def test_a_step_beyond_64_bits_is_left_out_for_tensorboard(desk: Desk) -> None:
    """A step that a tracker has no place for is left out and counted, as fractions are."""
    pytest.importorskip("tensorboard")
    launch, attempt = completed(desk)
    append_json_lines(attempt.metrics, {"step": 2**70, "at": BEGIN.isoformat(), "round": 0, "loss": 0.5})
    said = desk.say("export", "tensorboard", launch.id)
    assert said.code == 0
    assert "left out 1 value" in said.err


def test_a_huge_time_in_a_trace_is_no_traceback(desk: Desk) -> None:
    """The trace of a profile may be a stranger's."""
    launch, attempt = completed(desk)
    profiled(attempt, HUGE)
    assert desk.say("profile", "--last", launch.id).code == 0


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
