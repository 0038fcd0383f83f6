"""Asks the supervisor of a running run for a profile, waits for it, and sums its traces up."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from hpckit.context import Context
from hpckit.errors import NotFoundError, UsageError
from hpckit.features.profiling.summary import summarise_trace
from hpckit.features.profiling.text import ProfiledRank
from hpckit.model.counted import format_count, format_ranges, parse_number_ranges
from hpckit.model.launch import LaunchConfig
from hpckit.model.profile import MOST_RANKS, MOST_STEPS, ProfileAnswer, ProfileRequest, RankProfile
from hpckit.model.run import RunRecord
from hpckit.model.settings import ProfileTool
from hpckit.operations.next_step import launch_reference
from hpckit.patterns import lazy_pattern
from hpckit.record.attempts import latest_attempt_number
from hpckit.record.launches import load_run_settings, read_run_records
from hpckit.record.layout import AttemptPaths
from hpckit.record.lookup import Selection
from hpckit.record.process import this_host
from hpckit.record.store import open_regular_file
from hpckit.runtime.mailbox import LOOK_S, profile_mailbox
from hpckit.values import dataclass, replace
from hpckit.views.awaited_answer import ask_supervisor_and_wait, create_request_name, find_single_running_run

_STILL_S = 30.0
"""How often a wait looks whether the run is still running: that asks Slurm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOrder:
    """What a user wants: `ranks` as typed, such as `0,3` or `all`."""

    steps: int
    ranks: str
    tool: ProfileTool
    wait: bool = True


RunProfile = tuple[str, int, ProfileAnswer, tuple[ProfiledRank, ...]]
"""A run, the attempt that was profiled, its answer, and where the traces of ranks are."""


def profile_run(selection: Selection, order: ProfileOrder, context: Context) -> RunProfile:
    """Have ranks of the selected run profiled, and wait for it if the order says so.

    The run continues. Raises UsageError if it is not running or cannot be profiled as asked,
    RunError if it ends meanwhile, or its supervisor does not answer.
    """
    launch = selection.launch
    if not 0 < order.steps <= MOST_STEPS:
        raise UsageError(
            f"--steps is {order.steps}; a profile has 1 to {MOST_STEPS} steps",
            hint="5 steps show what each step does; traces grow by megabytes a step",
        )
    record = find_single_running_run(selection, context, "profiled").record
    settings, _ = load_run_settings(launch, record.index)
    wanted = _choose_ranks_to_profile(order, settings, record.id)
    paths = launch.paths.run(record.index).attempt(record.attempt)
    request = ProfileRequest(
        id=create_request_name(context),
        at=context.now(),
        host=this_host(),
        steps=order.steps,
        ranks=wanted,
        tool=order.tool,
    )
    answer = ask_supervisor_and_wait(profile_mailbox(paths), request, launch, record, context)
    if answer.refused is not None:
        raise UsageError(
            f"run {record.id} was not profiled: {answer.refused}",
            hint=_explain_when_profiling_works(settings),
        )
    if order.wait and not answer.done:
        of = f"{format_count(len(answer.ranks), 'rank')} ({format_ranges(answer.ranks)})"
        steps = format_count(order.steps, "step")
        context.note(f"profiling {steps} of {of} after one to warm up; Ctrl-C ends this wait only")
        answer = _wait_until_complete(paths, answer, selection, record, context)
    return _build_run_profile(record, record.attempt, paths, answer)


def find_last_profile(selection: Selection) -> RunProfile:
    """Return the latest profile of the selected run, which may have ended, or be planned.

    Raises NotFoundError if it has none, UsageError if several runs are meant.
    """
    launch, index = selection.launch, selection.require_single_run()
    record = read_run_records(launch, [index])[0]
    run = launch.paths.run(index)
    for attempt in range(latest_attempt_number(run.attempts), 0, -1):
        paths = run.attempt(attempt)
        answer = read_latest_profile_answer(paths)
        if answer is not None:
            return _build_run_profile(record, attempt, paths, answer)
    raise NotFoundError(
        f"run {record.id} has no profile",
        hint=f"hpckit profile {record.id} makes one while it runs; observe.profile.at_step plans one before",
    )


def read_latest_profile_answer(paths: AttemptPaths) -> ProfileAnswer | None:
    """Return the newest answer of an attempt that something was profiled for; None without one."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [file.stem for file in paths.profiles.iterdir() if file.suffix == ".json"]
    answers = map(profile_mailbox(paths).get_answer, names)
    profiled = [answer for answer in answers if answer is not None and answer.refused is None]
    return max(profiled, key=lambda one: one.at, default=None)


def _choose_ranks_to_profile(order: ProfileOrder, settings: LaunchConfig, run: str) -> tuple[int, ...]:
    """Return the ranks that are meant, none for all; raises UsageError for what cannot be."""
    size = settings.resources.nodes * settings.resources.tasks_per_node
    ranks = _parse_ranks(order.ranks, size, run)
    if len(ranks or range(size)) > MOST_RANKS:
        raise UsageError(
            f"--ranks {order.ranks} are {len(ranks or range(size))} ranks; a profile has at most "
            f"{MOST_RANKS}",
            hint="ranks do the same work: profile rank 0 and a slow one",
        )
    if order.tool is ProfileTool.nsys:
        _refuse_ranks_without_nsys(settings, ranks or tuple(range(size)), run)
    return ranks


def _parse_ranks(text: str, size: int, run: str) -> tuple[int, ...]:
    if text.strip() == "all":
        return ()
    try:
        return tuple(sorted(parse_number_ranges(text, size)))
    except ValueError as error:
        has = "rank 0" if size == 1 else f"ranks 0-{size - 1}"
        raise UsageError(
            f"--ranks {text}: {error}; run {run} has {has}",
            hint="for example --ranks 0,3 or --ranks 0-3 or --ranks all",
        ) from error


def _refuse_ranks_without_nsys(settings: LaunchConfig, ranks: Sequence[int], run: str) -> None:
    planned = settings.observe.profile
    below = set(planned.ranks) if planned.tool is ProfileTool.nsys else set[int]()
    if missing := [rank for rank in ranks if rank not in below]:
        raise UsageError(
            f"run {run} did not start rank {format_ranges(missing)} below nsys, which has to be "
            "there from the start",
            hint="launch with observe.profile.tool=nsys and observe.profile.ranks=["
            f"{','.join(map(str, ranks))}], or leave --tool nsys out",
        )


def _explain_when_profiling_works(settings: LaunchConfig) -> str:
    if settings.command is None:
        return "`hpckit status` shows its state; try again once it trains"
    return (
        "the run is a command: it can be profiled while it loops over `run.steps()` of "
        "`hpckit.attach()`, because only there hpckit knows where a step begins"
    )


def _wait_until_complete(
    paths: AttemptPaths, answer: ProfileAnswer, selection: Selection, record: RunRecord, context: Context
) -> ProfileAnswer:
    """Return the answer once it is complete, or once the run has ended without completing it.

    Says once if no step begins meanwhile: a run that hangs comes to no step boundary.
    """
    waited_s, since, said = 0.0, context.now(), False
    while not answer.done:
        context.sleep(LOOK_S)
        waited_s += LOOK_S
        answer = profile_mailbox(paths).get_answer(answer.id) or answer
        if answer.done or waited_s % _STILL_S >= LOOK_S:
            continue
        now = _find_record_of_running_attempt(selection, record, context)
        if now is None:
            return profile_mailbox(paths).get_answer(answer.id) or answer
        if now.step == record.step and not said:
            context.note(
                f"no step has begun since {since:%H:%M:%S} UTC; the run may hang: "
                f"`hpckit stacks {launch_reference(selection.launch, context)}.{record.index}` "
                "shows where"
            )
            said = True
        if now.step != record.step:
            record, since, said = now, context.now(), False
    return answer


def _find_record_of_running_attempt(
    selection: Selection, record: RunRecord, context: Context
) -> RunRecord | None:
    try:
        now = find_single_running_run(replace(selection, index=record.index), context, "profiled").record
    except UsageError:
        return None
    return now if now.attempt == record.attempt else None


def _build_run_profile(
    record: RunRecord, attempt: int, paths: AttemptPaths, answer: ProfileAnswer
) -> RunProfile:
    known = {result.rank: result for result in answer.results}
    missing = "it has not reported yet" if not answer.done else "it reported nothing"
    results = [known.get(rank, RankProfile(rank=rank, problem=missing)) for rank in answer.ranks]
    ranks = tuple(_build_rank_profile(result, paths, answer) for result in results)
    return record.id, attempt, answer, ranks


def _build_rank_profile(result: RankProfile, paths: AttemptPaths, answer: ProfileAnswer) -> ProfiledRank:
    if not result.steps or answer.round is None:
        return ProfiledRank(result=result, problem=result.problem)
    round_ = paths.round(answer.round)
    if answer.tool is ProfileTool.nsys:
        return ProfiledRank(result=result, file=round_.nsys_report(result.rank))
    file = round_.profile_trace(answer.id, result.rank)
    try:
        summary = summarise_trace(read_trace_events(file))
    except TraceTooLargeError as error:
        problem = f"the trace is not summed up: {error}; profile fewer steps, or open it"
        return ProfiledRank(result=result, file=file, problem=problem)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        return ProfiledRank(result=result, file=file, problem=f"cannot read {file}: {why}")
    return ProfiledRank(result=result, file=file, summary=summary, problem=result.problem)


MOST_BYTES = 1 << 29
"""Of text that is read of one trace: some millions of events, half a minute, and a gigabyte."""

_CHUNK = 1 << 20
_LONGEST_HEAD = 1 << 24
_LIST = lazy_pattern(r'"traceEvents"\s*:\s*\[')
_NEXT = lazy_pattern(r"[^\s,]")


class TraceTooLargeError(ValueError):
    """Raised for a trace of more than `MOST_BYTES`."""


def read_trace_events(path: Path, *, most: int = MOST_BYTES) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, a gzip file of JSON in the Chrome trace format, one by one.

    A large one is never in memory as a whole. Raises OSError, ValueError if it is damaged, and
    TraceTooLargeError if its text is longer than `most` bytes.
    """
    with open_regular_file(path) as packed, gzip.open(packed, "rt", encoding="utf-8") as file:
        try:
            yield from _parse_trace_events(file, most)
        except (EOFError, zlib.error, RecursionError) as error:
            raise ValueError(f"it is damaged: {error}") from error


def _parse_trace_events(file: IO[str], most: int) -> Iterator[dict[str, Any]]:
    """Yield the objects of the list of events; what was read before the next one is forgotten."""
    decode = json.JSONDecoder().raw_decode
    text, read, begun = "", 0, False
    while piece := file.read(_CHUNK):
        text, read = text + piece, read + len(piece)
        if read > most:
            raise TraceTooLargeError(f"it has more than {most >> 20} MiB of text")
        if not begun:
            found = _LIST.search(text)
            if found is None:
                if len(text) > _LONGEST_HEAD:
                    break
                continue
            begun, text = True, text[found.end() :]
        at = 0
        while found := _NEXT.search(text, at):
            at = found.start()
            if text[at] == "]":
                return
            try:
                event, at = decode(text, at)
            except json.JSONDecodeError:  # an object that goes on in the next chunk
                break
            if isinstance(event, dict):
                yield event
        text = text[at:]
    raise ValueError("it is damaged, or was cut off" if begun else "it has no list of events")
