"""Which runs of a launch need not start: they completed already, or are on their way elsewhere.

Responsible for looking at the other launches in the output folder, for what is left to launch, and
for saying so. What has the same signature computes the same thing, if its code is the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpckit.cli.context import Context
from hpckit.cli.prepare import Prepared, narrowed
from hpckit.cli.views import Ask, launch_views
from hpckit.errors import HpckitError
from hpckit.model.counted import counted
from hpckit.model.history import LaunchHistory
from hpckit.model.ids import run_id
from hpckit.model.plan import RunSpec
from hpckit.model.ranges import ranges
from hpckit.model.run import RunView
from hpckit.model.states import RunState
from hpckit.record.launches import Launch, load_launch, read_launch_history
from hpckit.record.snapshot.identity import (
    Holding,
    code_identity,
    ended_well,
    frozen_identity,
    frozen_project,
    holdings,
)

_ON_ITS_WAY = frozenset({RunState.pending, RunState.running, RunState.interrupted})


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A run of this launch that need not start, and the earlier one that stands for it."""

    index: int
    overrides: tuple[str, ...]
    folder: Path
    earlier: int
    state: RunState

    @property
    def document(self) -> dict[str, object]:
        """What `launch --json` prints of it; `index` is that of the earlier run."""
        return {
            "run": run_id(self.folder.name, self.earlier),
            "index": self.earlier,
            "overrides": list(self.overrides),
            "state": self.state.value,
            "dir": str(self.folder),
        }


@dataclass(slots=True, kw_only=True)
class Division:
    """What of a launch is known: `skipped` completed, `adopted` waits or runs elsewhere.

    `changed` counts what would be known, but for code that changed since, or of which nobody can
    tell; `changed_in` is the newest launch of that.
    """

    skipped: list[Known] = field(default_factory=list)
    adopted: list[Known] = field(default_factory=list)
    changed: int = 0
    changed_in: str = ""

    @property
    def documents(self) -> dict[str, object]:
        """The fields of `launch --json`."""
        return {
            "skipped": [one.document for one in self.skipped],
            "adopted": [one.document for one in self.adopted],
        }

    def left(self, runs: Sequence[RunSpec]) -> tuple[int, ...]:
        """Return the indices of the runs that are to be launched."""
        known = {one.index for one in (*self.skipped, *self.adopted)}
        return tuple(run.index for run in runs if run.index not in known)


def add_identity(parser: argparse.ArgumentParser) -> None:
    """Add `--rerun` and `--any-code`."""
    parser.add_argument(
        "--rerun",
        action="store_true",
        help="launch also what has completed, or waits or runs, in an earlier launch",
    )
    parser.add_argument(
        "--any-code",
        action="store_true",
        help="count runs of an earlier launch also where the code has changed since",
    )


def divide(prepared: Prepared, arguments: argparse.Namespace, context: Context) -> Division:
    """Return what of a launch is known from others in its output folder; nothing with --rerun."""
    if arguments.rerun:
        return Division()
    found = _Search(prepared=prepared, context=context, any_code=arguments.any_code).divide()
    plan = prepared.plan
    # Runs of stages follow each other within one launch: all of them are known, or none is.
    return Division() if plan.stages and found.left(plan.runs) else found


def without_known(
    prepared: Prepared, division: Division, arguments: argparse.Namespace, context: Context
) -> Prepared | None:
    """Return what is left to launch; None where nothing is."""
    left = division.left(prepared.plan.runs)
    if len(left) == len(prepared.plan.runs):
        return prepared
    return narrowed(prepared, left, arguments, context) if left else None


def nothing_left(
    prepared: Prepared, division: Division, context: Context, arguments: argparse.Namespace
) -> int:
    """Say that there is nothing to launch; with --wait, wait for what was adopted."""
    count = len(prepared.plan.runs)
    what = "the run is" if count == 1 else f"all {count} runs are"
    if arguments.json:
        nobody = dict.fromkeys(("launch", "dir", "janitor", "feeder"))
        more = {**division.documents, "left_out": prepared.snapshot.left_out}
        context.say_json({**nobody, "runs": [], "jobs": [], **more})
    else:
        context.say(f"nothing to launch: {what} known already (--rerun launches all the same)")
    if not arguments.wait or arguments.dry_run:
        return 0
    return wait_for_adopted(division, context, quiet=arguments.json)


def wait_for_adopted(division: Division, context: Context, *, quiet: bool, code: int = 0) -> int:
    """Wait for the runs that were adopted from other launches, and return as `wait` does.

    `code` is what waiting for the others has returned.
    """
    from hpckit.cli.wait import wait  # noqa: PLC0415  # only where somebody waits

    for folder, given in _by_launch(division.adopted).items():
        indices = [one.earlier for one in given]
        code = max(code, wait(load_launch(folder), context, quiet=quiet, indices=indices))
    return code


def say_known(division: Division, context: Context, *, dry: bool = False) -> None:
    """Say on standard error what is not launched, and where it is; and what is, as code changed."""
    skip = "would be skipped" if dry else "skipped"
    for what, found in (
        (f"{skip}: completed already", division.skipped),
        ("not submitted again: under way", division.adopted),
    ):
        for folder, given in _by_launch(found).items():
            which = f", runs {ranges(one.earlier for one in given)}"
            if len(given) == 1:
                which = f".{given[0].earlier}"
            context.note(f"{counted(len(given), 'run')} {what} as {folder.name}{which}")
    if division.changed:
        context.note(
            f"{division.changed} completed with other code, or code that was not recorded, the "
            f"latest in {division.changed_in}: that does not count (--any-code counts such)"
        )


def _by_launch(found: Iterable[Known]) -> Mapping[Path, list[Known]]:
    launches: dict[Path, list[Known]] = {}
    for one in found:
        launches.setdefault(one.folder, []).append(one)
    return launches


@dataclass(slots=True, kw_only=True)
class _Search:
    """The search through earlier launches; `wanted` are the runs not found yet, by signature."""

    prepared: Prepared
    context: Context
    any_code: bool
    found: Division = field(default_factory=Division)
    wanted: dict[str, list[RunSpec]] = field(default_factory=dict)

    def divide(self) -> Division:
        for run in self.prepared.plan.runs:
            # Who injects faults wants to see them, whatever came out of it without.
            if not run.settings.chaos:
                self.wanted.setdefault(run.signature, []).append(run)
        candidates = list(holdings(Path(self.prepared.plan.folder).parent, self.wanted))
        same = self._with_our_code(candidates)
        for holding in same:
            for signature, index in _completed(holding, self.wanted):
                self._settle(signature, holding, index, RunState.completed)
        self._take_open(same)
        self._count_changed([one for one in candidates if one not in same])
        return self.found

    def _count_changed(self, others: Sequence[Holding]) -> None:
        left, ours = set(self.wanted), str(self.prepared.snapshot.project)
        for holding in others:
            # Equal words in another project are another program, whose code has not changed.
            if frozen_project(holding.paths) not in {None, ours}:
                continue
            completed = {signature for signature, _ in _completed(holding, left)}
            if completed and not self.found.changed_in:
                self.found.changed_in = holding.paths.folder.name
            self.found.changed += sum(len(self.wanted[signature]) for signature in completed)
            left -= completed

    def _with_our_code(self, candidates: Sequence[Holding]) -> Sequence[Holding]:
        if self.any_code or not candidates:
            return candidates
        ours = code_identity(self.prepared.snapshot)
        if ours is None:
            return ()
        return [one for one in candidates if frozen_identity(one.paths) == ours]

    def _take_open(self, candidates: Sequence[Holding]) -> None:
        """Take what waits or runs; the scheduler is asked once, for all launches."""
        pairs = [
            (launch, holding)
            for holding in candidates
            if any(signature in self.wanted for signature in holding.runs)
            and (launch := _loaded(holding, self.context)) is not None
        ]
        questions = [(launch, holding.of(self.wanted)) for launch, holding in pairs]
        views = launch_views(questions, self.context, ask=Ask.open_runs)
        for view, (launch, holding) in zip(views, pairs, strict=True):
            if view.warning:
                self.context.note(f"warning: {view.warning}")
            history = read_launch_history(launch)
            for one in reversed(view.runs):
                signature = launch.runs[one.record.index].signature
                if signature in self.wanted and _stands(one, history):
                    self._settle(signature, holding, one.record.index, one.state)

    def _settle(self, signature: str, holding: Holding, index: int, state: RunState) -> None:
        where = self.found.skipped if state is RunState.completed else self.found.adopted
        for run in self.wanted.pop(signature):
            where.append(
                Known(
                    index=run.index,
                    overrides=run.overrides,
                    folder=holding.paths.folder,
                    earlier=index,
                    state=state,
                )
            )


def _loaded(holding: Holding, context: Context) -> Launch | None:
    try:
        return load_launch(holding.paths.folder)
    except HpckitError as error:
        context.note(f"warning: {error.message}")
        return None


def _completed(holding: Holding, wanted: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the wanted signatures that a launch has completed, each with its latest such run."""
    for signature in [one for one in holding.runs if one in wanted]:
        for index in reversed(holding.runs[signature]):
            if ended_well(holding.paths, index):
                yield signature, index
                break


def _stands(view: RunView, history: LaunchHistory) -> bool:
    """Whether a run stands for another one: it has completed, or goes on without being asked to."""
    if view.state is RunState.completed:
        return True
    index = view.record.index
    # What was only rendered waits for nobody.
    handed_in = bool(history.accepted) or index in history.executors
    goes_on = view.state in _ON_ITS_WAY and not view.settled and not view.record.cancel_requested
    return goes_on and handed_in and index not in history.refused
