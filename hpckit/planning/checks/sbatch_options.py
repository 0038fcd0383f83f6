"""Options of sbatch that exclude each other, are given twice, or can never come true. Pure.

What excludes itself or is given twice sbatch refuses before it asks the controller, so that the
error can be reported without a cluster. The list has only what a release of Slurm was seen to
refuse (22.05, --test-only).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpckit.model.cluster.gpus_asked import cpus_by_gpu
from hpckit.model.cluster.nodes import expand_nodes
from hpckit.model.cluster.site import read_gres
from hpckit.model.finding import Finding, error
from hpckit.model.plan import LaunchPlan, ResourceSpec
from hpckit.model.run import Observation
from hpckit.model.states import RunState
from hpckit.patterns import lazy_pattern

_TERM = lazy_pattern(r"(afterok|afternotok)((?::\d+)+)")
_ENDS = {"afterok": "must complete", "afternotok": "must fail"}

EXCLUSIVE = (
    ("mem", "mem-per-cpu", "mem-per-gpu"),
    ("gpus-per-task", "ntasks-per-gpu"),
    ("cpus-per-task", "cpus-per-gpu"),
    ("core-spec", "thread-spec"),
)
"""At most one option of each group may be given."""

_STATED = (
    *("partition", "account", "qos", "constraint", "nodelist", "exclude", "reservation"),
    *("switches", "segment", "gres", "dependency", "comment", "mail_type", "mail_user"),
    "exclusive",
)
_OURS = {name: (name, name) for name in _STATED} | {
    "mem": ("mem_gb", "mem_gb"),
    "time": ("timeout", "timeout_min"),
}
"""What a script states before the additional parameters, each with our field and key. If an option
is given twice, sbatch takes the last one."""


def contradictions(resources: ResourceSpec) -> Iterator[Finding]:
    """Yield an error for each group of options that sbatch would refuse together."""
    keys = dict(_stated(resources))
    for group in EXCLUSIVE:
        given = [option for option in group if option in keys]
        if len(given) < 2:  # noqa: PLR2004  # a contradiction takes two
            continue
        last = keys[given[-1]]
        yield error(
            last,
            dict(resources.additional_parameters).get(last.rpartition(".")[2], ""),
            f"sbatch takes only one of {' and '.join(f'--{option}' for option in given)}; they "
            f"come from {' and '.join(keys[option] for option in given)}",
            _remedy(given, last),
        )
    yield from _both_wanted_and_not(resources)
    for name, value in resources.additional_parameters:
        field, key = _OURS.get(name.replace("-", "_"), (None, ""))
        own = field and getattr(resources, field)
        if own and value is not None and value is not False:
            second = f"resources.additional_parameters.{name}"
            yield error(
                second,
                value,
                f"resources.{key} and {second} ({value}) are both set, and sbatch takes the second "
                "alone",
                f"put what you want into resources.{key}, and take {second} out",
            )
    yield from _gpus_twice(resources)


def _stated(resources: ResourceSpec) -> Iterator[tuple[str, str]]:
    """Yield the options of a job, each with the key that it comes from."""
    if resources.cpus_per_task != cpus_by_gpu(resources):  # else it is what cpus-per-gpu makes
        yield "cpus-per-task", "resources.cpus_per_task"
    if resources.mem_gb is not None:
        yield "mem", "resources.mem_gb"
    for key, value in resources.additional_parameters:
        if value is not None and value is not False:
            yield key.replace("_", "-"), f"resources.additional_parameters.{key}"


def _remedy(given: list[str], last: str) -> str:
    if given[0] == "cpus-per-task":
        return f"take {last} out, or ask for GPUs and leave resources.cpus_per_task out"
    return f"take {last} out" + (", or set resources.mem_gb=null" if given[0] == "mem" else "")


def _gpus_twice(resources: ResourceSpec) -> Iterator[Finding]:
    gres, gpus = resources.gres or "", resources.gpus_per_node
    if gpus and "gpu" in read_gres(gres):
        yield error(
            "resources.gres",
            gres,
            f"resources.gpus_per_node={gpus} and resources.gres={gres} both ask for GPUs",
            f"for GPUs of that type: resources.gpus_per_node=0 resources.gres={gres}; for GPUs of "
            f"any type: take gpu out of resources.gres",
        )


def _both_wanted_and_not(resources: ResourceSpec) -> Iterator[Finding]:
    both = sorted(_names(resources.nodelist) & _names(resources.exclude))
    if both:
        yield error(
            "resources.exclude",
            resources.exclude,
            f"resources.nodelist and resources.exclude both name {', '.join(both)}",
            "take them out of one of the two",
        )


def _names(hostlist: str | None) -> set[str]:
    try:
        return set(expand_nodes(hostlist or ""))
    except ValueError:
        return set()


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
