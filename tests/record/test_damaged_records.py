"""Promises of every verb that reads about records that are damaged, or that a stranger made up."""

from __future__ import annotations

import json
import shutil

import pytest
from cli_world import START, Desk, Writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record.damage import Damaged, Place, answer, damage, places

from hpckit.model import events
from hpckit.model.launch import ClusterKind
from hpckit.record.launches import Launch, load_launch, read_launch_events

pytestmark = pytest.mark.whole

OTHERS: tuple[object, ...] = (
    *(None, True, -1, 10**30, 1e308, float("inf"), "x", ""),
    *([], [1], ["x"], {}, {"a": 1}, [[[[]]]], "2026-01-01T00:00:00"),
)
"""JSON of every type, numbers that nothing counts up to, and a time without its zone."""

READING = (
    ("ls", "--json", "--sort", "created"),
    ("status", "LAUNCH", "--goodput"),
    ("status", "LAUNCH.1", "--json"),
    ("results", "LAUNCH"),
    ("logs", "LAUNCH.1"),
    ("resume", "LAUNCH", "--dry-run"),
    ("resume", "LAUNCH"),
    ("watch", "LAUNCH"),
    ("cancel", "LAUNCH", "--yes"),
)


def told(desk: Desk, kind: ClusterKind) -> Launch:
    """Return a launch of which one run completed, one failed, and one was interrupted."""
    launch = desk.freeze("broken", sweep=(("lr=0.1",), ("lr=0.2",), ("lr=0.3",)), kind=kind)
    desk.tell(
        launch,
        events.LocalStarted(at=START, host="elsewhere", pid=1, started="1"),
        events.SubmitIntended(at=START, job_index=0, job_name="broken"),
        events.Submitted(at=START, job_index=0, job="12"),
        events.CancelRequested(at=START, runs=(2,)),
        events.JobAdded(at=START, job=launch.jobs[0], after=(0, 1, 1), fresh=True),
        events.SubmitRefused(at=START, job_index=0, message="no"),
    )
    runs = [Writer(launch=launch, index=index) for index in range(3)]
    for run in runs:
        run.start(job="12")
        run.log(0, "hello\n")
        run.metrics(3, loss=0.5)
        run.tell(
            events.StepReached(at=START, round=0, step=3),
            events.Warned(at=START, message="slow"),
            events.CheckpointSaved(at=START, round=0, step=3, size=9, stall_s=0.1, duration_s=1),
        )
    runs[0].complete()
    runs[1].fail(traceback="Traceback")
    runs[2].interrupt()
    return launch


@pytest.fixture(scope="module", params=[ClusterKind.local, ClusterKind.slurm])
def broken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    """Return a launch to damage, of each kind of cluster."""
    folder = tmp_path_factory.mktemp("records") / "outputs"
    folder.mkdir()
    desk = Desk(folder=folder)
    launch = told(desk, request.param)
    desk.freeze("whole")
    return Damaged(outputs=folder, launch=launch)


def check_answers(broken: Damaged, place: Place, other: object) -> None:
    """See that every verb answers, and that `ls` has the other launches."""
    for words, said in broken.answers(place, other, READING):
        if words[0] == "ls":
            launches = json.loads(said.out)["launches"]
            assert any(launch["launch"].startswith("whole-") for launch in launches)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_verb_ends_in_a_traceback_whatever_a_record_holds(broken: Damaged, data: st.DataObject) -> None:
    """A value of another type costs an error or its own launch, never the other launches."""
    place = data.draw(st.sampled_from(places(broken.launch.folder)))
    check_answers(broken, place, data.draw(st.sampled_from(OTHERS)))


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (("launch.json", 0, ("id",)), 7),
        (("launch.json", 0, ("runs",)), {"0": {}}),
        (("launch.json", 0, ("runs", 0)), "x"),
        (("launch.json", 0, ("runs", 1, "index")), 10**30),
        (("launch.json", 0, ("runs", 1, "overrides")), [1]),
        (("launch.json", 0, ("jobs", 0, "runs")), [0, 1]),
        (("launch.json", 0, ("jobs", 0, "resources", "timeout")), 1e308),
        (("launch.json", 0, ("cluster", "bin_dir")), ["x"]),
        (("launch.json", 0, ("created_at",)), "2026-01-01T00:00:00"),
        (("launch.json", 0, ("code", "project")), None),
        (("runs/00001/attempts/001/events.jsonl", 0, ("event",)), []),
        (("runs/00001/attempts/001/events.jsonl", 0, ("at",)), "2026-01-01T00:00:00"),
        (("runs/00001/attempts/001/progress.json", 0, ()), [1]),
    ],
    ids=str,
)
def test_no_verb_ends_in_a_traceback_where_a_field_is_of_another_type(
    broken: Damaged, place: Place, other: object
) -> None:
    """The same of the fields that were trusted."""
    check_answers(broken, place, other)


def test_launches_with_a_damaged_record_say_which_file_and_what_is_wrong(broken: Damaged) -> None:
    """The error names the file, the field and its value, and `ls` notes it beside the rest."""
    outputs = broken.outputs.parent / "named"
    shutil.copytree(broken.outputs, outputs)
    damage(outputs / broken.launch.id, ("launch.json", 0, ("cluster", "modules")), {"a": 1})
    said = answer(outputs, ("status", broken.launch.id))
    assert said.code == 1
    assert "launch.json is damaged: it is not a launch record (cluster: modules: {'a': 1}" in said.err
    assert "delete its folder" in said.err
    said = answer(outputs, ("ls",))
    assert said.code == 0
    assert "whole-" in said.out
    assert "cluster: modules" in said.err
    shutil.rmtree(outputs)


@pytest.mark.parametrize("name", ["runs/00000/attempts", "runs/00000/attempts/001/events.jsonl"])
def test_attempts_that_cannot_be_listed_are_not_taken_for_none(broken: Damaged, name: str) -> None:
    """No run begins once more because its attempts cannot be read: that is an error, and said."""
    outputs = broken.outputs.parent / "unlisted"
    shutil.copytree(broken.outputs, outputs)
    path = outputs / broken.launch.id / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(path.name)
    told = len(read_launch_events(load_launch(outputs / broken.launch.id)))
    for verb in ("status", "results", "resume", "watch"):
        said = answer(outputs, (verb, broken.launch.id))
        assert (said.code, f"cannot read {path}" in said.err) == (1, True), verb
    assert len(read_launch_events(load_launch(outputs / broken.launch.id))) == told
    said = answer(outputs, ("ls",))
    assert (said.code, "whole-" in said.out, f"cannot read {path}" in said.err) == (0, True, True)
    shutil.rmtree(outputs)
