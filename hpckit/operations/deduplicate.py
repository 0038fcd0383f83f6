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
from hpckit.model.ids import run_id
from hpckit.model.plain import plain_fields, to_plain
from hpckit.model.plan import RunSpec
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.operations.prepare import Prepared, narrowed
from hpckit.record.launch_events import merged_events, record_event
from hpckit.record.launches import Launch, load_launch, load_settings, read_launch_history
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.changes import changed_at_start, files_that_differ, sums_text
from hpckit.record.snapshot.environment import (
    capture_environment,
    difference_words,
    environment_differences,
)
from hpckit.record.snapshot.identity import (
    EarlierLaunch,
    code_identity,
    ended_well,
    frozen_project,
    holdings,
    is_frozen_code,
)
from hpckit.record.snapshot.outside import PROJECT, code_of_run, differing, recorded_outside
from hpckit.record.store import read_object
from hpckit.report.comparison import KeyDifference, key_differences
from hpckit.values import dataclass, field, replace
from hpckit.views.launch_view import Ask, launch_views, note_warnings

_OF_A_MACHINE = ("host", "driver", "platform")
"""What differs between the machines that one launches from."""

_GIVEN = ("resources", "recovery", "checkpoint", "runtime", "budget", "notify", "observe")
_OF_CLUSTER = ("kind", "partition", "account", "qos")
"""What a run under way keeps as its own launch gave it, and what of `cluster`."""

_ON_ITS_WAY = frozenset({RunState.pending, RunState.running, RunState.interrupted})


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A run of this launch that need not start, and the earlier run that replaces it."""

    index: int
    overrides: tuple[str, ...]
    folder: Path
    earlier: int
    state: RunState
    differs: tuple[KeyDifference, ...] = ()
    """Of a run under way: what it was given otherwise than this launch asks for."""

    @property
    def id(self) -> str:
        """The id of the earlier run."""
        return run_id(self.folder.name, self.earlier)

    @property
    def document(self) -> dict[str, object]:
        """The run as `launch --json` prints it; `index` is that of the earlier run."""
        differs = [plain_fields(difference, "key has=old asked=new") for difference in self.differs]
        return {
            **plain_fields(self, "run=id index=earlier overrides state dir=folder"),
            **({} if self.state is RunState.completed else {"differs": differs}),
        }


_OF_STAGES = "as runs of stages need each other in one launch, and others of this one are new"
_OF_SEARCH = "as sweep.sampler=optuna learns from the runs of its own launch alone"


@dataclass(slots=True, kw_only=True)
class KnownRuns:
    """The known runs of a launch: `skipped` have completed, `adopted` wait or run elsewhere.

    `apart` would be known, too, but runs need each other within one launch, as `needs` says.
    `changed` counts runs that would be known, but their code has changed or cannot be identified,
    `changed_open` are the ids of those that wait or run; `changed_in` is the newest launch with
    such runs, and `changed_files` are those that differ from its code. `elsewhere` are completed
    runs that a resume had given another layout, with the words that asked for it: not what is asked
    for now. `environment` is what differs in the environment of the newest skipped run, in words.
    """

    skipped: list[KnownRun] = field(default_factory=list)
    adopted: list[KnownRun] = field(default_factory=list)
    apart: list[KnownRun] = field(default_factory=list)
    needs: str = ""
    changed: int = 0
    changed_open: list[str] = field(default_factory=list)
    changed_in: str = ""
    changed_files: tuple[str, ...] = ()
    elsewhere: dict[str, tuple[str, ...]] = field(default_factory=dict)
    environment: tuple[str, ...] = ()

    @property
    def repeats(self) -> bool:
        """Whether something that has completed or is under way would be launched once more."""
        return bool(self.changed or self.apart)

    @property
    def documents(self) -> dict[str, object]:
        """The fields of `launch --json`."""
        return {
            "skipped": [run.document for run in self.skipped],
            "adopted": [run.document for run in self.adopted],
        }

    def left(self, runs: Sequence[RunSpec]) -> tuple[int, ...]:
        """Return the indices of the runs to launch."""
        known = {run.index for run in (*self.skipped, *self.adopted)}
        return tuple(run.index for run in runs if run.index not in known)


def divide(prepared: Prepared, context: Context, *, any_code: bool = False) -> KnownRuns:
    """Return the runs of a launch that are known from other launches in its output folder.

    With `any_code`, runs count even if their code has changed since.
    """
    found = _Search(prepared=prepared, context=context, any_code=any_code).divide()
    plan = prepared.plan
    # Runs of stages, or of one search, need each other within one launch: skip all of them or none.
    needs = _OF_STAGES if plan.stages else _OF_SEARCH if plan.search else ""
    if needs and found.left(plan.runs):
        apart = [*found.skipped, *found.adopted]
        return replace(found, skipped=[], adopted=[], apart=apart, needs=needs)
    return found


def without_known(prepared: Prepared, division: KnownRuns, context: Context) -> Prepared | None:
    """Return what is left to launch; None if nothing is."""
    left = division.left(prepared.plan.runs)
    if len(left) == len(prepared.plan.runs):
        return prepared
    return narrowed(prepared, left, context) if left else None


def record_known(division: KnownRuns, launch: Launch, context: Context) -> None:
    """Record in a launch which runs of other launches replace some of the requested ones."""
    found: dict[str, list[int]] = {}
    for run in (*division.skipped, *division.adopted):
        found.setdefault(run.folder.name, []).append(run.earlier)
    for earlier, runs in found.items():
        event = RunsKnown(at=context.now(), launch=earlier, runs=tuple(sorted(runs)))
        record_event(launch.paths, event)


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

    def divide(self) -> KnownRuns:
        for run in self.prepared.plan.runs:
            # A run with injected faults is never deduplicated against one without.
            if not run.settings.chaos:
                self.wanted.setdefault(run.signature, []).append(run)
        candidates = list(holdings(Path(self.prepared.plan.folder).parent, self.wanted))
        same, others = self._by_code(candidates)
        for holding in same:
            for signature, index in list(_completed(holding, self.wanted)):
                if (other := self._other_layout(holding.paths, signature, index)) is not None:
                    name = run_id(holding.paths.folder.name, index)
                    self.found.elsewhere.setdefault(name, other.words)
                    continue
                self._settle(signature, holding, index, RunState.completed)
        self._take_open(same)
        self._count_changed(others)
        if self.found.skipped:
            then = read_object(LaunchPaths(self.found.skipped[0].folder).environment)
            found = environment_differences(then, capture_environment(self.context.environ))
            told = (difference for difference in found if difference[0] not in _OF_A_MACHINE)
            self.found.environment = (
                tuple(difference_words(*difference) for difference in told) if then else ()
            )
        return self.found

    def _other_layout(
        self, paths: LaunchPaths, signature: str, index: int
    ) -> SettingsChanged | None:
        """Return the change to another layout than this run asks for; None if there was none."""
        if paths.folder not in self.changes:
            told = (event for event in merged_events(paths) if isinstance(event, SettingsChanged))
            self.changes[paths.folder] = {run: change for change in told for run in change.runs}
        last = self.changes[paths.folder].get(index)
        asked = self.wanted[signature][0].settings.parallel
        return None if last is None or last.parallel == asked else last

    def _count_changed(self, others: Sequence[EarlierLaunch]) -> None:
        left, ours = set(self.wanted), str(self.prepared.snapshot.project)
        for holding in others:
            # The same words in another project are another program, so this is no change of code.
            if frozen_project(holding.paths) not in {None, ours}:
                continue
            completed = {signature for signature, _ in _completed(holding, left)}
            self._note_changed(holding, completed)
            left -= completed
        ours_too = [other for other in others if frozen_project(other.paths) in {None, ours}]
        for launch, holding, view in self._standing(ours_too, left):
            signature = launch.runs[view.record.index].signature
            if signature in left and view.state is not RunState.completed:
                self._note_changed(holding, {signature})
                self.found.changed_open += [view.record.id] * len(self.wanted[signature])
                left.discard(signature)

    def _note_changed(self, holding: EarlierLaunch, signatures: Collection[str]) -> None:
        if signatures and not self.found.changed_in:
            paths = holding.paths
            self.found.changed_in = paths.folder.name
            recorded = recorded_outside(paths)
            found = (differing(self._outside(signature), recorded) for signature in signatures)
            files = files_that_differ(self.prepared.snapshot, paths)
            named = {f"{self.prepared.snapshot.project}/{path}" for path in files}
            other = {*chain(*found), *changed_at_start(paths, holding.of(signatures))}
            self.found.changed_files = (*files, *sorted(other - named))
        self.found.changed += sum(len(self.wanted[signature]) for signature in signatures)

    def _by_code(
        self, candidates: Sequence[EarlierLaunch]
    ) -> tuple[Sequence[EarlierLaunch], Sequence[EarlierLaunch]]:
        """Return what launches have run with our code, and with other code."""
        if self.any_code or not candidates:
            return candidates, ()
        snapshot = self.prepared.snapshot
        sums = "" if snapshot.files is None else sums_text(snapshot, snapshot.root)
        ours = code_identity(snapshot, sums)
        same: list[EarlierLaunch] = []
        others: list[EarlierLaunch] = []
        for holding in candidates:
            paths, recorded = holding.paths, recorded_outside(holding.paths)
            alike = ours is not None and is_frozen_code(snapshot, sums, ours, paths)
            ours_too: dict[str, list[int]] = {}
            left: dict[str, list[int]] = {}
            for signature, indices in holding.runs.items():
                as_recorded = alike and not differing(self._outside(signature), recorded)
                for index in indices:
                    changed = bool(recorded) and bool(changed_at_start(paths, (index,)))
                    where = ours_too if as_recorded and not changed else left
                    where.setdefault(signature, []).append(index)
            same += [replace(holding, runs=ours_too)] if ours_too else []
            others += [replace(holding, runs=left)] if left else []
        return same, others

    def _outside(self, signature: str) -> frozenset[str]:
        """Return what wanted runs with this signature take of the code that is not frozen."""
        if signature not in self.outside:  # for all earlier launches together: it reads scripts
            snapshot, settings = self.prepared.snapshot, self.wanted[signature][0].settings
            environ = {**self.context.environ, PROJECT: str(snapshot.project)}
            folders = (snapshot.project / snapshot.working_dir,)
            self.outside[signature] = code_of_run(snapshot.outside, settings, folders, environ)
        return self.outside[signature]

    def _take_open(self, candidates: Sequence[EarlierLaunch]) -> None:
        """Take runs that wait or run."""
        for launch, holding, view in self._standing(candidates, set(self.wanted)):
            index = view.record.index
            signature = launch.runs[index].signature
            if signature not in self.wanted:
                continue
            if self._other_layout(holding.paths, signature, index) is None:
                has, asked = load_settings(launch, index)[1], self.wanted[signature][0].config
                differs = key_differences([(_asked(has), _asked(asked))])
                self._settle(signature, holding, index, view.state, differs)

    def _standing(
        self, candidates: Sequence[EarlierLaunch], wanted: Collection[str]
    ) -> Iterator[tuple[Launch, EarlierLaunch, RunView]]:
        """Yield runs that can replace wanted ones; Slurm is queried once for all launches."""
        pairs = [
            (launch, holding)
            for holding in candidates
            if any(signature in wanted for signature in holding.runs)
            and (launch := _loaded(holding, self.context)) is not None
        ]
        questions = [(launch, holding.of(wanted)) for launch, holding in pairs]
        views = launch_views(questions, self.context, ask=Ask.open_runs)
        note_warnings(views, self.context)
        for view, (launch, holding) in zip(views, pairs, strict=True):
            history = read_launch_history(launch)
            for run in reversed(view.runs):
                if _stands(run, history):
                    yield launch, holding, run

    def _settle(
        self,
        signature: str,
        holding: EarlierLaunch,
        index: int,
        state: RunState,
        differs: tuple[KeyDifference, ...] = (),
    ) -> None:
        where = self.found.skipped if state is RunState.completed else self.found.adopted
        for run in self.wanted.pop(signature):
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


def _asked(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a run was asked for that is no part of its computation: Slurm's facts first."""
    plain = {key: to_plain(config[key]) for key in _GIVEN if key in config}
    cluster = config.get("cluster") or {}
    return plain | {"cluster": {key: cluster.get(key) for key in _OF_CLUSTER}}


def _loaded(holding: EarlierLaunch, context: Context) -> Launch | None:
    try:
        return load_launch(holding.paths.folder)
    except HpckitError as error:
        context.note(f"warning: {error.message}")
        return None


def _completed(holding: EarlierLaunch, wanted: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the wanted signatures that a launch has completed, each with its latest such run."""
    for signature in [run for run in holding.runs if run in wanted]:
        for index in reversed(holding.runs[signature]):
            if ended_well(holding.paths, index):
                yield signature, index
                break


def _stands(view: RunView, history: LaunchHistory) -> bool:
    """Whether a run can replace another: it has completed, or will continue without user action."""
    if view.state is RunState.completed:
        return True
    index = view.record.index
    # A launch that was only rendered was never submitted: its runs wait for nothing.
    handed_in = bool(history.accepted) or index in history.executors
    goes_on = view.state in _ON_ITS_WAY and not view.settled and not view.record.cancel_requested
    return goes_on and handed_in and index not in history.refused
