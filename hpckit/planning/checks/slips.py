"""Warnings about what a plan will do, but was probably not meant to do. Pure.

They follow from the configuration alone. Refused is only what cannot run in the foreground.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from hpckit.errors import UsageError
from hpckit.model.command import split_command
from hpckit.model.counted import format_count, format_short_list
from hpckit.model.finding import Finding, build_warning_finding
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.parallel.layout import MeshAxis
from hpckit.model.parallel.settings import SizeWord
from hpckit.model.plain import iterate_leaf_values
from hpckit.model.plan import LaunchPlan, RunSpec
from hpckit.model.rank import RANK_VARIABLES
from hpckit.model.search import Sampler
from hpckit.model.settings import TrackerKind
from hpckit.patterns import lazy_pattern
from hpckit.planning.checks.command_slips import find_command_mistakes
from hpckit.planning.layout import get_requested_nodes_and_ranks, plan_run_layout

_SHOWN = 5

SLURM_ONLY = (
    *("cluster.modules", "cluster.setup", "cluster.partition", "cluster.account", "cluster.qos"),
    *("cluster.srun_args", "cluster.bin_dir", "cluster.template", "cluster.service_partition"),
    *("cluster.service_qos", "resources.mem_gb", "resources.timeout_min", "resources.partition"),
    *("resources.account", "resources.qos", "resources.constraint", "resources.nodelist"),
    *("resources.exclude", "resources.reservation", "resources.switches", "resources.segment"),
    *("resources.gres", "resources.exclusive", "resources.gpu_type"),
    *("resources.dependency", "resources.mail_type", "resources.additional_parameters"),
    *("resources.mail_user", "resources.comment", "resources.min_nodes", "recovery.requeue"),
    *("recovery.queue_successor", "recovery.on_drain", "recovery.regrow", "recovery.grow_on_oom"),
    *("recovery.grow_on_timeout", "recovery.grow_max"),
    *("runtime.save_before_timeout_s", "runtime.drain_poll_interval_s"),
    *("sweep.runs_per_job", "sweep.runs_per_gpu"),
    *("sweep.job_timeout_min", "sweep.mps", "budget.gpu_hours"),
)
"""Keys that the local executor ignores: the reference and `check` say so."""

_HARMLESS = frozenset(
    {"cluster.bin_dir", "cluster.template", "cluster.service_partition", "cluster.service_qos"}
    | {"resources.comment", "resources.mail_user", "resources.min_nodes"}
)
"""Keys that can be ignored on this machine without harm."""

_OF_SHELLS = lazy_pattern(r"\$(?:[A-Z_][A-Z0-9_]*|\{[A-Za-z_]\w*\})|\A~/")

_STAGE = lazy_pattern(r"\A\w+:(?=[^=]*=)")
"""The stage that a word is for."""


def find_plan_mistakes(plan: LaunchPlan) -> tuple[Finding, ...]:
    """Return warnings about a plan, each once."""
    return tuple(dict.fromkeys(_find_mistakes_with_duplicates(plan)))


def _find_mistakes_with_duplicates(plan: LaunchPlan) -> Iterator[Finding]:
    for run in plan.runs_to_check:
        settings = run.settings
        if settings.command is not None:
            words = split_command(settings.command)
            yield from find_command_mistakes(words, settings.resources, list_value_keys(run.config))
        yield from _warn_about_ineffective_env(settings)
        yield from find_ineffective_overrides(settings, (*plan.arguments, *run.overrides))
        yield from warn_about_sizes_without_ranks(settings)
    if plan.cluster.kind is ClusterKind.local:
        yield from _warn_about_slurm_only_keys(plan.arguments)
    elif len(plan.runs) > 1:
        yield from _warn_about_installing_in_setup(plan.cluster.setup)
    yield from _warn_about_equal_runs(plan)


_INSTALLS = lazy_pattern(
    r"(?:^|[;&|(]|\s)((?:uv(?:\s+-\S+)*\s+(?:sync|run|add|pip\s+install)|(?:python[\d.]*\s+-m\s+)?pip[\d.]*\s+install"
    r"|(?:conda|mamba|micromamba)\s+(?:env\s+)?(?:install|create|update)|pixi\s+(?:install|run)|poetry\s+install))\b"
)
"""What changes an environment, as a shell's line has it."""


def _warn_about_installing_in_setup(lines: Sequence[str]) -> Iterator[Finding]:
    """Warn once: the jobs of an array start together, and would all write the same environment."""
    for number, line in enumerate(lines):
        if (found := _INSTALLS.search(line.partition("#")[0])) is not None:
            yield build_warning_finding(
                f"cluster.setup[{number}]",
                line,
                f"every job of this sweep runs `{' '.join(found[1].split())}` (cluster.setup), also at "
                "the same time: together they can damage the environment that they share",
                "install once, before the launch; data.environment_from=uv (pixi, conda) does it at launch, "
                "from the project's lock file",
            )
            return


def list_value_keys(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of a configuration that hold values, such as `params.lr`."""
    return frozenset(key for key, _ in iterate_leaf_values(config))


def _warn_about_ineffective_env(settings: LaunchConfig) -> Iterator[Finding]:
    for key, variables in (("env", settings.env), ("cluster.env", settings.cluster.env)):
        for name, value in variables.items():
            if name in RANK_VARIABLES:
                yield build_warning_finding(
                    f"{key}.{name}",
                    value,
                    f"{key}.{name} has no effect: each rank gets its own {name} from hpckit",
                    "leave it out; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose the network",
                )
            if shown := _OF_SHELLS.search(value):
                variable = "HOME" if shown[0] == "~/" else shown[0].strip("${}")
                yield build_warning_finding(
                    f"{key}.{name}",
                    value,
                    f"{shown[0]} in {key}.{name} is not expanded: no shell reads it",
                    f"insert its value at launch: ${{oc.env:{variable}}}; or let each node's shell "
                    f"do it: cluster.setup=['export {name}={value}']",
                )


def _warn_about_slurm_only_keys(words: Sequence[str]) -> Iterator[Finding]:
    """Warn about typed overrides for a scheduler; values from files are meant for any cluster."""
    typed = [_STAGE.sub("", word) for word in words]
    keys = [word.lstrip("+").partition("=")[0] for word in typed if "=" in word]
    given = [key for key in SLURM_ONLY if any(f"{given_key}.".startswith(f"{key}.") for given_key in keys)]
    shell = any(key.startswith(("cluster.setup", "cluster.modules")) for key in given)
    if given:
        yield build_warning_finding(
            given[0],
            "",
            f"on this machine nothing reads {', '.join(given)}: there is no scheduler",
            "with cluster=slurm they take effect"
            + ("; prepare the environment here in your shell" if shell else ""),
        )


def _warn_about_equal_runs(plan: LaunchPlan) -> Iterator[Finding]:
    if any(run.settings.sweep.sampler is Sampler.optuna for run in plan.runs):
        return
    alike: dict[tuple[str, str], list[RunSpec]] = {}
    for run in plan.runs:
        image = next((image.digest for image in plan.containers if image.holds(run.index)), "")
        alike.setdefault((run.signature, image), []).append(run)
    equal = [runs for runs in alike.values() if len(runs) > 1]
    if not equal:
        return
    more = sum(len(runs) - 1 for runs in equal)
    shown = "; ".join(map(_format_run_group, equal[:_SHOWN]))
    rest = f"; and {len(equal) - _SHOWN} more such groups" if len(equal) > _SHOWN else ""
    yield build_warning_finding(
        "sweep",
        " ".join(equal[0][0].overrides),
        f"{format_count(more, 'run')} of this sweep {'is' if more == 1 else 'are'} the same as "
        f"another run of it: {shown}{rest}",
        "remove duplicate values or points, or set different seeds",
    )


def _format_run_group(runs: Sequence[RunSpec]) -> str:
    indices = format_short_list([str(run.index) for run in runs], _SHOWN)
    return f"runs {indices} ({' '.join(runs[-1].overrides)})"


_RULES: Sequence[tuple[str, Callable[[LaunchConfig], bool], str, str]] = (
    (
        "observe.profile.ranks",
        lambda run: not run.observe.profile.is_profiling_planned,
        "profiles nothing: no profile is planned",
        (
            "plan one with observe.profile.at_step=100, or ask for one while the run trains: "
            "hpckit profile RUN --ranks 0"
        ),
    ),
    (
        "tracker.project",
        lambda run: run.tracker.kind is TrackerKind.none,
        "has no effect: tracker.kind is none",
        "choose tracker=wandb or tracker=mlflow",
    ),
    (
        "notify.file",
        lambda run: not run.notify.events,
        "has no effect: notify.events is empty",
        "choose the events: notify.events=[failed,completed]",
    ),
    (
        "recovery.on_straggler=move",
        lambda run: not run.resources.spare_nodes,
        "moves nothing: the run has no spare node",
        "ask for one: resources.spare_nodes=1",
    ),
    (
        "parallel=layout",
        lambda run: plan_run_layout(run).is_data_parallel and get_requested_nodes_and_ranks(run).ranks > 1,
        "has no sizes: it is plain data parallelism, {layout}",
        "add sizes, such as parallel.shard=2, or write parallel=none, which means the same",
    ),
    (
        "parallel=none",
        lambda run: not plan_run_layout(run).is_data_parallel,
        "comes with sizes that make it {layout}",
        "write parallel=layout for sizes of your own, or leave the sizes out",
    ),
)
"""A typed key, or a word; whether it has no effect in a run; what is wrong then, what to do."""


def find_ineffective_overrides(settings: LaunchConfig, words: Sequence[str]) -> Iterator[Finding]:
    """Yield a warning for each word of `words` that does not do what it says in this run.

    Values from files are not looked at: they are meant for many launches.
    """
    typed = {word.lstrip("+").partition("=")[0]: word.lstrip("+") for word in words}
    for named, is_idle, wrong, remedy in _RULES:
        key = named.partition("=")[0]
        word = typed.get(key, "")
        if word and named in {key, word} and is_idle(settings):
            words = f"{word} {wrong.format(layout=plan_run_layout(settings))}"
            yield build_warning_finding(key, word.partition("=")[2], words, remedy)


def warn_about_sizes_without_ranks(settings: LaunchConfig) -> Iterator[Finding]:
    """Yield a warning for each axis that gets no ranks: `parallel=fsdp` with tensor=2 on two."""
    layout, shape = plan_run_layout(settings), get_requested_nodes_and_ranks(settings)
    for axis in MeshAxis:
        word = getattr(settings.parallel, axis.value)
        idle = isinstance(word, SizeWord | str) and layout.sizes[axis] == 1 < shape.ranks
        if axis is not MeshAxis.replicate and idle:
            yield build_warning_finding(
                f"parallel.{axis}",
                word,
                f"parallel.{axis}={word} has no effect: the {shape} are all in {layout}",
                "take more ranks, or smaller sizes of the other axes",
            )


def check_foreground_launch(plan: LaunchPlan, overrides: Sequence[str]) -> None:
    """Raise UsageError if a plan is more than one rank here, or an override is only for Slurm."""
    if plan.stages:
        names = ", ".join(stage.name for stage in plan.stages)
        raise UsageError(
            f"--foreground takes one run, and this launch has stages: {names}",
            hint="launch the experiment of one stage",
        )
    if len(plan.runs) > 1 or plan.search is not None:
        raise UsageError(
            f"--foreground takes one run, and this is a sweep of {len(plan.runs)}",
            hint="leave -m out and give each swept key one value",
        )
    settings = plan.runs[0].settings
    if plan.cluster.kind is ClusterKind.slurm:
        raise UsageError(
            "--foreground runs on this machine, and the chosen cluster is Slurm",
            hint="leave cluster=... out, or write cluster=local",
        )
    tasks = settings.resources.tasks_per_node  # this machine is one node; that was checked before
    if tasks > 1:
        raise UsageError(
            f"--foreground starts one rank, and resources.tasks_per_node is {tasks}",
            hint="add resources=cpu (one rank), or resources.tasks_per_node=1",
        )
    # Only typed ones: in files, they are for other launches.
    typed = {word.lstrip("+").partition("=")[0] for word in overrides} - _HARMLESS
    for key in sorted(typed.intersection(SLURM_ONLY)):
        if key.startswith(("cluster.", "resources.")) and attrgetter(key)(settings):
            raise UsageError(
                f"--foreground runs on this machine, where nothing reads {key}", hint=f"leave {key}=... out"
            )
