"""`hpckit chaos`: injects faults into a running run, by name or at random, to test its recovery.

Selects the run, schedules the faults and records them in `chaos.jsonl` in the run's folder;
operations/running/inject_fault carries them out.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from hpckit.cli.options import add_output_dir_option, choose_output_dir
from hpckit.context import Context
from hpckit.errors import HpckitError, NotFoundError, RunError, SchedulerError, UsageError
from hpckit.model.fault import MENDING, ON_CHECKPOINTS, Fault, FaultKind
from hpckit.model.moment import format_local_time_of_day
from hpckit.model.plain import attributes_to_json
from hpckit.model.run import RunView
from hpckit.operations.running.inject_fault import SANDBOX_VARIABLE, FaultScene, MissedError, inject_fault
from hpckit.planning.faults import (
    generate_random_fault_schedule,
    group_words_by_fault,
    parse_delay,
    parse_externally_injected_faults,
)
from hpckit.record.launches import Launch, load_run_settings, read_run_records
from hpckit.record.lookup import find_launch_or_run
from hpckit.record.store import append_json_lines
from hpckit.values import dataclass
from hpckit.views.awaited_answer import find_single_running_run
from hpckit.views.launch_view import Ask, build_launch_view

_KINDS = [[kind.value] for kind in FaultKind]
_POLL_S = 2.0
_SHOWN = 10


EPILOG = """\
examples:
  hpckit chaos kill rank=0   now, in the latest launch
  hpckit chaos .3 kill rank=1 --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `chaos`."""
    add = parser.add_argument
    add(
        "given",
        nargs="*",
        metavar="[RUN] FAULT",
        help="a run (default: the latest launch's), then faults: kill rank=1, stop agent node=n2, "
        "term supervisor, requeue, flip, …; docs/guides/chaos.md lists them",
    )
    add("--mtbf", metavar="TIME", help="at random, with this mean time between faults: 90s, 2m")
    add("--faults", metavar="LIST", help="what to draw from at random: kill,stop,requeue")
    add("--seed", type=int, default=0, help="same seed, same schedule (default: 0)")
    add("--for", dest="limit", metavar="TIME", help="stop this long after the start: 20m")
    add("--sandbox", metavar="PATH", help=f"scripts/slurm-sandbox (default: ${SANDBOX_VARIABLE})")
    add("--yes", action="store_true", help="agree to damage of the newest checkpoint")
    add("--dry-run", action="store_true", help="say what would be done, do nothing")
    add("--json", action="store_true", help="print one JSON object a line instead of text")
    add_output_dir_option(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Inject faults; raises MissedError (exit code 1) if a named fault found nothing to hit."""
    reference, texts = _split_run_and_faults(arguments)
    faults = parse_externally_injected_faults(texts)
    try:
        selection = find_launch_or_run(reference, choose_output_dir(arguments, context), cwd=context.cwd)
    except NotFoundError as error:
        if texts or reference is None:
            raise
        kinds = f"{reference!r} is neither a launch nor a fault (docs/guides/chaos.md lists faults)"
        raise NotFoundError(error.message, hint=f"{error.hint}\n{kinds}") from None
    _refuse_bad_fault_options(faults, arguments)
    anyhow = arguments.dry_run or all(fault.kind in MENDING for fault in faults)
    # Random faults over hours may well begin between two attempts.
    view = find_single_running_run(
        *(selection, context, "struck by a fault"),
        otherwise=lambda view: anyhow or (arguments.mtbf is not None and not view.can_no_longer_change),
    )
    scene = _Stage(launch=selection.launch, index=view.record.index, arguments=arguments, context=context)
    if arguments.mtbf is None:
        return scene.inject_all(faults)
    return scene.inject_at_random(faults)


def _split_run_and_faults(arguments: argparse.Namespace) -> tuple[str | None, Sequence[str]]:
    given = list(arguments.given)
    named = bool(given) and given[0].replace(",", " ").split()[:1] not in _KINDS
    reference = given.pop(0) if named else None
    if given and arguments.faults is not None:
        raise UsageError(
            f"faults are given twice: {' '.join(given)!r} and --faults {arguments.faults!r}",
            hint="name them once",
        )
    return reference, group_words_by_fault(given if arguments.faults is None else [arguments.faults])


def _refuse_bad_fault_options(faults: Sequence[Fault], arguments: argparse.Namespace) -> None:
    if not faults:
        raise UsageError(
            "no fault is named",
            hint="such as `hpckit chaos kill rank=1` or `hpckit chaos --mtbf 2m --faults "
            "kill,stop`; docs/guides/chaos.md lists them all",
        )
    if arguments.mtbf is None and (arguments.faults is not None or arguments.limit or arguments.seed):
        raise UsageError("--faults, --for and --seed are only for random faults", hint="add --mtbf TIME")
    damaging = sorted({fault.kind.value for fault in faults if fault.kind in ON_CHECKPOINTS})
    if damaging and not (arguments.yes or arguments.dry_run):
        raise UsageError(
            f"{', '.join(damaging)} destroys the newest checkpoint of the run for good",
            hint="add --yes if that is what you want",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One run and the faults to inject into it."""

    launch: Launch
    index: int
    arguments: argparse.Namespace
    context: Context

    def inject_all(self, faults: Sequence[Fault]) -> int:
        """Inject these faults in turn; raises the first error, as RunError if others were injected before."""
        for done, fault in enumerate(faults):
            error = self._inject_and_record(fault, self._read_fault_scene(), after=None)
            if error is not None:
                raise error if not done else RunError(error.message, hint=error.hint)
        return 0

    def inject_at_random(self, faults: Sequence[Fault]) -> int:
        """Inject faults at random times until the run is over; misses are only printed."""
        began, scene = self.context.now(), self._read_fault_scene()
        resources = scene.settings.resources
        ranks = resources.nodes * resources.tasks_per_node
        mtbf = parse_delay(self.arguments.mtbf)
        drawn = generate_random_fault_schedule(self.arguments.seed, mtbf, faults, ranks, scene.nodes)
        limit = None if self.arguments.limit is None else parse_delay(self.arguments.limit)
        strikes = itertools.takewhile(lambda strike: limit is None or strike[0] <= limit, drawn)
        if self.arguments.dry_run:
            for after, fault in strikes if limit else itertools.islice(strikes, _SHOWN):
                detail = f"after {after.total_seconds():.1f} s"
                self._print_fault(self._fault_to_json(fault, scene.view, "planned", detail, after))
            return 0
        for after, fault in strikes:
            if not self._sleep_until_due(began + after):
                break
            error = self._inject_and_record(fault, self._read_fault_scene(), after=after)
            if error is not None and not isinstance(error, MissedError | SchedulerError):
                raise error
        return 0

    def _read_fault_scene(self) -> FaultScene:
        view = build_launch_view(self.launch, self.context, ask=Ask.open_runs, indices=[self.index])
        named = self.arguments.sandbox or self.context.environ.get(SANDBOX_VARIABLE)
        return FaultScene(
            launch=self.launch,
            view=view.runs[0],
            settings=load_run_settings(self.launch, self.index)[0],
            context=self.context,
            sandbox=None if named is None else (self.context.cwd / named).resolve(),
            dry=self.arguments.dry_run,
        )

    def _inject_and_record(
        self, fault: Fault, scene: FaultScene, *, after: timedelta | None
    ) -> HpckitError | None:
        try:
            done, error = inject_fault(fault, scene), None
        except HpckitError as caught:
            done, error = caught.message, caught
        if error is not None and after is None:
            return error
        outcome = "missed" if error is not None else "dry run" if scene.dry else "injected"
        line = self._fault_to_json(fault, scene.view, outcome, done, after)
        self._print_fault(line)
        if not scene.dry:
            append_json_lines(self.launch.paths.run(self.index).chaos_log, line)
        return error

    def _fault_to_json(
        self, fault: Fault, view: RunView, outcome: str, detail: str, after: timedelta | None
    ) -> dict[str, Any]:
        """Return a fault as it is recorded; `after_s` is since the start, for random ones only."""
        return {
            "at": self.context.now().isoformat(timespec="milliseconds"),
            **attributes_to_json(view.record, "run=id attempt round step"),
            "fault": fault.text,
            "outcome": outcome,
            "detail": detail,
            "seed": None if after is None else self.arguments.seed,
            "after_s": None if after is None else round(after.total_seconds(), 3),
        }

    def _print_fault(self, line: Mapping[str, Any]) -> None:
        if self.arguments.json:
            self.context.say(self.context.json_line(line))
            return
        places = ((name, line[name]) for name in ("attempt", "round", "step"))
        where = ", ".join(f"{name} {at}" for name, at in places if at is not None)
        at = format_local_time_of_day(datetime.fromisoformat(line["at"]))
        self.context.say(f"{at}  {line['fault']}: {line['outcome']}: {line['detail']} ({where})")

    def _sleep_until_due(self, due: datetime) -> bool:
        """Sleep until `due`; False once the run is over and nothing will restart it."""
        while (left := (due - self.context.now()).total_seconds()) > 0:
            if self._is_run_over():
                return False
            self.context.sleep(min(left, _POLL_S))
        return not self._is_run_over()

    def _is_run_over(self) -> bool:
        """Whether the run has ended and nothing will restart it; Slurm is asked only then."""
        (record,) = read_run_records(self.launch, [self.index])
        if not record.state.ended:
            return False
        return build_launch_view(self.launch, self.context, indices=[self.index]).runs[0].can_no_longer_change
