"""The settings with which runs continue: what was asked for, checked, and recorded.

What was frozen stays as it is; an event says from when on the sections `parallel` and `resources` are others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.model.cluster.gpus_asked import requested_gpus_per_node
from hpckit.model.counted import format_ranges
from hpckit.model.events import SettingsChanged
from hpckit.model.failure import Cause
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.parallel.layout import MeshAxis
from hpckit.model.parallel.settings import Parallel, is_layout_override
from hpckit.model.plain import to_plain
from hpckit.model.plan import JobSpec, ResourceSpec
from hpckit.operations.add_job import refuse_unwritable_launch
from hpckit.patterns import lazy_pattern
from hpckit.planning.checks.config import check_settings_are_consistent
from hpckit.planning.layout import plan_run_layout
from hpckit.planning.plan import build_resource_spec
from hpckit.planning.recovery.growth import GROWING
from hpckit.record.launch_events import record_launch_event
from hpckit.record.launches import Launch, load_run_settings
from hpckit.values import dataclass, field_names, replace

MAY_CHANGE = (
    *("timeout_min", "mem_gb", "partition", "account", "qos", "constraint", "nodelist", "exclude"),
    *("reservation", "switches", "segment", "comment", "mail_type", "mail_user"),
    *("array_parallelism", "exclusive", "gres", "gpu_type", "additional_parameters", "cpus_per_task"),
    "dependency",
)
"""Of `resources`, what a run may continue with other values of: it computes the same."""

_OF_CLUSTER = lazy_pattern(r"cluster\.(?=(partition|account|qos)=)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsOrder:
    """The words that ask for other settings, and what applies them."""

    words: tuple[str, ...]
    change: Callable[[LaunchConfig], LaunchConfig]


Growth = tuple[LaunchConfig, Cause]
"""The settings with which hpckit itself lets a run continue, and after which cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSettings:
    """The settings that a run gets. `before` are those that it had.

    `growth` is after which cause hpckit asks for more, by the run's own settings.
    """

    before: LaunchConfig
    after: LaunchConfig
    growth: Cause | None = None

    @property
    def layout(self) -> str:
        """The layout of its ranks and what else is new in `parallel`; empty if nothing is."""
        old, new = self.before.parallel, self.after.parallel
        sizes = {axis.value for axis in MeshAxis}
        names = [name for name in field_names(Parallel) if name not in sizes]
        more = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in _find_changed_values(old, new, names).items()
        ]
        return "" if old == new else ", ".join([str(plan_run_layout(self.after)), *more])

    @property
    def resources(self) -> dict[str, Any]:
        """What is new in `resources`."""
        return _find_changed_values(self.before.resources, self.after.resources, MAY_CHANGE)

    @property
    def growth_words(self) -> tuple[str, ...]:
        """The overrides that would have asked for the growth; none without one."""
        if self.growth is None:
            return ()
        key = GROWING[self.growth]
        return (f"resources.{key}={getattr(self.after.resources, key):.10g}",)

    def apply_to_resources(self, resources: ResourceSpec) -> ResourceSpec:
        """Return what a job of the run asks of Slurm from now on."""
        old, new = build_resource_spec(self.before), build_resource_spec(self.after)
        return replace(resources, **_find_changed_values(old, new, field_names(ResourceSpec)))


def _find_changed_values(old: object, new: object, names: Iterable[str]) -> dict[str, Any]:
    return {key: getattr(new, key) for key in names if getattr(new, key) != getattr(old, key)}


def parse_resume_overrides(words: Iterable[str]) -> tuple[str, ...]:
    """Return these overrides, with keys of `cluster` as those of `resources` that they stand for.

    Raises UsageError for an override of what may not change.
    """
    found = tuple(_OF_CLUSTER.sub("resources.", word) for word in words)
    for word in found:
        key = word.partition("=")[0]
        name = re.sub(r"^\+*resources\.|(?<=additional_parameters)\..*", "", key)
        if not is_layout_override(word) and name not in MAY_CHANGE:
            raise UsageError(
                f"resume cannot change {key}: it was frozen at the launch. What "
                "may change is the layout (parallel=hsdp, parallel.shard=2 …) and what Slurm is "
                f"asked for: resources.{', '.join(MAY_CHANGE)}",
                hint=f"for anything else start another run: hpckit rerun RUN {word}",
            )
    return found


def build_settings_order(launch: Launch, words: tuple[str, ...], context: Context) -> SettingsOrder | None:
    """Return the order for these words, with the function that applies them to a run's settings.

    Files of groups are read from the frozen code. The function raises ConfigError, and so does
    this one if the words mean nothing, also where no run is left that they would be for.
    """
    if not words:
        return None
    from hpckit.config.compose import compose_parallel_and_resources  # noqa: PLC0415  # Hydra

    known: dict[str, LaunchConfig] = {}

    def change(present: LaunchConfig) -> LaunchConfig:
        sections = repr((present.parallel, present.resources))
        if sections not in known:
            cwd = Path(launch.code.working_dir)
            known[sections] = compose_parallel_and_resources(words, present, environ=context.environ, cwd=cwd)
        return known[sections]

    change(load_run_settings(launch, 0)[0])
    return SettingsOrder(words=words, change=change)


def compute_new_settings(
    launch: Launch, runs: Sequence[int], order: SettingsOrder | None, grown: Mapping[int, Growth]
) -> dict[int, NewSettings]:
    """Return the settings of these runs, as far as they change; raises ConfigError.

    `grown` are runs that get more by themselves.
    """
    words = () if order is None else order.words
    of_slurm = [word for word in words if not is_layout_override(word)]
    if of_slurm and launch.cluster.kind is not ClusterKind.slurm:
        raise UsageError(
            f"{launch.id} runs on this machine, where nothing reads {of_slurm[0]}",
            hint="leave it out: only Slurm takes a time limit, a partition and the like",
        )
    found: dict[int, NewSettings] = {}
    for run in runs if order is not None else grown.keys() & {*runs}:
        before = load_run_settings(launch, run)[0]
        start, cause = grown.get(run, (before, None))
        new = start if order is None else order.change(start)
        after = replace(before, parallel=new.parallel, resources=new.resources)
        try:
            check_settings_are_consistent(after)
        except ConfigError as error:
            where = f"{launch.runs[run].id} cannot continue with {' '.join(words)}: "
            raise ConfigError(where + error.message, hint=error.hint) from error
        if requested_gpus_per_node(after.resources) != requested_gpus_per_node(before.resources):
            raise UsageError(
                f"{' '.join(words)}: {launch.runs[run].id} would have another number of GPUs",
                hint=f"start another run: hpckit rerun {launch.runs[run].id} …",
            )
        if after != before:
            found[run] = NewSettings(before=before, after=after, growth=cause)
    return found


def apply_new_resources(job: JobSpec, new: NewSettings | None) -> JobSpec:
    """Return the job of a run with what is asked of Slurm from now on."""
    if new is None:
        return job
    shared = job.shared_job and replace(job.shared_job, each=new.apply_to_resources(job.shared_job.each))
    return replace(job, resources=new.apply_to_resources(job.resources), shared_job=shared)


def record_new_settings(
    launch: Launch, order: SettingsOrder | None, settings: Mapping[int, NewSettings], context: Context
) -> None:
    """Record the settings that runs have from their next attempt on; raises UsageError."""
    words = () if order is None else order.words
    for runs in _group_runs_by_key(
        settings, lambda one: repr((one.after.parallel, one.after.resources, one.growth))
    ):
        new = settings[runs[0]]
        event = SettingsChanged(
            at=context.now(),
            runs=runs,
            words=(*words, *new.growth_words),
            parallel=new.after.parallel,
            resources=new.after.resources,
            cause=new.growth,
        )
        with refuse_unwritable_launch(launch):
            record_launch_event(launch.paths, event)


def format_new_settings(settings: Mapping[int, NewSettings]) -> list[str]:
    """Return lines of what is new: `layout  0-3: replicate 2 x tensor 4, params=bf16`."""
    lines = [
        f"layout  {format_ranges(runs)}: {settings[runs[0]].layout}"
        for runs in _group_runs_by_key(settings, lambda one: one.layout)
        if settings[runs[0]].layout
    ]
    for runs in _group_runs_by_key(settings, lambda one: repr(one.resources)):
        new = [f"{key}={value}" for key, value in settings[runs[0]].resources.items()]
        lines += [f"asks    {format_ranges(runs)}: {', '.join(new)}"] if new else []
    return lines


def new_settings_to_json(settings: Mapping[int, NewSettings]) -> list[dict[str, object]]:
    """Return what `resume --json` says of the new settings."""
    return [
        {
            "index": run,
            "layout": plan_run_layout(one.after).sizes,
            "parallel": one.after.parallel,
            "resources": to_plain(one.resources),
        }
        for run, one in settings.items()
    ]


def _group_runs_by_key(
    settings: Mapping[int, NewSettings], key: Callable[[NewSettings], str]
) -> list[tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for run, one in settings.items():
        found[key(one)] = (*found.get(key(one), ()), run)
    return list(found.values())
