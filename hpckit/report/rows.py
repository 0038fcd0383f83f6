"""One flat row per run, combined from hpckit's record and Slurm's report. Pure.

Also the text for a failure that only Slurm knows of, and for a disagreement between the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from hpckit.model.cluster.nodes import compress_to_hostlist, expand_hostlist
from hpckit.model.counted import format_byte_size, format_count
from hpckit.model.diagnosis.verdict import RunFindings
from hpckit.model.elastic import Satellite
from hpckit.model.environment.health import NodeInspection
from hpckit.model.events import SettingsChanged
from hpckit.model.failure import FROZEN_FOLDER_EXIT, Cause, Failure
from hpckit.model.goodput import Goodput
from hpckit.model.moment import format_local_datetime, format_time_span
from hpckit.model.node_setup import FrozenContainer, StagedData
from hpckit.model.parallel.layout import LayoutReport
from hpckit.model.run import CAUSES_SAID_BY_SLURM, Observation, RunRecord, RunView
from hpckit.model.states import BaseState, Judgement, RunState, Standing
from hpckit.report.pending import explain_pending_job, format_resume_decision
from hpckit.values import dataclass, replace

_SHOWN_IMAGES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """The owner of a launch that is not the caller's own, and why it is considered foreign."""

    uid: int
    owner: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchHead:
    """What is shown above the runs of a launch; `common` are overrides that all of them have."""

    id: str
    name: str
    folder: str
    created_at: datetime
    foreign: Foreign | None = None
    common: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run, flat. `note` is about a disagreement of record and Slurm, or what is awaited.

    `slurm_state` is Slurm's own text, None if there is none. `attempt` is 0 before the first. `goodput` and
    `findings` are null if they were not requested. `blocked` says why the run never began, if an earlier
    stage did not complete. `early` says why it completed early. `step` counts from 0, to one less than
    `total`. `layout` is what the ranks reported of it, null until then. `preflight` is the latest inspection
    of each node. `satellites` are the jobs that bring it nodes. `resume` says from which step a resume
    continues, `refusal` why none would. `expected_start` is Slurm's forecast. `grown` is how hpckit itself
    made its jobs ask for more. `container` is the image it is in, `staged` what was brought to its nodes.
    """

    run: str
    index: int
    overrides: tuple[str, ...]
    state: RunState
    job: str | None
    slurm_state: str | None
    reason: str
    attempt: int
    round: int | None
    step: int | None
    nodes: tuple[str, ...]
    exit_code: int | None
    failure: Failure | None
    metrics: Mapping[str, Any]
    started_at: datetime | None
    ended_at: datetime | None
    note: str
    warnings: tuple[str, ...] = ()
    goodput: Goodput | None = None
    stage: str | None = None
    blocked: str = ""
    early: str = ""
    total: int | None = None
    findings: RunFindings | None = None
    layout: LayoutReport | None = None
    preflight: tuple[NodeInspection, ...] = ()
    satellites: tuple[Satellite, ...] = ()
    resume: str = ""
    refusal: str = ""
    expected_start: datetime | None = None
    grown: tuple[SettingsChanged, ...] = ()
    container: FrozenContainer | None = None
    staged: tuple[StagedData, ...] = ()

    def elapsed(self, now: datetime) -> timedelta | None:
        """Return how long the latest attempt has run; None if it has no start, or no known end."""
        if self.started_at is None:
            return None
        if self.ended_at is None and self.state is not RunState.running:
            return None
        return max((self.ended_at or now) - self.started_at, timedelta(0))


def build_run_row(view: RunView, goodput: Goodput | None = None) -> RunRow:
    """Return the row of a run, with its goodput if given."""
    record, seen = view.record, view.observation
    return RunRow(
        run=record.id,
        index=record.index,
        overrides=record.overrides,
        state=view.state,
        job=record.job,
        slurm_state=None if seen is None else seen.state.text,
        reason="" if seen is None or seen.reason == "None" else seen.reason,
        attempt=record.attempt,
        round=record.round,
        step=record.step,
        nodes=record.nodes or _expand_observed_nodes(seen),
        exit_code=view.exit_code,
        failure=find_run_failure(view),
        metrics=record.metrics,
        started_at=record.started_at,
        ended_at=record.ended_at,
        note=format_run_note(view),
        warnings=record.warnings,
        goodput=goodput,
        stage=record.stage,
        blocked=view.blocked,
        early=record.reason,
        total=record.total,
        layout=record.layout,
        preflight=record.preflight,
        satellites=view.satellites,
        refusal=format_resume_decision(Judgement(standing=Standing.unsettled))
        if view.state.ended and not view.can_no_longer_change
        else "",
        expected_start=None if seen is None else seen.expected_start,
        grown=record.grown,
        container=record.container,
        staged=record.staged,
    )


def format_settings_change(change: SettingsChanged) -> str:
    """Return with which settings a run continues since when, and why if nobody asked for them."""
    words = f"{' '.join(change.words)} since {format_local_datetime(change.at)}"
    return f"{words} (more after {change.cause})" if change.cause else words


def add_standstill_warning(row: RunRow, goodput: Goodput | None) -> RunRow:
    """Return the row with a warning if no step of the run has begun for long, by its account."""
    if goodput is None or goodput.standstill is None or row.note == _SUSPENDED:
        return row
    gone = format_time_span(goodput.standstill)
    said = f"no step has begun for {gone}; `hpckit stacks` shows what its ranks are doing"
    return replace(row, warnings=(*row.warnings, said))


def count_runs_by_state(states: Iterable[RunState]) -> Mapping[RunState, int]:
    """Return how many runs are in each state, in the order of the states, without zeros."""
    counts = Counter(states)
    return {state: counts[state] for state in RunState if counts[state]}


def _expand_observed_nodes(seen: Observation | None) -> tuple[str, ...]:
    if seen is None:
        return ()
    try:
        return expand_hostlist(seen.nodes)
    except ValueError:  # text such as "None assigned"
        return ()


def find_run_failure(view: RunView) -> Failure | None:
    """Return why a run did not complete: our record's classification, else Slurm's report."""
    if view.state not in {RunState.failed, RunState.interrupted}:
        return None
    if view.record.failure is not None and not view.requeued_since_last_attempt:
        return view.record.failure
    if view.record.state.ended and not view.requeued_since_last_attempt:
        return None
    return (
        _lost_supervisor_failure(view)
        if view.observation is None
        else _failure_from_slurm(view, view.observation)
    )


def _lost_supervisor_failure(view: RunView) -> Failure:
    carrier = "supervisor" if view.record.has_attempt_begun else "local executor"
    host = view.record.supervisor[0] if view.record.supervisor else None
    return Failure(
        cause=Cause.launcher_lost,
        message=f"its {carrier} died before recording the outcome: killed, or its host is down",
        node=host,
        step=view.record.step,
    )


def _failure_from_slurm(view: RunView, seen: Observation) -> Failure:
    if seen.exit_code == FROZEN_FOLDER_EXIT and not view.record.has_attempt_begun:
        message = "the batch script could not read its frozen folder; its log names node and folder"
        return Failure(cause=Cause.frozen_folder, message=message, node=seen.nodes or None)
    unsaid = Cause.launcher_lost if view.record.has_attempt_begun else Cause.scheduler
    begun = (
        "before recording the outcome" if view.record.has_attempt_begun else "before its supervisor started"
    )
    said = f": {view.said}" if view.said else ""
    return Failure(
        cause=CAUSES_SAID_BY_SLURM.get(seen.state.base, unsaid),
        message=f"Slurm says {_format_slurm_state(seen)}: the run ended {begun}{said}",
        node=seen.nodes or None,
        step=view.record.step,
    )


def _format_slurm_state(seen: Observation) -> str:
    code = f", exit code {seen.exit_code}" if seen.exit_code else ""
    reason = f" ({seen.reason})" if seen.reason not in {"", "None"} else ""
    return f"{seen.state.text}{reason}{code}"


_AGREEING = {
    RunState.completed: frozenset({RunState.completed}),
    RunState.failed: frozenset({RunState.failed}),
    RunState.cancelled: frozenset({RunState.cancelled, RunState.failed}),
    RunState.interrupted: frozenset({RunState.interrupted, RunState.cancelled, RunState.failed}),
}
"""The states that agree with the end of a run: a stopped supervisor exits with a code other than 0.
"""


_SUSPENDED = "Slurm has suspended its job; the run continues when Slurm resumes it"
_GOING_ON = "Slurm still has its job: a new attempt is being asked for, or the job is ending"


def format_run_note(view: RunView) -> str:
    """Return one line about a disagreement between our record and Slurm; empty if there is none."""
    seen, record = view.observation, view.record
    if view.blocked:
        return ""
    if seen is None:
        return _format_unseen_job_note(view)
    if not seen.state.ended:
        return _format_queued_note(view, seen)
    if record.state.ended:
        agrees = seen.state.run_state in _AGREEING[record.state]
        return (
            "" if agrees else f"hpckit recorded it as {record.state}, Slurm says {_format_slurm_state(seen)}"
        )
    missing = "end" if record.has_attempt_begun else "start"
    return f"hpckit recorded no {missing}, Slurm says {_format_slurm_state(seen)}"


def _format_queued_note(view: RunView, seen: Observation) -> str:
    record = view.record
    if seen.state.base is BaseState.suspended:
        return _SUSPENDED
    held = seen.reason.startswith(("BadConstraints", "ReqNodeNotAvail"))
    ours = [node for node in record.excluded if node in record.excluded_by_us]
    if held and ours and seen.state.base is BaseState.pending:
        asked = [node for node in record.excluded if node not in ours]
        return (
            f"Slurm cannot start it ({seen.reason}); it leaves out {compress_to_hostlist(ours)}, "
            f"where the run failed. To allow them again: scontrol update JobId={seen.job} "
            f"ExcNodeList={compress_to_hostlist(asked)}"
        )
    if (
        view.requeued_since_last_attempt
        and record.failure is not None
        and record.failure.cause is Cause.unhealthy
    ):
        return f"{record.failure.message}; requeued {_format_excluded_nodes(record)}: tell the administrators"
    text, lasts = explain_pending_job(seen) or ("", False)
    if view.requeued_since_last_attempt and not lasts:
        return f"requeued by Slurm after attempt {record.attempt} ({record.state})"
    if record.state is RunState.interrupted and not lasts:
        return _GOING_ON
    return f"Slurm: {text}" if text else ""


def _format_excluded_nodes(record: RunRecord) -> str:
    nodes = record.failure.node.split(", ") if record.failure and record.failure.node else ()
    out = [node for node in nodes if node in record.excluded]
    return f"without {compress_to_hostlist(out)}" if out else "and may get the same nodes again"


def _format_unseen_job_note(view: RunView) -> str:
    record = view.record
    if view.asked and not record.state.ended:
        return f"hpckit recorded it as {record.state}, Slurm no longer knows job {record.job}"
    if view.alive is False and record.has_attempt_begun:
        return "its supervisor died before recording the outcome"
    return "its local executor is gone; nothing will start it" if view.alive is False else ""


def format_images(rows: Iterable[RunRow]) -> Iterator[str]:
    """Yield a line on each of the first images that runs are in."""
    seen = dict.fromkeys((row.container.image, row.container.digest) for row in rows if row.container)
    for image, digest in [*seen][:_SHOWN_IMAGES]:
        yield f"image {image} ({digest[:19]})"


def format_staged_data(staged: Sequence[StagedData]) -> Iterator[str]:
    """Yield a line on each item that was brought to nodes: `data imagenet: 2.0 GB on 4 nodes, …`."""
    for name in dict.fromkeys(one.name for one in staged):
        there = [one for one in staged if one.name == name]
        slowest = max(there, key=lambda one: one.seconds)
        hows = Counter(one.how for one in there)
        told = ", ".join(f"{count} {how}" for how, count in hows.items())
        rate = f", {slowest.bytes / slowest.seconds / 1e9:.2f} GB/s a node" if slowest.seconds >= 1 else ""
        nodes = format_count(len(there), "node")
        yield (
            f"data {name}: {format_byte_size(slowest.bytes)} on {nodes} ({told}), "
            f"{slowest.seconds:.1f} s at most{rate}"
        )
