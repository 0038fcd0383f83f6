"""More memory or time for the next attempt of a run whose job asked for too little (`recovery.grow_*`).

A requeued job asks for as much as before, so the next attempt is a new job: a successor of the present one,
or that of a resume. It is recorded as a resume with other resources is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hpckit.context import Context, login_name
from hpckit.errors import HpckitError
from hpckit.model import events
from hpckit.model.cluster.allocation import AttemptRequest, RequeueResult
from hpckit.model.cluster.site import Site
from hpckit.model.failure import Cause
from hpckit.model.history import LaunchHistory
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plain import from_plain
from hpckit.model.plan import JobSpec
from hpckit.model.run import RunView
from hpckit.model.states import RequeueOutcome, RunState
from hpckit.operations.new_settings import Growth, NewSettings, apply_new_resources, record_new_settings
from hpckit.operations.submit import require_slurm_commands
from hpckit.operations.successor import cancel_successor, exclude_successor_nodes, queue_successor
from hpckit.planning.plan import build_resource_spec
from hpckit.planning.recovery.budget import build_ledger_of_ended_run
from hpckit.planning.recovery.growth import (
    GROWING,
    find_room_to_grow,
    grow_resources,
    is_key_set,
    list_causes_of_growth,
)
from hpckit.planning.recovery.ledger import would_more_have_helped
from hpckit.record.counted_events import read_events_for_restart_budget
from hpckit.record.launches import Launch, load_frozen_config, load_run_settings
from hpckit.slurm.site_query import ask_cluster_facts_for_user
from hpckit.values import replace


def explain_growth(launch: Launch, index: int, context: Context) -> Mapping[Cause, str]:
    """Return after which causes a run's next attempt can ask for more (empty), or why no longer."""
    try:
        causes = list_causes_of_growth(load_run_settings(launch, index)[0].recovery)
        site = _ask_site(launch, context)
        found = {cause: _grow_settings(launch, index, cause, site) for cause in causes}
    except (HpckitError, OSError) as error:
        context.note(f"warning: the next attempt asks for as much as this one: {error}")
        return {}
    return {cause: grown if isinstance(grown, str) else "" for cause, grown in found.items()}


def queue_grown_attempt(
    launch: Launch, index: int, job: JobSpec, slurm_job: str, wish: AttemptRequest, context: Context
) -> RequeueResult:
    """Queue the next attempt behind the present job, with more of what ran out (`wish.grow`).

    A successor that is queued already asks for too little: the new one takes its place.
    """
    assert wish.grow is not None, "nothing is to grow"  # noqa: S101
    try:
        grown = _grow_settings(launch, index, wish.grow, _ask_site(launch, context))
    except (HpckitError, OSError) as error:
        grown = str(error)
    if isinstance(grown, str):
        return RequeueResult(outcome=RequeueOutcome.refused, message=grown)
    new = NewSettings(before=load_run_settings(launch, index)[0], after=grown, growth=wish.grow)
    words = " ".join(new.growth_words)
    if not cancel_successor(launch, index, slurm_job, context):
        return RequeueResult(outcome=RequeueOutcome.unreachable, message=f"not asked for: {words}")
    queued = queue_successor(launch, index, apply_new_resources(job, new), slurm_job, context)
    if queued is None:
        return RequeueResult(outcome=RequeueOutcome.refused, message=f"no job could be queued with {words}")
    record_new_settings(launch, None, {index: new}, context)
    message = f"job {queued} continues the run with {words}"
    if wish.excluded:
        return replace(exclude_successor_nodes(launch, index, job, wish, context), message=message)
    return RequeueResult(outcome=RequeueOutcome.requeued, message=message)


def find_growth_of_ended_runs(
    launch: Launch, views: Iterable[RunView], history: LaunchHistory, words: Collection[str], context: Context
) -> Mapping[int, Growth]:
    """Return with which settings runs continue that ended because their job asked for too little.

    What `words` of the resume say is not for hpckit to say.
    """
    if launch.cluster.kind is not ClusterKind.slurm:
        return {}
    causes = {view.record.index: _find_cause_of_growth(launch, view, history) for view in views}
    wanted = {
        index: cause
        for index, cause in causes.items()
        if cause is not None and not is_key_set(GROWING[cause], words)
    }
    site = _ask_site(launch, context) if wanted else Site()
    found: dict[int, Growth] = {}
    for index, cause in wanted.items():
        grown = _grow_settings(launch, index, cause, site)
        if isinstance(grown, str):
            context.note(f"{launch.runs[index].id} gets no more after {cause}: {grown}")
        else:
            found[index] = (grown, cause)
    return found


def _find_cause_of_growth(launch: Launch, view: RunView, history: LaunchHistory) -> Cause | None:
    """Return why the next attempt of an ended run asks for more; None if it does not."""
    index, began = view.record.index, view.record.started_at
    ended = view.state in {RunState.failed, RunState.interrupted}
    causes = list_causes_of_growth(load_run_settings(launch, index)[0].recovery)
    if not (ended and causes) or began is None:
        return None
    if any(change.at > began for change in launch.settings_changes.get(index, ())):
        return None  # the run has yet to try what it asks for by now
    told = read_events_for_restart_budget(launch, index, history=history)
    ledger, failure = build_ledger_of_ended_run(view, told)
    cause, saved = failure.cause, _has_latest_attempt_saved(told)
    return cause if cause in causes and would_more_have_helped(ledger, cause, saved=saved) else None


def _has_latest_attempt_saved(told: Sequence[events.Event]) -> bool:
    began = [place for place, event in enumerate(told) if isinstance(event, events.AttemptStarted)]
    return any(isinstance(event, events.CheckpointSaved) for event in told[began[-1] if began else 0 :])


def _grow_settings(launch: Launch, index: int, cause: Cause, site: Site) -> LaunchConfig | str:
    first = from_plain(LaunchConfig, load_frozen_config(launch, index)).resources
    present = load_run_settings(launch, index)[0]
    room = find_room_to_grow(build_resource_spec(present), site)
    return grow_resources(cause, present, first, launch.settings_changes.get(index, ()), room)


def _ask_site(launch: Launch, context: Context) -> Site:
    return ask_cluster_facts_for_user(require_slurm_commands(launch.cluster.bin_dir, context), login_name())
