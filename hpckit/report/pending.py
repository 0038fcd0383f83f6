"""Why a run does not continue: Slurm's reason for a waiting job, or why a resume skips it.

By Slurm's page on job reason codes. Reasons that end by themselves when jobs end say little more
than their name; those that do not end are said in full.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from hpckit.model.run import Observation, RunView
from hpckit.model.states import BaseState, Judgement, Standing

_CHANGE = "cancel it, and launch it again with what is allowed"
_LASTING = {
    "DependencyNeverSatisfied": "it never starts: the job that it depends on did not end well. "
    "Cancel it, and launch it again without resources.dependency",
    "JobHeldUser|(?i:job requeued in held state)": "it is held. Let it start: scontrol release {job}",
    "JobHeldAdmin|JobHoldMaxRequeue": "it is held until an administrator releases it",
    "(?i:launch failed requeued held)": "its nodes could not start it, and it is held. "
    "Let it start: scontrol release {job}",
    "BadConstraints": f"no node has what it asks for: {_CHANGE}",
    r"(Partition(Node|Time)Limit)|\w*(PerJob|PerNode|WallDuration\w*)(Limit)?": "it asks for more "
    f"than one job may have there: {_CHANGE} (`hpckit check` lists it)",
    "Invalid(Account|QOS)|AccountNotAllowed|QOSNotAllowed": "its account or QOS may not run there: "
    f"{_CHANGE}",
    "ReservationDeleted": f"its reservation is gone: {_CHANGE}",
    "Partition(Down|Inactive)": "its partition is down until an administrator starts it",
    "ReqNodeNotAvail": "nodes that it names, or needs, are down, drained or reserved (sinfo -R)",
    r"(Assoc|QOS)Grp\w*Minutes\w*": "its account or QOS has used up its hours; they come back with "
    "time, or never",
}
_PASSING = {
    r"(Assoc|QOS)Max\w*|Max\w*Per\w+": "your other jobs use all that you are allowed",
    r"(Assoc|QOS)Grp\w*": "its account or QOS uses all that it is allowed",
    "BeginTime": "its start time has not been reached",
    "Dependency": "it waits for the job that it follows",
    "Priority": "jobs of higher priority wait as well",
    "Resources": "it is next, and waits for free resources",
    "Licenses": "it waits for a licence",
    "Reservation": "its reservation has not begun",
}


def explain_pending_job(seen: Observation) -> tuple[str, bool] | None:
    """Return why Slurm does not start a job, and whether someone has to act.

    None if it is not waiting, or the reason is unknown. Example:
    `JobHeldUser: it is held. Let it start: scontrol release 7`.
    """
    if seen.state.base is not BaseState.pending:
        return None
    name = seen.reason.partition(",")[0].strip("() ").replace("_", " ")
    for reasons in (_LASTING, _PASSING):
        for pattern, words in reasons.items():
            if re.fullmatch(pattern, name):
                return f"{name}: {words.format(job=seen.job)}", reasons is _LASTING
    return None


def warn_once_about_stuck_jobs(views: Iterable[RunView], noted: set[str], say: Callable[[str], None]) -> None:
    """Say once why jobs wait if they start only after someone acts."""
    for view in views:
        waits = None if view.observation is None else explain_pending_job(view.observation)
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


def format_resume_decision(judgement: Judgement) -> str:
    """Return why a run is left alone, or that it is submitted again."""
    text = _TEXTS[judgement.standing]
    return text.replace("{follows}", str(judgement.follows)).replace("{detail}", judgement.detail)
