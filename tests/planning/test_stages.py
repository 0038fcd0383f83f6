"""Promises of stages: planning.stages, stage_jobs, waits, resume_stages and model.stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hpckit.errors import ConfigError
from hpckit.model import events
from hpckit.model.blocked import mark_runs_that_cannot_start
from hpckit.model.cluster.site import NO_LIMITS, SubmitLimits
from hpckit.model.failure import Cause, Failure
from hpckit.model.history import LaunchHistory, build_launch_history
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig, Recovery, Resources
from hpckit.model.plain import to_plain
from hpckit.model.plan import LaunchPlan, SweepPoint
from hpckit.model.run import Observation, RunRecord, RunView
from hpckit.model.stages import (
    DependencyType,
    add_prerequisite_runs,
    list_prerequisite_runs,
    map_earlier_stages_to_runs,
)
from hpckit.model.states import Judgement, RunState, Standing, parse_slurm_state
from hpckit.planning.jobs.stage_jobs import build_slurm_dependency
from hpckit.planning.plan import LaunchIdentity, build_launch_plan
from hpckit.planning.recovery.resume import Known, build_resumed_stage_jobs, choose_runs_to_resume
from hpckit.planning.stages import parse_stages

AT = datetime(2026, 1, 2, tzinfo=UTC)
PIPELINE: Mapping[str, Any] = {
    "prepare": {"once": True},
    "train": None,
    "evaluate": {},
    "report": {"once": True, "after": "afterany"},
}
TASK = LaunchConfig(
    entry_point="train:main", cluster=Cluster(kind=ClusterKind.slurm, gpus_per_node=4), stages=dict(PIPELINE)
)


def points(count: int, *, gpus: Mapping[int, int] | None = None, **fields: Any) -> list[SweepPoint]:
    """Return the points of the pipeline over so many values; `gpus` are those of some trainings."""
    found = []
    for name, stage in PIPELINE.items():
        for position in range(1 if stage and stage.get("once") else count):
            asked = (gpus or {}).get(position, 0) if name == "train" else 0
            settings = replace(TASK, resources=Resources(gpus_per_node=asked), **fields)
            config = {**to_plain(settings), "lr": position}
            found.append(SweepPoint(overrides=(), config=config, settings=settings, stage=name))
    return found


def plan(given: list[SweepPoint], limits: SubmitLimits = NO_LIMITS) -> LaunchPlan:
    """Plan these points."""
    identity = LaunchIdentity(id="demo", created_at=AT)
    return build_launch_plan(given, identity=identity, folder="/f", arguments=(), python="/p", limits=limits)


def history(made: LaunchPlan, *more: events.Event) -> LaunchHistory:
    """Return the history of a plan whose job K is 100 + K to Slurm."""
    accepted = [events.Submitted(at=AT, job_index=job.index, job=str(100 + job.index)) for job in made.jobs]
    return build_launch_history(made.jobs, [*accepted, *more])


def dependencies(made: LaunchPlan, known: LaunchHistory) -> list[str | None]:
    """Return what each job waits for."""
    return [build_slurm_dependency(job, made.stages, known) for job in made.jobs]


def view(made: LaunchPlan, run: int, state: RunState, *, slurm: str | None = None) -> RunView:
    """Return a run that came to this; one that is pending has not begun."""
    began = state is not RunState.pending
    failed = state is RunState.failed
    record = RunRecord(
        id=f"demo.{run}",
        index=run,
        overrides=(),
        folder="/f",
        job=f"9_{run}",
        state=state,
        attempt=int(began),
        started_at=AT if began else None,
        failure=Failure(cause=Cause.exception, message="boom") if failed else None,
        stage=made.runs[run].stage,
    )
    seen = None
    if slurm is not None:
        seen = Observation(job=f"9_{run}", state=parse_slurm_state(slurm), seen_at=AT)
    return RunView(record=record, observation=seen, asked=True)


DONE, FAILED, PENDING = RunState.completed, RunState.failed, RunState.pending


def failing_middle(made: LaunchPlan) -> tuple[RunView, ...]:
    """Return two points of which the second one's training failed."""
    seen = [
        view(made, 0, DONE, slurm="COMPLETED"),
        view(made, 1, DONE, slurm="COMPLETED"),
        view(made, 2, FAILED, slurm="FAILED"),
        view(made, 3, DONE, slurm="COMPLETED"),
        view(made, 4, PENDING, slurm="CANCELLED"),
        view(made, 5, DONE, slurm="COMPLETED"),
    ]
    return mark_runs_that_cannot_start(seen, made.stages)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ({"Prepare": {}}, "stages.Prepare is not a valid stage name"),
        ({"prepare": "cpu"}, "must be a mapping"),
        ({"prepare": {"override": []}}, "did you mean stages.prepare.overrides"),
        ({"prepare": {"overrides": "resources=cpu"}}, "must be a list"),
        ({"prepare": {"once": "yes"}}, "must be true or false"),
        ({"prepare": {"after": "afterok"}}, "there is no stage before it"),
        ({"prepare": {}, "train": {"after": "notok"}}, "one of afterok, aftercorr, afterany"),
        ({"prepare": {"once": True}, "train": {"after": "aftercorr"}}, "needs a run for every point"),
    ],
)
def test_stages_that_make_no_sense_are_refused(stages: Mapping[str, Any], said: str) -> None:
    """Each refusal names the key, its value and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        parse_stages(stages)
    assert said in f"{raised.value.message} {raised.value.hint}"


def test_stages_follow_point_by_point_where_both_are_swept() -> None:
    """Without a word on it, corr follows a swept stage, ok any other."""
    kinds = [stage.after for stage in parse_stages(PIPELINE)]
    assert kinds == [
        DependencyType.afterok,
        DependencyType.afterok,
        DependencyType.aftercorr,
        DependencyType.afterany,
    ]


def test_runs_know_what_they_follow_and_what_came_before() -> None:
    """An evaluation follows its own training and finds the data; the report finds everything."""
    stages = plan(points(3)).stages
    assert [list(list_prerequisite_runs(stages, run)) for run in (0, 2, 5, 7)] == [[], [0], [2], [4, 5, 6]]
    assert map_earlier_stages_to_runs(stages, 5) == {"prepare": range(1), "train": range(2, 3)}
    assert map_earlier_stages_to_runs(stages, 7) == {
        "prepare": range(1),
        "train": range(1, 4),
        "evaluate": range(4, 7),
    }
    assert add_prerequisite_runs(stages, [5]) == (0, 2, 5)


def test_jobs_of_stages_wait_for_the_stage_before() -> None:
    """One job a stage, with Slurm's afterok, aftercorr and afterany."""
    made = plan(points(3))
    assert [job.runs for job in made.jobs] == [(0,), (1, 2, 3), (4, 5, 6), (7,)]
    assert [[(one.job, one.kind) for one in job.after] for job in made.jobs] == [
        [],
        [(0, DependencyType.afterok)],
        [(1, DependencyType.aftercorr)],
        [(2, DependencyType.afterany)],
    ]
    assert dependencies(made, history(made)) == [None, "afterok:100", "aftercorr:101", "afterany:102"]


def test_jobs_of_stages_hold_the_same_points_whatever_each_asks_for() -> None:
    """Where trainings ask for different things, their evaluations are split alike."""
    made = plan(points(3, gpus={1: 2}))
    assert [job.runs for job in made.jobs] == [(0,), (1, 3), (4, 6), (2,), (5,), (7,)]
    assert dependencies(made, history(made)) == [
        None,
        "afterok:100",
        "aftercorr:101",
        "afterok:100",
        "afterok:103",
        "afterany:102:104",
    ]


def test_arrays_of_a_limited_cluster_come_stage_by_stage() -> None:
    """No array is too long, and an evaluation stands right behind its trainings."""
    made = plan(points(5), SubmitLimits(array_index=2))
    assert [job.runs for job in made.jobs] == [*((0,), (1, 2), (6, 7), (3, 4), (8, 9), (5,), (10,)), (11,)]
    assert dependencies(made, history(made))[1:7] == [
        *("afterok:100", "aftercorr:101", "afterok:100", "aftercorr:103", "afterok:100"),
        "afterok:105",
    ]


def test_jobs_do_not_wait_for_what_slurm_has_no_more() -> None:
    """What is not in the queue any more is over: each run sees for itself what came of it."""
    made = plan(points(2))
    assert build_slurm_dependency(made.jobs[1], made.stages, history(made), {"101"}) is None
    assert build_slurm_dependency(made.jobs[2], made.stages, history(made), {"101"}) == "aftercorr:101"


def test_signatures_tell_what_a_run_follows() -> None:
    """Two evaluations of one configuration differ where they evaluate different trainings."""
    given = [
        replace(point, config={**point.config, "lr": 0}) if point.stage == "evaluate" else point
        for point in points(2)
    ]
    runs = plan(given).runs
    assert runs[3].config == runs[4].config
    assert runs[3].signature != runs[4].signature
    assert runs[0].signature != runs[3].signature


def test_signature_is_the_same_with_and_without_a_name_for_stages() -> None:
    """Launches of before keep their signatures."""
    point = SweepPoint(overrides=(), config=to_plain(TASK), settings=replace(TASK, stages={}))
    bare = replace(point, config={k: v for k, v in point.config.items() if k != "stages"})
    assert plan([point]).runs[0].signature == plan([bare]).runs[0].signature


def test_successors_are_refused_where_a_stage_follows() -> None:
    """A run that ends with its first job would let the next stage begin too early."""
    with pytest.raises(ConfigError, match="successor is on in stage prepare"):
        plan(points(1, recovery=Recovery(queue_successor=True)))


def test_runs_behind_a_failed_one_are_cancelled_with_the_reason() -> None:
    """Only the evaluation of the failed training is, and it says which one that was."""
    seen = failing_middle(plan(points(2)))
    assert [one.state for one in seen] == [DONE, DONE, FAILED, DONE, RunState.cancelled, DONE]
    assert seen[4].blocked == "stage train failed (run 2: exception: boom)"
    assert [one.blocked for one in seen if one.record.index != 4] == [""] * 5


def test_runs_behind_a_failed_one_name_the_first_cause() -> None:
    """What never began because of what never began says what failed in the end."""
    stages = dict(PIPELINE) | {"report": {"once": True, "after": "afterok"}}
    given = [replace(point, settings=replace(point.settings, stages=stages)) for point in points(1)]
    made = plan(given)
    seen = [view(made, 0, FAILED, slurm="FAILED")]
    seen += [view(made, run, PENDING, slurm="CANCELLED") for run in (1, 2, 3)]
    reasons = {run.blocked for run in mark_runs_that_cannot_start(seen, made.stages)[1:]}
    assert reasons == {"stage prepare failed (run 0: exception: boom)"}


def test_runs_that_still_wait_are_not_blocked() -> None:
    """As long as Slurm has the job, or it is still to be handed in, nothing is said of its run."""
    made = plan(points(1))
    failed = view(made, 1, FAILED, slurm="FAILED")
    queued = view(made, 2, PENDING, slurm="PENDING")
    unborn = replace(queued, observation=None)
    assert mark_runs_that_cannot_start([failed, queued], made.stages)[1].state is PENDING
    (_, known) = mark_runs_that_cannot_start([failed, unborn], made.stages, unborn=[2])
    assert known.blocked == ""


def test_resume_picks_up_at_the_failed_stage() -> None:
    """The failed training, its evaluation, and the report over all are submitted again."""
    made = plan(points(2))
    choice = choose_runs_to_resume(failing_middle(made), Known(), cancelled=False, stages=made.stages)
    assert choice.resumed == (2, 4, 5)
    known = history(made)
    jobs = build_resumed_stage_jobs(
        "demo", choice.resumed, made.stages, job_of=known.find_job_of_run, begun={2, 5}, first_index=4
    )
    assert [(job.index, job.runs) for job in jobs] == [(4, (2,)), (5, (4,)), (6, (5,))]
    added = [events.JobAdded(at=AT, job=job, after=(1,)) for job in jobs]
    taken = [events.Submitted(at=AT, job_index=index, job=str(100 + index)) for index in (4, 5)]
    known = history(made, *added, *taken)
    assert build_slurm_dependency(jobs[1], made.stages, known, {"104"}) == "afterok:104"
    assert build_slurm_dependency(jobs[2], made.stages, known, {"104", "105"}) == "afterany:105"


def test_run_that_waited_for_an_earlier_job_is_resumed_after_all() -> None:
    """Slurm cancels it although its training goes on in a later job: it has to follow that one."""
    made = plan(points(1))
    seen = [
        view(made, 0, DONE, slurm="COMPLETED"),
        view(made, 1, RunState.running, slurm="RUNNING"),
        view(made, 2, PENDING, slurm="CANCELLED"),
    ]
    known = mark_runs_that_cannot_start(seen, made.stages, resumed={1: 4})
    assert known[2].blocked == "stage train did not complete in time (run 1, resumed later)"
    assert choose_runs_to_resume(known, Known(), cancelled=False, stages=made.stages).resumed == (2,)
    assert mark_runs_that_cannot_start(seen, made.stages, resumed={1: 4, 2: 5})[2].blocked == ""


def test_resume_leaves_what_follows_a_run_that_is_spent() -> None:
    """Where the failed run is not tried again, nothing that follows it is."""
    made = plan(points(2))
    spent = Known(spent={2: "no restart after exception"})
    choice = choose_runs_to_resume(failing_middle(made), spent, cancelled=False, stages=made.stages)
    assert choice.resumed == ()
    found = {one.index: one.why for one in choice.skipped}
    assert found[4].standing is Standing.blocked
    assert "stage train failed (run 2" in found[4].detail
    assert found[5].standing is Standing.completed


def test_resume_of_a_run_behind_one_that_was_not_chosen_names_that_one() -> None:
    """The evaluation alone cannot be resumed: its training has to be, too."""
    made = plan(points(2))
    choice = choose_runs_to_resume(failing_middle(made)[4:5], Known(), cancelled=True, stages=made.stages)
    assert [one.why for one in choice.skipped] == [Judgement(standing=Standing.detached, follows=2)]


def test_resumed_runs_wait_as_well_as_slurm_can_say_it() -> None:
    """A job whose runs follow different jobs waits for the end of those, and no more."""
    made = plan(points(3))
    extra = build_resumed_stage_jobs(
        "demo", (3,), made.stages, job_of=history(made).find_job_of_run, begun={3}, first_index=4
    )
    taken = events.Submitted(at=AT, job_index=4, job="104")
    known = history(made, events.JobAdded(at=AT, job=extra[0], after=(1,)), taken)
    assert build_slurm_dependency(made.jobs[2], made.stages, known) == "afterany:101:104"
    assert build_slurm_dependency(made.jobs[2], made.stages, known, {"104"}) == "afterany:104"
