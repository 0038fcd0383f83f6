"""Options of sbatch that exclude each other, are given twice, or can never come true. Pure.

What excludes itself or is given twice sbatch refuses before it asks the controller, so that the error can be
reported without a cluster. The list has only what a release of Slurm was seen to refuse (22.05, --test-only).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpckit.model.cluster.gpus_asked import rank_cpus_from_cpus_per_gpu
from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.cluster.site import parse_gres
from hpckit.model.finding import Finding, build_error_finding
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


def find_option_conflicts(resources: ResourceSpec) -> Iterator[Finding]:
    """Yield an error for each group of options that sbatch would refuse together."""
    keys = dict(_pair_options_with_config_keys(resources))
    for group in EXCLUSIVE:
        given = [option for option in group if option in keys]
        if len(given) < 2:  # noqa: PLR2004  # a contradiction takes two
            continue
        last = keys[given[-1]]
        yield build_error_finding(
            last,
            dict(resources.additional_parameters).get(last.rpartition(".")[2], ""),
            f"sbatch takes only one of {' and '.join(f'--{option}' for option in given)}; they "
            f"come from {' and '.join(keys[option] for option in given)}",
            _suggest_option_to_remove(given, last),
        )
    yield from _find_nodes_also_excluded(resources)
    for name, value in resources.additional_parameters:
        field, key = _OURS.get(name.replace("-", "_"), (None, ""))
        own = field and getattr(resources, field)
        if own and value is not None and value is not False:
            second = f"resources.additional_parameters.{name}"
            yield build_error_finding(
                second,
                value,
                f"resources.{key} and {second} ({value}) are both set, and sbatch takes the second alone",
                f"put what you want into resources.{key}, and take {second} out",
            )
    yield from _find_gpus_asked_twice(resources)


def _pair_options_with_config_keys(resources: ResourceSpec) -> Iterator[tuple[str, str]]:
    if resources.cpus_per_task != rank_cpus_from_cpus_per_gpu(
        resources
    ):  # else it is what cpus-per-gpu makes
        yield "cpus-per-task", "resources.cpus_per_task"
    if resources.mem_gb is not None:
        yield "mem", "resources.mem_gb"
    for key, value in resources.additional_parameters:
        if value is not None and value is not False:
            yield key.replace("_", "-"), f"resources.additional_parameters.{key}"


def _suggest_option_to_remove(given: list[str], last: str) -> str:
    if given[0] == "cpus-per-task":
        return f"take {last} out, or ask for GPUs and leave resources.cpus_per_task out"
    return f"take {last} out" + (", or set resources.mem_gb=null" if given[0] == "mem" else "")


def _find_gpus_asked_twice(resources: ResourceSpec) -> Iterator[Finding]:
    gres, gpus = resources.gres or "", resources.gpus_per_node
    if gpus and "gpu" in parse_gres(gres):
        yield build_error_finding(
            "resources.gres",
            gres,
            f"resources.gpus_per_node={gpus} and resources.gres={gres} both ask for GPUs",
            f"for GPUs of that type: resources.gpus_per_node=0 resources.gres={gres}; for GPUs of "
            f"any type: take gpu out of resources.gres",
        )


def _find_nodes_also_excluded(resources: ResourceSpec) -> Iterator[Finding]:
    both = sorted(_expand_hostlist(resources.nodelist) & _expand_hostlist(resources.exclude))
    if both:
        yield build_error_finding(
            "resources.exclude",
            resources.exclude,
            f"resources.nodelist and resources.exclude both name {', '.join(both)}",
            "take them out of one of the two",
        )


def _expand_hostlist(hostlist: str | None) -> set[str]:
    try:
        return set(expand_hostlist(hostlist or ""))
    except ValueError:
        return set()


def list_jobs_depended_on(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the jobs of others that jobs of a launch wait for, if their ends matter."""
    return tuple(dict.fromkeys(job for _, _, job in _list_dependency_terms(plan)))


def find_unsatisfiable_dependencies(plan: LaunchPlan, seen: Mapping[str, Observation]) -> Iterator[Finding]:
    """Yield an error for each job that has ended otherwise than a dependency demands."""
    for stated, kind, job in dict.fromkeys(_list_dependency_terms(plan)):
        ended = seen.get(job)
        if ended is None or not ended.state.ended:
            continue
        if (ended.state.run_state is RunState.completed) is (kind == "afternotok"):
            yield build_error_finding(
                "resources.dependency",
                stated,
                f"job {job} {_ENDS[kind]}, but it has ended: {ended.state.text}. Slurm would never "
                "start a job that depends on it",
                "name a job that can still end that way, or leave resources.dependency out",
            )


def _list_dependency_terms(plan: LaunchPlan) -> Iterator[tuple[str, str, str]]:
    """Yield what is stated, its kind and a job, for terms that all have to come true."""
    for stated in (job.resources.dependency or "" for job in plan.jobs):
        for kind, jobs in _TERM.findall(stated) if "?" not in stated else ():
            yield from ((stated, kind, job) for job in jobs.strip(":").split(":"))
