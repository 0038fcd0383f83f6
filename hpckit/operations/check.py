"""Checks whether a prepared launch could run: this machine, Slurm's limits, a forecast, the budget.

Slurm gets three queries to slurmctld, three to the accounting, and a forecast for each of a few
jobs. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path

from hpckit.context import Context
from hpckit.model.cluster.gpus_asked import requested_gpus_per_node
from hpckit.model.command import find_started_script, split_command
from hpckit.model.finding import CheckReport, Finding, build_error_finding, build_warning_finding
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.node_setup import has_data_settings
from hpckit.model.plain import iterate_leaf_values
from hpckit.model.plan import LaunchPlan, RunSpec
from hpckit.operations.launch_features import find_feature_problems
from hpckit.operations.model_check import ModelChecks
from hpckit.operations.prepare import Prepared
from hpckit.operations.slurm_check import Asked, apply_sbatch_variables
from hpckit.planning.checks.config import explain_immediate_leave
from hpckit.planning.checks.cost import estimate_launch_cost, find_budget_problem
from hpckit.planning.checks.gpu_memory import find_gpu_memory_problems
from hpckit.planning.checks.limits import describe_preemption, warn_about_short_preemption_grace
from hpckit.planning.checks.slips import find_plan_mistakes
from hpckit.planning.layout import describe_layouts, plan_run_layout
from hpckit.record.snapshot.environment import find_setup_line_syntax_error
from hpckit.record.snapshot.preflight import Machine
from hpckit.record.store import open_regular_file
from hpckit.values import field_names, replace

_HPCKITS = frozenset(field_names(LaunchConfig)) - {"params", "seed"}
"""Sections that hpckit reads itself: runs that differ in them differ."""

_MOST_READ = 10_000_000

_SECONDS = timedelta(seconds=20)
"""For the model of a launch: more would hold the user up, who can ask `hpckit check`."""


class ModelDepth(Enum):
    """Which functions of runs that are laid out are run, up to their first training step."""

    nothing = "nothing"
    sure = "sure"
    """that of one run that asks Slurm for GPUs, for seconds, and only errors count"""
    everything = "everything"


def check_launch(
    prepared: Prepared, context: Context, *, models: ModelDepth = ModelDepth.nothing
) -> CheckReport:
    """Return the findings about this launch; no Slurm error is raised.

    Models are looked at as `models` says, if nothing else is wrong.
    """
    plan = apply_sbatch_variables(prepared.plan, context.environ)
    machine = Machine(plan=plan, snapshot=prepared.snapshot, environ=context.environ)
    findings = [*machine.find_launch_problems(), *find_feature_problems(plan, context)]
    asked = Asked(plan=plan, scripts=prepared.scripts, context=context)
    if plan.cluster.kind is ClusterKind.slurm:
        findings += find_setup_line_syntax_error(plan.cluster.setup)
        asked.ask_slurm()
    expected = estimate_launch_cost(plan, asked.site)
    findings += [*find_plan_mistakes(plan), *asked.findings, *find_budget_problem(plan, expected)]
    findings += warn_about_short_preemption_grace(plan, asked.site)
    findings += _find_script_mistakes(plan, machine.working_dir)
    checks = ModelChecks(plan=plan, snapshot=prepared.snapshot, context=context)
    if models is ModelDepth.sure:
        checks = replace(checks, most=1, patience=_SECONDS, fallback=False)
    asks = any(requested_gpus_per_node(job.resources) for job in plan.jobs)
    costly = models is ModelDepth.everything or (asks and plan.cluster.kind is ClusterKind.slurm)
    if models is not ModelDepth.nothing and costly and not any(finding.is_error for finding in findings):
        with context.show_progress("checking models", quiet=prepared.quiet):
            found = [*checks.findings()]
        found += find_gpu_memory_problems(plan, checks.models, asked.site)
        findings += [finding for finding in found if models is ModelDepth.everything or finding.is_error]
    if models is not ModelDepth.everything:
        checks.unchecked.clear()
    return CheckReport(
        findings=tuple(findings),
        starts=tuple(asked.starts),
        estimate=expected,
        unchecked=(*machine.unchecked, *asked.unchecked, *checks.unchecked),
        notices=tuple(destination.transport.value for destination in prepared.destinations),
        layouts=describe_layouts(run.settings for run in plan.runs),
        models=tuple(checks.models),
        preemption=describe_preemption(plan, asked.site),
    )


def _find_script_mistakes(plan: LaunchPlan, working_dir: Path) -> Iterator[Finding]:
    """Yield a warning for a layout, or values of a sweep, that a Python file of a command ignores.

    It does not mention hpckit, by which it could read them; values reach it if its words, variables
    or resources differ. What does mention it may have a loop, which must not leave at once: an error.
    `working_dir` is where the runs start. Other programs, and files that are not there, are left alone.
    """
    mentions = cache(lambda script: _mentions_hpckit(working_dir / script))
    alike: dict[str, RunSpec] = {}
    warned: set[str] = set()
    for run in plan.runs_to_check:
        settings = run.settings
        words = () if settings.command is None else split_command(settings.command)
        script = (find_started_script(words) if words else None) or ""
        reads = mentions(script) if script.endswith(".py") else None
        found = explain_immediate_leave(settings) if reads else None
        if found is not None and script not in warned:
            warned.add(script)
            yield build_error_finding("runtime.save_before_timeout_s", script, *found)
        if reads is not False:
            continue
        layout = plan_run_layout(settings)
        if not layout.is_data_parallel and script not in warned:
            warned.add(script)
            yield build_warning_finding(
                "parallel",
                script,
                f"the layout is {layout}, and {script} does not mention hpckit: each rank would "
                "train the whole model",
                "in the script: run = hpckit.attach(), and run.parallelize(…); or leave parallel "
                "out, if the script cuts its model itself",
            )
        if "+" not in warned:
            warned.add("+")
            yield from _warn_of_unused_key(plan, run, words, script)
        first = alike.setdefault(repr((words, settings.env, settings.resources)), run)
        pairs = zip(first.overrides, run.overrides, strict=False)
        keys = [old.partition("=")[0].lstrip("+") for old, new in pairs if old != new]
        keys = [key for key in keys if key.partition(".")[0] not in _HPCKITS]
        if keys and "" not in warned:
            warned.add("")  # once is enough
            yield build_warning_finding(
                "command",
                script,
                f"runs {first.index} and {run.index} differ in {', '.join(keys)}, and start the "
                f"same command; {script} does not mention hpckit: unless a module of it reads the "
                "configuration, these runs are the same",
                f"pass {keys[0]} on, for example --{keys[0].rpartition('.')[2]} '${{{keys[0]}}}'",
            )


def _warn_of_unused_key(
    plan: LaunchPlan, run: RunSpec, words: Sequence[str], script: str
) -> Iterator[Finding]:
    """Yield a warning for the first key that the user adds and that nothing of the command has.

    Keys that differ between the runs are left to the comparison of runs.
    """
    ours = _HPCKITS | ({"data"} if has_data_settings(run.config) else frozenset())
    given, values = ("\n".join((*words, *run.settings.env.values())), dict(iterate_leaf_values(run.config)))
    for word in run.overrides:
        key, _, text = word.lstrip("+").partition("=")
        known = key.partition(".")[0] in ours or key in plan.swept or key not in values
        if known or not word.startswith("+") or text in given or str(values[key]) in given:
            continue
        yield build_warning_finding(
            "command",
            script,
            f"{word} changes nothing: its value is in no word or variable of the command, and "
            f"{script} does not mention hpckit",
            f"put it behind `--`, as {script} takes it ({key}={text}, --{key} {text}); or hand it "
            f"on there: '${{{key}}}'",
        )
        return


def _mentions_hpckit(script: Path) -> bool | None:
    """Return whether a file mentions hpckit, or its variables; None if it is not there."""
    try:
        with open_regular_file(script) as file:
            return b"hpckit" in file.read(_MOST_READ).lower()
    except OSError:
        return None
