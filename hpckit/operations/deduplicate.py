"""Finds runs of a launch that need not start: completed before, or in progress in another launch.

Searches the other launches in the output folder. Runs with the same signature compute the same
thing if their code is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.model.events import RunsKnown, SettingsChanged
from hpckit.model.history import LaunchHistory
from hpckit.model.ids import build_run_id
from hpckit.model.node_setup import FrozenContainer, find_container_of_run
from hpckit.model.plain import to_plain
from hpckit.model.plan import RunSpec
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.operations.known_runs import KnownRun, KnownRuns
from hpckit.operations.launch_features import find_changed_files
from hpckit.operations.prepare import Prepared, narrow_to_runs
from hpckit.record.launch_events import read_merged_events, record_launch_event
from hpckit.record.launches import Launch, load_launch, load_run_settings, read_launch_history
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.changes import (
    format_snapshot_checksums,
    list_files_differing_from_launch,
    read_code_changes_at_start,
)
from hpckit.record.snapshot.environment import (
    capture_environment,
    format_environment_change,
    list_environment_differences,
)
from hpckit.record.snapshot.identity import (
    EarlierLaunch,
    compute_code_identity,
    find_launches_with_signatures,
    has_latest_attempt_completed,
    is_changed_image,
    is_same_image,
    matches_frozen_code,
    read_frozen_image,
    read_project_folder,
)
from hpckit.record.snapshot.outside import (
    PROJECT,
    list_changed_outside_code_paths,
    read_outside_code_checksums,
    select_outside_code_of_run,
)
from hpckit.record.store import read_json_object
from hpckit.report.comparison import KeyDifference, find_key_differences
from hpckit.values import dataclass, field, replace
from hpckit.views.launch_view import Ask, build_launch_views, print_view_warnings

_OF_A_MACHINE = ("host", "driver", "platform")
"""What differs between the machines that one launches from."""

_GIVEN = ("resources", "recovery", "checkpoint", "runtime", "budget", "notify", "observe")
_OF_CLUSTER = ("kind", "partition", "account", "qos")
"""What a run under way keeps as its own launch gave it, and what of `cluster`."""

_ON_ITS_WAY = frozenset({RunState.pending, RunState.running, RunState.interrupted})


_OF_STAGES = "as runs of stages need each other in one launch, and other runs of it are new"
_OF_SEARCH = "as sweep.sampler=optuna learns only from the runs of its own launch"


def find_already_launched_runs(prepared: Prepared, context: Context, *, any_code: bool = False) -> KnownRuns:
    """Return the runs of a launch that are known from other launches in its output folder.

    With `any_code`, runs count even if their code has changed since.
    """
    found = _Search(prepared=prepared, context=context, any_code=any_code).find_known_runs()
    plan = prepared.plan
    # Runs of stages, or of one search, need each other within one launch: skip all of them or none.
    needs = _OF_STAGES if plan.stages else _OF_SEARCH if plan.search else ""
    if needs and found.indices_to_launch(plan.runs):
        apart = [*found.skipped, *found.adopted]
        return replace(found, skipped=[], adopted=[], apart=apart, needs=needs)
    return found


def drop_already_launched_runs(prepared: Prepared, division: KnownRuns, context: Context) -> Prepared | None:
    """Return what is left to launch; None if nothing is."""
    left = division.indices_to_launch(prepared.plan.runs)
    if len(left) == len(prepared.plan.runs):
        return prepared
    return narrow_to_runs(prepared, left, context) if left else None


def record_replacing_runs(division: KnownRuns, launch: Launch, context: Context) -> None:
    """Record in a launch which runs of other launches replace some of the requested ones."""
    found: dict[str, list[int]] = {}
    for run in (*division.skipped, *division.adopted):
        found.setdefault(run.folder.name, []).append(run.earlier)
    for earlier, runs in found.items():
        event = RunsKnown(at=context.now(), launch=earlier, runs=tuple(sorted(runs)))
        record_launch_event(launch.paths, event)


@dataclass(slots=True, kw_only=True)
class _Search:
    """The search through earlier launches; `wanted` are the runs not found yet, by signature."""

    prepared: Prepared
    context: Context
    any_code: bool
    found: KnownRuns = field(default_factory=KnownRuns)
    wanted: dict[str, list[RunSpec]] = field(default_factory=dict)
    changes: dict[Path, dict[int, SettingsChanged]] = field(default_factory=dict)
    outside: dict[str, frozenset[str]] = field(default_factory=dict)

    def find_known_runs(self) -> KnownRuns:
        for run in self.prepared.plan.runs:
            # A run with injected faults is never deduplicated against one without.
            if not run.settings.chaos:
                self.wanted.setdefault(run.signature, []).append(run)
        candidates = list(find_launches_with_signatures(Path(self.prepared.plan.folder).parent, self.wanted))
        same, others = self._split_launches_by_same_code(candidates)
        for holding in same:
            for signature, index in list(_find_completed_signatures(holding, self.wanted)):
                if signature not in self.wanted:
                    continue
                if (other := self._find_layout_change(holding.paths, signature, index)) is not None:
                    name = build_run_id(holding.paths.folder.name, index)
                    self.found.elsewhere.setdefault(name, other.words)
                    continue
                self._mark_as_known(signature, holding, index, RunState.completed)
        self._adopt_runs_under_way(same)
        self._count_runs_of_other_code(others)
        if self.found.skipped:
            then = read_json_object(LaunchPaths(self.found.skipped[0].folder).environment)
            found = list_environment_differences(then, capture_environment(self.context.environ))
            told = [difference for difference in found if then and difference[0] not in _OF_A_MACHINE]
            self.found.environment = tuple(format_environment_change(*difference) for difference in told)
        return self.found

    def _find_layout_change(self, paths: LaunchPaths, signature: str, index: int) -> SettingsChanged | None:
        """Return the change to another layout than this run asks for; None if there was none."""
        if paths.folder not in self.changes:
            told = (event for event in read_merged_events(paths) if isinstance(event, SettingsChanged))
            self.changes[paths.folder] = {run: change for change in told for run in change.runs}
        last = self.changes[paths.folder].get(index)
        asked = self.wanted[signature][0].settings.parallel
        return None if last is None or last.parallel == asked else last

    def _count_runs_of_other_code(self, others: Sequence[EarlierLaunch]) -> None:
        left, ours = set(self.wanted), str(self.prepared.snapshot.project)
        for holding in others:
            # The same words in another project are another program, so this is no change of code.
            if read_project_folder(holding.paths) not in {None, ours}:
                continue
            completed = {signature for signature, _ in _find_completed_signatures(holding, left)}
            self._record_changed_code_of_runs(holding, completed)
            left -= completed
        ours_too = [other for other in others if read_project_folder(other.paths) in {None, ours}]
        for launch, holding, view in self._find_replacing_runs(ours_too, left):
            signature = launch.runs[view.record.index].signature
            if signature in left and view.state is not RunState.completed:
                self._record_changed_code_of_runs(holding, {signature})
                self.found.changed_open += [view.record.id] * len(self.wanted[signature])
                left.discard(signature)

    def _record_changed_code_of_runs(self, holding: EarlierLaunch, signatures: Collection[str]) -> None:
        if signatures and not self.found.changed_in:
            paths = holding.paths
            self.found.changed_in = paths.folder.name
            recorded = read_outside_code_checksums(paths)
            found = [tuple(self._find_changed_files(holding, signatures))]
            for signature in signatures:
                unfrozen = self._find_unfrozen_code_of_runs(signature)
                found += [list_changed_outside_code_paths(unfrozen, recorded)]
            files = list_files_differing_from_launch(self.prepared.snapshot, paths)
            runs = holding.find_runs_with_signatures(signatures)
            images = {image for index in runs if (image := read_frozen_image(paths, index)) is not None}
            asked = self.prepared.plan.containers
            named = {f"{self.prepared.snapshot.project}/{path}" for path in files}
            other = {*chain(*found), *read_code_changes_at_start(paths, runs)}
            self.found.changed_files = (
                *files,
                *sorted(other - named | {image.image for image in images if is_changed_image(image, asked)}),
            )
        self.found.changed += sum(len(self.wanted[signature]) for signature in signatures)

    def _split_launches_by_same_code(
        self, candidates: Sequence[EarlierLaunch]
    ) -> tuple[Sequence[EarlierLaunch], Sequence[EarlierLaunch]]:
        if not candidates:
            return (), ()
        snapshot, any_code = self.prepared.snapshot, self.any_code
        sums = (
            "" if any_code or snapshot.files is None else format_snapshot_checksums(snapshot, snapshot.root)
        )
        ours = compute_code_identity(snapshot, sums)
        same: list[EarlierLaunch] = []
        others: list[EarlierLaunch] = []
        for holding in candidates:
            paths, recorded = holding.paths, read_outside_code_checksums(holding.paths)
            alike = ours is not None and matches_frozen_code(snapshot, sums, ours, paths)
            ours_too: dict[str, dict[str, list[int]]] = {}
            left: dict[str, list[int]] = {}
            for signature, indices in holding.runs.items():
                unfrozen = self._find_unfrozen_code_of_runs(signature) if alike else frozenset()
                as_recorded = alike and not list_changed_outside_code_paths(unfrozen, recorded)
                as_recorded = as_recorded and not self._find_changed_files(holding, (signature,))
                for index in indices:
                    image = read_frozen_image(paths, index)
                    asked = [self._find_image(run) for run in self.wanted[signature]]
                    known = any(is_same_image(image, other, any_content=any_code) for other in asked)
                    changed = not any_code and (
                        is_changed_image(image, asked)
                        or (known and not as_recorded)
                        or (known and recorded and read_code_changes_at_start(paths, (index,)))
                    )
                    if changed or known:  # in another image it is another run
                        where = left if changed else ours_too.setdefault(image.digest if image else "", {})
                        where.setdefault(signature, []).append(index)
            same += [replace(holding, runs=runs) for runs in ours_too.values()]
            others += [replace(holding, runs=left)] if left else []
        return same, others

    def _find_changed_files(self, holding: EarlierLaunch, signatures: Iterable[str]) -> list[str]:
        """Return what else was frozen for such runs, such as their data, and is not the same now."""
        runs = [self.wanted[signature][0] for signature in signatures]
        used = [(run.settings, run.config) for run in runs]
        return find_changed_files(holding.paths, used, self.prepared.files)

    def _find_image(self, run: RunSpec) -> FrozenContainer | None:
        """Return the image that a run will be in."""
        return find_container_of_run(self.prepared.plan.containers, run.index)

    def _find_unfrozen_code_of_runs(self, signature: str) -> frozenset[str]:
        """Return the code that wanted runs with this signature use and that is not frozen."""
        if signature not in self.outside:  # for all earlier launches together: it reads scripts
            snapshot, settings = self.prepared.snapshot, self.wanted[signature][0].settings
            environ = {**self.context.environ, PROJECT: str(snapshot.project)}
            folders = (snapshot.project / snapshot.working_dir,)
            self.outside[signature] = select_outside_code_of_run(snapshot.outside, settings, folders, environ)
        return self.outside[signature]

    def _adopt_runs_under_way(self, candidates: Sequence[EarlierLaunch]) -> None:
        for launch, holding, view in self._find_replacing_runs(candidates, set(self.wanted)):
            index = view.record.index
            signature = launch.runs[index].signature
            if signature not in self.wanted:
                continue
            if self._find_layout_change(holding.paths, signature, index) is None:
                has, asked = load_run_settings(launch, index)[1], self.wanted[signature][0].config
                differs = find_key_differences(
                    [(_pick_operational_settings(has), _pick_operational_settings(asked))]
                )
                self._mark_as_known(signature, holding, index, view.state, differs)

    def _find_replacing_runs(
        self, candidates: Sequence[EarlierLaunch], wanted: Collection[str]
    ) -> Iterator[tuple[Launch, EarlierLaunch, RunView]]:
        """Yield runs that can replace wanted ones; Slurm is queried once for all launches."""
        pairs = [
            (launch, holding)
            for holding in candidates
            if any(signature in wanted for signature in holding.runs)
            and (launch := _load_launch_or_warn(holding, self.context)) is not None
        ]
        questions = [(launch, holding.find_runs_with_signatures(wanted)) for launch, holding in pairs]
        views = build_launch_views(questions, self.context, ask=Ask.open_runs)
        print_view_warnings(views, self.context)
        for view, (launch, holding) in zip(views, pairs, strict=True):
            history = read_launch_history(launch)
            for run in reversed(view.runs):
                if _can_replace_run(run, history):
                    yield launch, holding, run

    def _mark_as_known(
        self,
        signature: str,
        holding: EarlierLaunch,
        index: int,
        state: RunState,
        differs: tuple[KeyDifference, ...] = (),
    ) -> None:
        where = self.found.skipped if state is RunState.completed else self.found.adopted
        runs, image = self.wanted.pop(signature), read_frozen_image(holding.paths, index)
        same = [run for run in runs if is_same_image(self._find_image(run), image, any_content=self.any_code)]
        if len(same) < len(runs):  # the same computation in other images
            self.wanted[signature] = [run for run in runs if run not in same]
        for run in same:
            where.append(
                KnownRun(
                    index=run.index,
                    overrides=run.overrides,
                    folder=holding.paths.folder,
                    earlier=index,
                    state=state,
                    differs=() if state is RunState.completed else differs,
                )
            )


def _pick_operational_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a run that do not change what it computes, such as those for Slurm."""
    plain = {key: to_plain(config[key]) for key in _GIVEN if key in config}
    cluster = config.get("cluster") or {}
    return plain | {"cluster": {key: cluster.get(key) for key in _OF_CLUSTER}}


def _load_launch_or_warn(holding: EarlierLaunch, context: Context) -> Launch | None:
    try:
        return load_launch(holding.paths.folder)
    except HpckitError as error:
        context.note(f"warning: {error.message}")
        return None


def _find_completed_signatures(holding: EarlierLaunch, wanted: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the wanted signatures that a launch has completed, each with its latest such run."""
    for signature in [run for run in holding.runs if run in wanted]:
        for index in reversed(holding.runs[signature]):
            if has_latest_attempt_completed(holding.paths, index):
                yield signature, index
                break


def _can_replace_run(view: RunView, history: LaunchHistory) -> bool:
    """Whether a run can replace another: it has completed, or will continue without user action."""
    if view.state is RunState.completed:
        return True
    index = view.record.index
    # A launch that was only rendered was never submitted: its runs wait for nothing.
    handed_in = bool(history.accepted) or index in history.executors
    goes_on = view.state in _ON_ITS_WAY and not view.can_no_longer_change and not view.record.cancel_requested
    return goes_on and handed_in and index not in history.refused
