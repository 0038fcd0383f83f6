"""`hpckit logs`: prints what a run printed, either all of it or as it comes.

By default that is the log of rank 0 of the latest round, or of the rank that caused a failure; if
no rank ever started, those of the agents, the batch script or the local executor.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from hpckit.cli.options import (
    add_common_options,
    add_launch_or_run_argument,
    resolve_reference_to_show,
    whole_number_type,
)
from hpckit.cli.terminal.log_printer import LogPrinter
from hpckit.context import Context
from hpckit.errors import NotFoundError, UsageError
from hpckit.model.counted import format_short_list
from hpckit.model.plain import to_plain
from hpckit.model.run import RunRecord
from hpckit.model.states import RunState
from hpckit.operations.next_step import say_runs_continue_on_ctrl_c
from hpckit.record.launches import Launch, read_run_records
from hpckit.record.logs import (
    LogFile,
    find_logs_without_rank_logs,
    find_rank_logs,
    list_attempt_rounds,
    list_run_attempts,
    read_whole_log,
)
from hpckit.record.lookup import Selection
from hpckit.values import dataclass
from hpckit.views.launch_view import Ask, build_launch_view
from hpckit.views.poller import PollBackoff, Poller

POLL_S = 0.5
_BACKOFF = PollBackoff(
    first=timedelta(seconds=30), longest=timedelta(minutes=5), shortest=timedelta(seconds=5)
)
"""Slurm knows of ends missing from the record, and of a requeue after a recorded end."""

_SHOWN = 8


EPILOG = """\
examples:
  hpckit logs   the latest launch
  hpckit logs .3 --follow --tail 20
  hpckit logs .3 --rank all --attempt 2

Without --rank: the rank that failed, else rank 0; if no rank has started, the output of the
agents, the batch script or the local executor.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `logs`."""
    add_launch_or_run_argument(parser)
    parser.add_argument("--rank", metavar="N|all", help="this rank, or all (default: see below)")
    parser.add_argument("--attempt", metavar="N", type=int, help="this attempt, from 1")
    parser.add_argument(
        "--round", metavar="N", type=int, help="this round of the attempt, from 0 (default: latest)"
    )
    lines = "only the last N lines of each log; with --json an object for each line"
    parser.add_argument(*("-n", "--tail"), metavar="N", type=whole_number_type("lines", "20"), help=lines)
    parser.add_argument("--follow", "-f", action="store_true", help="follow until the run has ended")
    add_common_options(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Print logs; returns 0, also if there are none yet."""
    selection = resolve_reference_to_show(arguments, context)
    choice = _Choice(
        launch=selection.launch,
        index=_choose_run_index(selection, context),
        rank=_parse_rank(arguments.rank),
        attempt=arguments.attempt,
        round=arguments.round,
    )
    choice.check_attempt_and_round()
    most = None if arguments.tail is None else abs(arguments.tail)
    if arguments.json and not arguments.follow and most is None:
        # The full texts.
        logs = [
            {**to_plain(log), "path": str(log.path), "text": read_whole_log(log.path)}
            for log in choice.find_logs()
        ]
        context.say_json({"run": choice.run_id, "logs": logs})
        return 0
    own = selection.launch.stranger is None
    printer = LogPrinter(context=context, as_json=arguments.json, own=own, most=most)
    if arguments.follow:
        with say_runs_continue_on_ctrl_c(choice.launch, context):
            _follow_logs(choice, printer, context)
    else:
        printer.print_new_lines(choice.find_logs(), last=True)
    if not printer.tails:
        context.note(f"nothing has been printed by {choice.run_id} yet")
    for line in choice.list_collective_waits():
        context.note(line)
    return 0


def _parse_rank(text: str | None) -> int | str | None:
    if text is None or text == "all":
        return text
    if not text.isdecimal():
        raise UsageError(f"--rank is {text!r}; it must be a number from 0, or `all`")
    return int(text)


def _choose_run_index(selection: Selection, context: Context) -> int:
    """Return the index of the named run, of the only one, or of the only one that failed."""
    launch = selection.launch
    if selection.index is not None or len(launch.runs) == 1:
        return selection.index or 0
    views = build_launch_view(launch, context, ask=Ask.nothing).runs
    failed = [view.record.index for view in views if view.state is RunState.failed]
    if len(failed) == 1:
        context.note(f"{launch.runs[failed[0]].id}, the one run that failed")
        return failed[0]
    named = [launch.runs[index].id for index in failed] or [head.id for head in launch.runs]
    raise UsageError(
        f"launch {launch.id} has {len(launch.runs)} runs; name one of "
        f"{format_short_list(named, _SHOWN)}{' (these failed)' if failed else ''}",
        hint=f"for example: hpckit logs {named[0]}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The selected logs. `rank` is a number, `all`, or None for the most useful one."""

    launch: Launch
    index: int
    rank: int | str | None
    attempt: int | None
    round: int | None

    @property
    def run_id(self) -> str:
        return self.launch.runs[self.index].id

    def read_run_record(self) -> RunRecord:
        return read_run_records(self.launch, [self.index])[0]

    def list_collective_waits(self) -> Iterator[str]:
        """Yield in which collective ranks waited when the latest attempt failed: no log says it."""
        failure = self.read_run_record().failure if self.attempt is None and self.round is None else None
        if failure is not None and failure.collective is not None:
            yield f"{self.run_id} failed: {failure.collective.words}"

    def check_attempt_and_round(self) -> None:
        """Raise NotFoundError if the attempt or the round does not exist."""
        there = list_run_attempts(self.launch, self.index)
        if self.attempt is not None and self.attempt not in there:
            raise NotFoundError(
                f"run {self.run_id} has no attempt {self.attempt}; it has "
                f"{', '.join(map(str, there)) or 'none yet'}",
                hint="leave --attempt out for the latest",
            )
        begun = list_attempt_rounds(self.launch, self.index, self.attempt)
        if self.round is not None and self.round not in begun:
            raise NotFoundError(
                f"this attempt of run {self.run_id} has no round {self.round}; it has "
                f"{', '.join(map(str, begun)) or 'none yet'}",
                hint="leave --round out for the latest",
            )

    def find_logs(self) -> Sequence[LogFile]:
        """Return the logs that exist now; raises NotFoundError if the rank has none."""
        ranks = find_rank_logs(self.launch, self.index, self.attempt, self.round)
        if not ranks:
            job = self.read_run_record().job
            return find_logs_without_rank_logs(self.launch, self.index, job=job, attempt=self.attempt)
        if self.rank == "all":
            return list(ranks.values())
        wanted = self._choose_culprit_or_first_rank(ranks) if self.rank is None else self.rank
        if wanted not in ranks:
            numbers = format_short_list([*map(str, ranks)], _SHOWN)
            raise NotFoundError(
                f"run {self.run_id} has no log of rank {wanted}; it has {numbers}",
                hint="--rank all shows every rank's",
            )
        return [ranks[int(wanted)]]

    def _choose_culprit_or_first_rank(self, ranks: Mapping[int, LogFile]) -> int:
        """Return the rank that caused the failure of this very attempt, else the first rank."""
        record = self.read_run_record()
        shown = next(iter(ranks.values())).attempt
        blamed = record.failure.rank if record.failure and shown == record.attempt else None
        return blamed if blamed in ranks and blamed is not None else min(ranks)


def _follow_logs(choice: _Choice, printer: LogPrinter, context: Context) -> None:
    """Print new lines until the run has ended, through its rounds and attempts."""
    watch = Poller(launch=choice.launch, context=context, indices=[choice.index], rhythm=_BACKOFF)
    # Ask Slurm at the first look: do not wait for a run that has ended.
    watch.asked_at -= _BACKOFF.first
    waiting = False
    while True:
        watch.poll_once()
        with suppress(NotFoundError):  # a missing rank may still appear
            printer.print_new_lines(choice.find_logs(), last=watch.are_all_runs_over)
        if watch.are_all_runs_over:
            return
        if not printer.tails and not waiting:
            context.note(f"{choice.run_id} has printed nothing yet; waiting")
            waiting = True
        context.sleep(POLL_S)
