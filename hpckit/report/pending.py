"""Why a run does not go on: Slurm's reason for a waiting job, or why a resume leaves it alone.

By Slurm's page on job reason codes. Reasons that end by themselves when jobs end say little more
than their name; those that do not end are said in full.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from hpckit.model.run import Observation, RunView
from hpckit.model.states import BaseState, Judgement, Standing
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True)
class _Reason:
    pattern: str
    words: str
    lasts: bool = True


_CHANGE = "cancel it, and launch it again with what is allowed"
_REASONS = (
    _Reason(
        "DependencyNeverSatisfied",
        "it never starts: a job that it was to follow ended otherwise. Cancel it, and launch it "
        "again without resources.dependency",
    ),
    _Reason(
        "JobHeldUser|(?i:job requeued in held state)",
        "it is held. Let it start: scontrol release {job}",
    ),
    _Reason("JobHeldAdmin|JobHoldMaxRequeue", "it is held until an administrator releases it"),
    _Reason(
        "(?i:launch failed requeued held)",
        "its nodes could not start it, and it is held. Let it start: scontrol release {job}",
    ),
    _Reason("BadConstraints", f"no node has what it asks for: {_CHANGE}"),
    _Reason(
        r"(Partition(Node|Time)Limit)|\w*(PerJob|PerNode|WallDuration\w*)(Limit)?",
        f"it asks for more than one job may have there: {_CHANGE} (`hpckit check` lists it)",
    ),
    _Reason(
        "Invalid(Account|QOS)|AccountNotAllowed|QOSNotAllowed",
        f"its account or QOS may not run there: {_CHANGE}",
    ),
    _Reason("ReservationDeleted", f"its reservation is gone: {_CHANGE}"),
    _Reason("Partition(Down|Inactive)", "its partition is down until an administrator starts it"),
    _Reason(
        "ReqNodeNotAvail", "nodes that it names, or needs, are down, drained or reserved (sinfo -R)"
    ),
    _Reason(r"(Assoc|QOS)Max\w*|Max\w*Per\w+", "your other jobs use all that you may", lasts=False),
    _Reason(
        r"(Assoc|QOS)Grp\w*Minutes\w*",
        "its account or QOS has used up its hours; they come back with time, or never",
    ),
    _Reason(r"(Assoc|QOS)Grp\w*", "its account or QOS uses all that it may", lasts=False),
    _Reason("BeginTime", "its time to begin has not come", lasts=False),
    _Reason("Dependency", "it waits for the job that it follows", lasts=False),
    _Reason("Priority", "jobs of higher priority wait as well", lasts=False),
    _Reason("Resources", "it is next, and waits until what it asks for is free", lasts=False),
    _Reason("Licenses", "it waits for a licence", lasts=False),
    _Reason("Reservation", "its reservation has not begun", lasts=False),
)


def pending_note(seen: Observation) -> tuple[str, bool] | None:
    """Return why Slurm does not start a job, and whether somebody has to do something about it.

    None if it is not waiting, or the reason is unknown. Example:
    `JobHeldUser: it is held. Let it start: scontrol release 7`.
    """
    if seen.state.base is not BaseState.pending:
        return None
    name = seen.reason.partition(",")[0].strip("() ").replace("_", " ")
    found = next((reason for reason in _REASONS if re.fullmatch(reason.pattern, name)), None)
    if found is None:
        return None
    return f"{name}: {found.words.format(job=seen.job)}", found.lasts


def say_lasting(views: Iterable[RunView], noted: set[str], say: Callable[[str], None]) -> None:
    """Say once why jobs wait that start only when somebody does something."""
    for view in views:
        waits = None if view.observation is None else pending_note(view.observation)
        text, lasts = waits or ("", False)
        if lasts and text not in noted:
            noted.add(text)
            say(f"{view.record.id}  does not start: {text}")


_TEXTS: Mapping[Standing, str] = {
    Standing.resumable: "it is submitted again",
    Standing.completed: "completed",
    Standing.waiting: "it waits already",
    Standing.running: "it is running",
    Standing.unsettled: "it continues by itself, or can be resumed once Slurm is done with its job",
    Standing.unconfirmed: "it is not known whether Slurm accepted it: see `hpckit doctor`",
    Standing.cancelled: "it was cancelled: name the run, or add --cancelled",
    Standing.spent: "{detail}",
    Standing.blocked: "it follows another run: {detail}",
    Standing.detached: "it follows run {follows}: resume that one, or the whole launch",
}


def standing_text(judgement: Judgement) -> str:
    """Return why a run is left alone, or that it is submitted again."""
    text = _TEXTS[judgement.standing]
    return text.replace("{follows}", str(judgement.follows)).replace("{detail}", judgement.detail)
