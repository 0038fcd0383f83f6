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
from hpckit.features.profiling.summary import summarise
from hpckit.features.profiling.text import ProfiledRank
from hpckit.model.counted import counted, parse_ranges, ranges
from hpckit.model.launch import LaunchConfig
from hpckit.model.profile import MOST_RANKS, MOST_STEPS, ProfileAnswer, ProfileRequest, RankProfile
from hpckit.model.run import RunRecord
from hpckit.model.settings import ProfileTool
from hpckit.operations.next_step import reference
from hpckit.patterns import lazy_pattern
from hpckit.record.attempts import latest_attempt
from hpckit.record.launches import load_settings, read_runs
from hpckit.record.layout import AttemptPaths
from hpckit.record.lookup import Selection
from hpckit.record.process import this_host
from hpckit.record.store import open_plain
from hpckit.runtime.mailbox import LOOK_S, profile_mailbox
from hpckit.values import dataclass, replace
from hpckit.views.awaited_answer import ask_run, request_name, running_run

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
    record = running_run(selection, context, "profiled").record
    settings, _ = load_settings(launch, record.index)
    wanted = _wanted(order, settings, record.id)
    paths = launch.paths.run(record.index).attempt(record.attempt)
    request = ProfileRequest(
        id=request_name(context),
        at=context.now(),
        host=this_host(),
        steps=order.steps,
        ranks=wanted,
        tool=order.tool,
    )
    answer = ask_run(profile_mailbox(paths), request, launch, record, context)
    if answer.refused is not None:
        raise UsageError(
            f"run {record.id} was not profiled: {answer.refused}", hint=_hint(settings)
        )
    if order.wait and not answer.done:
        of = f"{counted(len(answer.ranks), 'rank')} ({ranges(answer.ranks)})"
        steps = counted(order.steps, "step")
        context.note(f"profiling {steps} of {of} after one to warm up; Ctrl-C ends this wait only")
        answer = _ended(paths, answer, selection, record, context)
    return _summed_up(record, record.attempt, paths, answer)


def last_profile(selection: Selection) -> RunProfile:
    """Return the latest profile of the selected run, which may have ended, or be planned.

    Raises NotFoundError if it has none, UsageError if several runs are meant.
    """
    launch, index = selection.launch, selection.only()
    record = read_runs(launch, [index])[0]
    run = launch.paths.run(index)
    for attempt in range(latest_attempt(run.attempts), 0, -1):
        paths = run.attempt(attempt)
        answer = latest_profile(paths)
        if answer is not None:
            return _summed_up(record, attempt, paths, answer)
    raise NotFoundError(
        f"run {record.id} has no profile",
        hint=f"hpckit profile {record.id} makes one while it runs; observe.profile.at_step plans "
        "one before",
    )


def latest_profile(paths: AttemptPaths) -> ProfileAnswer | None:
    """Return the newest answer of an attempt that something was profiled for; None without one."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [file.stem for file in paths.profiles.iterdir() if file.suffix == ".json"]
    answers = map(profile_mailbox(paths).read, names)
    profiled = [answer for answer in answers if answer is not None and answer.refused is None]
    return max(profiled, key=lambda one: one.at, default=None)


def _wanted(order: ProfileOrder, settings: LaunchConfig, run: str) -> tuple[int, ...]:
    """Return the ranks that are meant, none for all; raises UsageError for what cannot be."""
    size = settings.resources.nodes * settings.resources.tasks_per_node
    ranks = _parsed(order.ranks, size, run)
    if len(ranks or range(size)) > MOST_RANKS:
        raise UsageError(
            f"--ranks {order.ranks} are {len(ranks or range(size))} ranks; a profile has at most "
            f"{MOST_RANKS}",
            hint="ranks do the same: --ranks 0 and a slow one say most",
        )
    if order.tool is ProfileTool.nsys:
        _check_nsys(settings, ranks or tuple(range(size)), run)
    return ranks


def _parsed(text: str, size: int, run: str) -> tuple[int, ...]:
    if text.strip() == "all":
        return ()
    try:
        return tuple(sorted(parse_ranges(text, size)))
    except ValueError as error:
        has = "rank 0" if size == 1 else f"ranks 0-{size - 1}"
        raise UsageError(
            f"--ranks {text}: {error}; run {run} has {has}",
            hint="for example --ranks 0,3 or --ranks 0-3 or --ranks all",
        ) from error


def _check_nsys(settings: LaunchConfig, ranks: Sequence[int], run: str) -> None:
    """Raise UsageError if these ranks were not started below nsys."""
    planned = settings.observe.profile
    below = set(planned.ranks) if planned.tool is ProfileTool.nsys else set[int]()
    if missing := [rank for rank in ranks if rank not in below]:
        raise UsageError(
            f"run {run} did not start rank {ranges(missing)} below nsys, which has to be there "
            "from the start",
            hint="launch with observe.profile.tool=nsys and observe.profile.ranks=["
            f"{','.join(map(str, ranks))}], or leave --tool nsys out",
        )


def _hint(settings: LaunchConfig) -> str:
    if settings.command is None:
        return "`hpckit status` says how it stands; try again once it trains"
    return (
        "the run is a command: it can be profiled while it loops over `run.steps()` of "
        "`hpckit.attach()`, because only there hpckit knows where a step begins"
    )


def _ended(
    paths: AttemptPaths,
    answer: ProfileAnswer,
    selection: Selection,
    record: RunRecord,
    context: Context,
) -> ProfileAnswer:
    """Return the answer once it is complete, or once the run has ended without completing it.

    Says once if no step begins meanwhile: a run that hangs comes to no step boundary.
    """
    waited_s, since, said = 0.0, context.now(), False
    while not answer.done:
        context.sleep(LOOK_S)
        waited_s += LOOK_S
        answer = profile_mailbox(paths).read(answer.id) or answer
        if answer.done or waited_s % _STILL_S >= LOOK_S:
            continue
        now = _still(selection, record, context)
        if now is None:
            return profile_mailbox(paths).read(answer.id) or answer
        if now.step == record.step and not said:
            context.note(
                f"no step has begun since {since:%H:%M:%S} UTC; the run may hang: "
                f"`hpckit stacks {reference(selection.launch, context)}.{record.index}` shows where"
            )
            said = True
        if now.step != record.step:
            record, since, said = now, context.now(), False
    return answer


def _still(selection: Selection, record: RunRecord, context: Context) -> RunRecord | None:
    """Return the record of the run if the attempt that was asked still runs."""
    try:
        now = running_run(replace(selection, index=record.index), context, "profiled").record
    except UsageError:
        return None
    return now if now.attempt == record.attempt else None


def _summed_up(
    record: RunRecord, attempt: int, paths: AttemptPaths, answer: ProfileAnswer
) -> RunProfile:
    known = {result.rank: result for result in answer.results}
    missing = "it has not reported yet" if not answer.done else "it reported nothing"
    results = [known.get(rank, RankProfile(rank=rank, problem=missing)) for rank in answer.ranks]
    ranks = tuple(_of_rank(result, paths, answer) for result in results)
    return record.id, attempt, answer, ranks


def _of_rank(result: RankProfile, paths: AttemptPaths, answer: ProfileAnswer) -> ProfiledRank:
    if not result.steps or answer.round is None:
        return ProfiledRank(result=result, problem=result.problem)
    round_ = paths.round(answer.round)
    if answer.tool is ProfileTool.nsys:
        return ProfiledRank(result=result, file=round_.nsys_report(result.rank))
    file = round_.trace(answer.id, result.rank)
    try:
        summary = summarise(read_trace(file))
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


def read_trace(path: Path, *, most: int = MOST_BYTES) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, a gzip file of JSON in the Chrome trace format, one by one.

    A large one is never in memory as a whole. Raises OSError, ValueError if it is damaged, and
    TraceTooLargeError if its text is longer than `most` bytes.
    """
    with open_plain(path) as packed, gzip.open(packed, "rt", encoding="utf-8") as file:
        try:
            yield from _events(file, most)
        except (EOFError, zlib.error, RecursionError) as error:
            raise ValueError(f"it is damaged: {error}") from error


def _events(file: IO[str], most: int) -> Iterator[dict[str, Any]]:
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
