"""Failed runs grouped by failure: one entry for each signature. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hpckit.model.counted import format_count, format_ranges
from hpckit.model.failure import Cause, Failure
from hpckit.model.ids import split_run_id
from hpckit.model.plain import attributes_to_json
from hpckit.model.states import RunState
from hpckit.patterns import lazy_pattern
from hpckit.report.escape import shorten_text
from hpckit.report.rows import RunRow
from hpckit.values import dataclass

TRACEBACK_LINES = 12
SHOWN_GROUPS = 5
MESSAGE_CHARACTERS = 1000
"""Longer messages are cut in texts; JSON and logs have them whole."""

_SHOWN_RANGES, _FEW_RANGES = 12, 4
_SHOWN_SHORT, _SHORT = 3, 79
"""The number of lines and their width that a live view has room for on any terminal."""

_TOO_LITTLE = {
    Cause.time_limit: "resources.timeout_min=MINUTES",
    Cause.host_oom: "resources.mem_gb=GIGABYTES",
}
_OF_A_NODE = (
    (lazy_pattern(r": no module \S+ on \S+$"), "cluster.modules=[NAME,…]"),
    (lazy_pattern(r": cluster\.setup ended on "), "cluster.setup=[LINE,…]"),
    (lazy_pattern(r": No module named '?hpckit"), "cluster.python=/path/to/python"),
)
"""Words of jobs that end before their run begins, and the key that has to change."""
_OUR_FRAME = lazy_pattern(r'\s*File ".*[/\\]hpckit[/\\](?:runtime|cli|batch|operations)[/\\]')
_FRAME = lazy_pattern(r'\s*File "')
_OWN_FRAME = lazy_pattern(
    r'\s*File "(?!<frozen)(?!.*[/\\](?:site|dist)-packages[/\\])(?!.*[/\\]lib[/\\]python3)'
)
"""A frame outside installed packages and Python's own library."""
_MEMORY = lazy_pattern(r"^GPU memory: .*$", re.MULTILINE)
_NO_FILE = lazy_pattern(r"No such file or directory: '([^']+)'")
_NO_MODULE = lazy_pattern(r"ModuleNotFoundError: No module named '([^'.]+)")
_DENIED = lazy_pattern(r"(?:Permission denied|Read-only file system): '([^']*)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Runs with the same failure; `failure` is that of the first of them, as an example."""

    failure: Failure
    rows: tuple[RunRow, ...]

    @property
    def indices(self) -> list[int]:
        """The indices of its runs, smallest first."""
        return sorted(row.index for row in self.rows)

    @property
    def has_differing_messages(self) -> bool:
        """Whether the messages are similar but not the same."""
        return len({row.failure.message for row in self.rows if row.failure is not None}) > 1


def group_failures(rows: Sequence[RunRow]) -> list[FailureGroup]:
    """Return the failed runs among these by signature, the largest group first."""
    groups: dict[str, list[tuple[Failure, RunRow]]] = {}
    for row in sorted(rows, key=lambda row: row.index):
        if (failure := row.failure) is not None:
            key = failure.signature or f"{failure.cause} {failure.message}"
            groups.setdefault(key, []).append((failure, row))
    found = [FailureGroup(failure=some[0][0], rows=tuple(row for _, row in some)) for some in groups.values()]
    return sorted(found, key=lambda group: -len(group.rows))


def failure_group_to_json(group: FailureGroup) -> dict[str, Any]:
    """Return the object for a group in `status --json`."""
    return {
        **attributes_to_json(group.failure, "signature cause message"),
        "count": len(group.rows),
        "runs": group.indices,
        "example": group.rows[0].run,
    }


def format_failure_groups(rows: Sequence[RunRow]) -> list[str]:
    """Return a text for each group, with one traceback, and last what to do about them."""
    groups = group_failures(rows)
    texts = [f"\n{_format_failure_group(group)}" for group in groups[:SHOWN_GROUPS]]
    left = groups[SHOWN_GROUPS:]
    if left:
        runs = sum(len(group.rows) for group in left)
        texts.append(f"\n… and {format_count(runs, 'run')} with {format_count(len(left), 'other failure')}")
        texts.append("  `hpckit status --failed --json` has all")
    return [*texts, *_list_commands_to_try_next(groups)]


def _format_failure_group(group: FailureGroup) -> str:
    example, failure = group.rows[0], group.failure
    head = [f"{example.run} {example.state}: {format_failure(failure)}"]
    if len(group.rows) > 1:
        head = [
            format_failure_group_line(group),
            f"  for example run {example.index}{_format_failure_place(failure)}",
        ]
    traceback = [f"    {line}" for line in shorten_user_traceback(failure.traceback or "")]
    log = f"{''.join(list_failure_hints(example))}  whole log: hpckit logs {example.run}"
    return "\n".join([*head, *traceback, log])


def format_failure(failure: Failure) -> str:
    """Return a failure as text: its cause, its place, its message."""
    return f"{failure.cause}{_format_failure_place(failure)}: {_format_message(failure)}"


def list_failure_hints(row: RunRow) -> Iterator[str]:
    """Yield lines with what usually helps after a failure like that of a run."""
    failure = row.failure
    if failure is None:
        return
    if key := _find_override_to_change(failure):
        yield f"  it fails the same way again until {key.partition('=')[0]} changes\n"
    missing = _NO_FILE.search(failure.message)
    if missing is not None:
        yield _explain_missing_file(missing[1], row)
    module = _NO_MODULE.search(failure.message)
    if module is not None and "code.snapshot=false" not in row.overrides:
        where, other = "installed", "install it, or set cluster.python=/path/to/python"
        if row.container is not None:
            where, other = ("in the image", "take one that has it, or name its Python: container.python")
        yield (
            f"  {shorten_text(module[1], _SHORT)} is looked for in the frozen code, which has what "
            f"git does not ignore,\n  and in what is {where}: git add -f your own, {other}\n"
        )
    yield from _list_memory_hints(failure)
    # A program writes next to its code, which is frozen.
    denied = _DENIED.search(failure.message)
    if denied is not None and f"/{split_run_id(row.run)[0]}/code/" in denied[1]:
        yield (
            "  the frozen code cannot be written to: make the program's outputs relative (mostly "
            "by an option\n  of its own for their folder), or put them below $HPCKIT_RUN_DIR\n"
        )
    if "was killed by SIGABRT" in failure.message:
        # torch 2.13 on gloo, of a script that is through.
        yield "  if its log is complete, the script lacks dist.destroy_process_group() at its end\n"
    elif "abort before MPI_INIT completed" in failure.message:
        # Open MPI takes a rank for a task that `srun --mpi` started.
        several = "several: mpirun --oversubscribe -np N"
        yield f"  one process of MPI: mpirun -np 1 in front of it; {several}\n"


def _list_memory_hints(failure: Failure) -> Iterator[str]:
    # GPU memory that ran out: the message is often cut before its line.
    memory = _MEMORY.search(failure.message)
    if memory is not None and memory.end() > MESSAGE_CHARACTERS:
        yield f"  {memory[0]}\n"
    if failure.cause is Cause.cuda_oom:
        fits = "a smaller batch, parallel.shard=N, or GPUs with more (`hpckit plan` says what fits)"
        yield f"  another attempt has no more GPU memory: take {fits}\n"
    # Workers of a data loader end mostly for want of memory.
    told = re.search(r"worker \(pid.*(killed by|exited unexp)", failure.message)
    if told is not None or ", in _try_get_data\n" in (failure.traceback or ""):
        more = "fewer num_workers, or more resources.mem_gb"
        yield f"  the usual cause is too little memory or /dev/shm: {more}\n"


def _explain_missing_file(path: str, row: RunRow) -> str:
    """Return where a file was looked for; a relative path is the first failure of many a new project."""
    if f"/{split_run_id(row.run)[0]}/code/" in path:
        name = shorten_text(path.rpartition("/code/")[2], _SHORT)
        return (
            f"  {name} is looked for in the frozen code, which has what git does not ignore:\n  git add "
            "-f it, or give the whole path of where it is\n"
        )
    if path[0] == "/" and row.container is not None:
        return "  a container has what is in its image, and mounts: container.mounts=[SRC[:DST[:ro]]]\n"
    if path[0] == "/" or "runtime.cwd=project" in row.overrides:
        return ""
    return (
        f"  {shorten_text(path, _SHORT)} is looked for in the run's own folder, which "
        "has what git does not ignore:\n  give the whole path, or set runtime.cwd=project\n"
    )


def _find_override_to_change(failure: Failure | None) -> str:
    """Return the override without which a run fails as before; empty if none is known."""
    if failure is None or failure.cause is not Cause.scheduler:
        return ""
    return next((key for words, key in _OF_A_NODE if words.search(failure.message)), "")


def format_short_failure_lines(rows: Sequence[RunRow]) -> tuple[str, ...]:
    """Return a short line for each of the largest groups, and how many more there are."""
    groups = group_failures(rows)
    lines = [
        shorten_text(" ".join(format_failure_group_line(group, ranges_shown=_FEW_RANGES).split()), _SHORT)
        for group in groups[:_SHOWN_SHORT]
    ]
    left = len(groups) - _SHOWN_SHORT
    return (*lines, *([f"… and {format_count(left, 'other failure')}"] if left > 0 else []))


def format_failure_group_line(group: FailureGroup, *, ranges_shown: int = _SHOWN_RANGES) -> str:
    """Return a group in one line: how many runs and which, cause and message."""
    states = dict.fromkeys(str(row.state) for row in group.rows)
    runs = format_count(len(group.rows), "run")
    which = format_index_ranges(group.indices, ranges_shown)
    similar = ", with similar messages" if group.has_differing_messages else ""
    words = f"{group.failure.cause}: {_format_message(group.failure)}"
    return f"{runs} {' or '.join(states)} ({which}){similar}: {words}"


def format_index_ranges(indices: Iterable[int], most: int = _SHOWN_RANGES) -> str:
    """Return `3-7, 12`; if there are very many ranges, only the first ones."""
    pieces = format_ranges(indices).split(", ")
    shown = ", ".join(pieces[:most])
    return shown if len(pieces) <= most else f"{shown}, …"


def _format_message(failure: Failure) -> str:
    return re.sub(r"\n(?=.)", "\n  ", shorten_text(failure.message, MESSAGE_CHARACTERS))


def _format_failure_place(failure: Failure) -> str:
    places = [
        failure.rank_name,
        f"on {failure.node}" if failure.node else "",
        "" if failure.step is None else f"at step {failure.step}",
    ]
    place = " ".join(place for place in places if place)
    return f" ({place})" if place else ""


def _list_commands_to_try_next(groups: Sequence[FailureGroup]) -> list[str]:
    rows = [row for group in groups for row in group.rows]
    ready = [row for row in rows if not row.refusal]
    left: dict[str, list[int]] = {}
    for row in rows:
        if row.refusal:
            left.setdefault(row.refusal, []).append(row.index)
    refused = [f"  not resumed ({format_index_ranges(runs)}): {words}" for words, runs in left.items()]
    failed = [row for row in rows if row.state is RunState.failed]
    if not failed:
        cut = [row.run for row in ready if row.state is RunState.interrupted]
        which = cut[0] if len(cut) == 1 else split_run_id(cut[0])[0] if cut else ""
        watch = f"  continue: hpckit resume {which} (`hpckit watch` does it by itself)"
        return [*([watch] if cut else []), *refused, *_suggest_more_resources(ready)]
    one, begins, gap = failed[0].run, f", {failed[0].resume}" if failed[0].resume else "", ""
    if len(failed) > 1:
        one, begins, gap = f"{split_run_id(one)[0]} --failed", "", "\n"
    keys = {_find_override_to_change(row.failure) for row in failed}
    key = keys.pop() if len(keys) == 1 else ""
    again = f"{gap}  try again: hpckit rerun {f'{one} {key}'.strip()} (today's code)"
    frozen = f"         or: hpckit resume {one} (the frozen code{begins})"
    mended = any(row in ready and not _will_fail_again(row.failure) for row in failed)
    ours = not key and mended  # resume changes no key of the cluster, and takes the frozen code
    return [again, *([frozen] if ours else []), *refused, *_suggest_more_resources(ready)]


def _will_fail_again(failure: Failure | None) -> bool:
    """Whether it is sure that what was frozen fails again: a second loop of steps, data that changed."""
    twice = "run.steps() was already called"
    return failure is not None and (twice in failure.message or failure.cause is Cause.data_refused)


def _suggest_more_resources(rows: Sequence[RunRow]) -> Iterator[str]:
    for cause, word in _TOO_LITTLE.items():
        short = [row for row in rows if row.job and row.failure and row.failure.cause is cause]
        if len(short) == 1:
            begins = f" ({short[0].resume})" if short[0].resume else ""
            yield f"  with more: hpckit resume {short[0].run} {word}{begins}"
        elif short:
            launch = split_run_id(short[0].run)[0]
            yield f"  with more: hpckit resume {launch} --cause {cause} {word}"


def shorten_user_traceback(traceback: str, *, shown: int = TRACEBACK_LINES) -> tuple[str, ...]:
    """Return the last lines of a traceback without hpckit's own frames.

    A frame is its `File` line and the lines below it, up to the next frame or to a line that is not
    indented. If there are only hpckit's frames, they stay.
    """
    lines = traceback.rstrip().splitlines()
    kept, ours = [], False
    for line in lines:
        if _FRAME.match(line):
            ours = _OUR_FRAME.match(line) is not None
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    if not any(_FRAME.match(line) for line in kept):
        kept = lines
    if len(kept) <= shown:
        return tuple(kept)
    mine = _find_last_user_frame(kept[:-shown])
    if mine and not any(_OWN_FRAME.match(line) for line in kept[-shown:]):
        return ("…", *mine, "…", *kept[-shown:])
    return ("…", *kept[-shown:])


def _find_last_user_frame(lines: Sequence[str]) -> tuple[str, ...]:
    places = [place for place, line in enumerate(lines) if _OWN_FRAME.match(line)]
    if not places:
        return ()
    own = lines[places[-1] :]
    end = next((at for at, line in enumerate(own[1:], 1) if _FRAME.match(line)), len(own))
    return tuple(own[:end])
