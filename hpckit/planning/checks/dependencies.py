"""Jobs that a launch is to follow, and whether it ever can. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpckit.model.finding import Finding, error
from hpckit.model.plan import LaunchPlan
from hpckit.model.run import Observation
from hpckit.model.states import RunState

_TERM = re.compile(r"(afterok|afternotok)((?::\d+)+)")
_ENDS = {"afterok": "must complete", "afternotok": "must fail"}


def followed_jobs(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the jobs of others that jobs of a launch wait for, if their ends matter."""
    return tuple(dict.fromkeys(job for _, _, job in _terms(plan)))


def dependency_findings(plan: LaunchPlan, seen: Mapping[str, Observation]) -> Iterator[Finding]:
    """Yield an error for each job that has ended otherwise than a dependency demands."""
    for stated, kind, job in dict.fromkeys(_terms(plan)):
        ended = seen.get(job)
        if ended is None or not ended.state.ended:
            continue
        if (ended.state.run_state is RunState.completed) is (kind == "afternotok"):
            yield error(
                "resources.dependency",
                stated,
                f"job {job} {_ENDS[kind]}, and it has ended: {ended.state.text}. Slurm would never "
                "start what waits for that",
                "name a job that can still end so, or leave resources.dependency out",
            )


def _terms(plan: LaunchPlan) -> Iterator[tuple[str, str, str]]:
    """Yield what is stated, its kind and a job, for terms that all have to come true."""
    for stated in (job.resources.dependency or "" for job in plan.jobs):
        for kind, jobs in _TERM.findall(stated) if "?" not in stated else ():
            yield from ((stated, kind, job) for job in jobs.strip(":").split(":"))
