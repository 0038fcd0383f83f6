"""Finds a run's logs and reads their lines as they grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from hpckit.patterns import lazy_pattern
from hpckit.record.attempts import latest_attempt_number, list_numeric_entry_names
from hpckit.record.launches import Launch
from hpckit.record.store import open_regular_file, read_regular_file
from hpckit.values import dataclass, field

_RANK_LOG = lazy_pattern(r"rank-([0-9]+)\.log\Z")
_CHUNK = 1 << 20


class LogKind(StrEnum):
    """What kind of process wrote a log."""

    rank = "rank"
    agents = "agents"
    batch = "batch"
    executor = "executor"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One log file. `rank` is set only for logs of ranks.

    `attempt` and `round` are None for logs that belong to none.
    """

    kind: LogKind
    path: Path
    rank: int | None = None
    attempt: int | None = None
    round: int | None = None


def list_run_attempts(launch: Launch, index: int) -> tuple[int, ...]:
    """Return the numbers of a run's attempts, in order."""
    return _list_numbers_or_empty(launch.paths.run(index).attempts)


def list_attempt_rounds(launch: Launch, index: int, attempt: int | None = None) -> tuple[int, ...]:
    """Return the numbers of the rounds of an attempt (default: the latest), in order."""
    number = attempt or latest_attempt_number(launch.paths.run(index).attempts)
    return _list_numbers_or_empty(launch.paths.run(index).attempt(number).rounds)


def _list_numbers_or_empty(folder: Path) -> tuple[int, ...]:
    try:
        return tuple(sorted(list_numeric_entry_names(folder)))
    except OSError:
        return ()


def find_rank_logs(
    launch: Launch, index: int, attempt: int | None = None, round_number: int | None = None
) -> Mapping[int, LogFile]:
    """Return the logs of all ranks in a round (default: the latest round of the latest attempt)."""
    number = attempt or latest_attempt_number(launch.paths.run(index).attempts)
    paths = launch.paths.run(index).attempt(number)
    if round_number is None:
        round_number = max(list_attempt_rounds(launch, index, number), default=None)
    if round_number is None:
        return {}
    found: dict[int, LogFile] = {}
    folder = paths.round(round_number).folder
    for path in sorted((*folder.glob("rank-*.log"), *folder.glob("from-*/rank-*.log"))):
        match = _RANK_LOG.match(path.name)
        if match is not None:
            rank = int(match[1])
            found[rank] = LogFile(kind=LogKind.rank, path=path, rank=rank, attempt=number, round=round_number)
    return found


def find_logs_without_rank_logs(
    launch: Launch, index: int, *, job: str | None, attempt: int | None = None
) -> tuple[LogFile, ...]:
    """Return the non-empty logs that may say why a run has no rank logs."""
    number = attempt or latest_attempt_number(launch.paths.run(index).attempts)
    agents = launch.paths.run(index).attempt(number).agents_log
    logs = [LogFile(kind=LogKind.agents, path=agents, attempt=number)]
    specs = [spec.index for spec in launch.jobs if index in spec.runs and job is not None]
    logs += [LogFile(kind=LogKind.batch, path=launch.paths.job_log(spec, job or "")) for spec in specs]
    logs.append(LogFile(kind=LogKind.executor, path=launch.paths.local_log))
    found = []
    for log in logs:
        with suppress(OSError):
            found += [log] if log.path.stat().st_size else []
    return tuple(found)


def read_whole_log(path: Path) -> str:
    """Return a whole log, empty if there is none; bytes that are not UTF-8 are replaced."""
    try:
        return read_regular_file(path).decode(errors="replace")
    except OSError:
        return ""


@dataclass(slots=True)
class LogTail:
    """Reads a log from where it last stopped. An unfinished last line is held back."""

    path: Path
    _offset: int = field(default=0, init=False)
    _held: bytes = field(default=b"", init=False)

    def read_new_lines(self) -> Iterator[str]:
        """Yield the lines that were completed since the last call."""
        try:
            file = open_regular_file(self.path)
        except OSError:
            return
        with file:
            file.seek(self._offset)
            while chunk := file.read(_CHUNK):
                self._offset += len(chunk)
                *whole, self._held = (self._held + chunk).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)

    def read_unfinished_line(self) -> Iterator[str]:
        """Yield the held-back line, if any, when the log is complete."""
        if self._held:
            yield self._held.decode(errors="replace")
            self._held = b""


def read_log_of_all_attempts(launch: Launch, index: int, rank: int) -> str | None:
    """Return what one rank printed, from the first attempt on; None if nothing yet."""
    found = [
        find_rank_logs(launch, index, attempt, number).get(rank)
        for attempt in list_run_attempts(launch, index)
        for number in list_attempt_rounds(launch, index, attempt)
    ]
    texts = [read_whole_log(log.path) for log in found if log is not None]
    return "".join(texts) if texts else None
