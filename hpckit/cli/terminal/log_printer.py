"""Prints new lines of logs repeatedly; names each log once on standard error."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from hpckit.context import Context
from hpckit.record.logs import LogFile, LogTail
from hpckit.report.escape import escape_controls
from hpckit.values import dataclass, field


@dataclass(slots=True, kw_only=True)
class LogPrinter:
    """Prints the lines added to logs since the last call.

    `own` is whether the launch is the caller's; `run` is put before each line if several runs are
    shown at a time. `most` is how many lines of a log are printed when it is read first.
    """

    context: Context
    as_json: bool
    own: bool
    run: str = ""
    most: int | None = None
    tails: dict[Path, LogTail] = field(default_factory=dict)

    def print_new_lines(self, logs: Sequence[LogFile], *, last: bool = False) -> None:
        """Print the new lines; `last`: no more lines are expected after these."""
        for log in logs:
            most = None if log.path in self.tails else self.most
            if log.path not in self.tails:
                self.tails[log.path] = LogTail(log.path)
                self.context.note(self.run + _format_log_title(log))
            tail = self.tails[log.path]
            new = chain(tail.read_new_lines(), tail.read_unfinished_line() if last else ())
            for line in new if most is None else deque(new, most):
                self._print_line(log, line, prefixed=len(logs) > 1)
        self.context.stdout.flush()

    def _print_line(self, log: LogFile, line: str, *, prefixed: bool) -> None:
        who = str(log.kind) if log.rank is None else str(log.rank)
        if self.as_json:
            record = {"kind": log.kind, "rank": log.rank, "attempt": log.attempt}
            line = self.context.json_line({**record, "round": log.round, "line": line})
        elif prefixed:
            line = f"{who}| {line}"
        # Output of the user's own program is passed on unchanged: progress bars and colours work.
        own = self.own or self.as_json
        self.context.stdout.write(self.run + (line if own else escape_controls(line)) + "\n")


def _format_log_title(log: LogFile) -> str:
    who = f"rank {log.rank}" if log.rank is not None else str(log.kind)
    place = [
        "" if log.attempt is None else f"attempt {log.attempt}",
        "" if log.round is None else f"round {log.round}",
    ]
    return ", ".join([who, *filter(None, place)]) + f": {log.path}"
