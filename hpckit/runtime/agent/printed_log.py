"""Takes metrics from what rank 0 prints, in a process that the agent of its node starts.

The regular expressions are the user's: one that never ends must not keep the agent from its work.
Run as `python -m hpckit.runtime.agent.printed_log ATTEMPT_FOLDER ROUND WANTED...`; it reads until
its standard input is closed, and then to the end.
"""

from __future__ import annotations

import asyncio
import math
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpckit.model.failure import signal_name
from hpckit.planning.printed_metrics import Patterns, compile_metric_patterns, parse_printed_metrics
from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics.log import MetricsLog
from hpckit.record.store import open_regular_file
from hpckit.runtime.clock import now
from hpckit.runtime.environ import copy_environment
from hpckit.runtime.signals import NOTICES
from hpckit.values import dataclass, field

_INTERVAL_S = 2.0
_MOST_BYTES = 1 << 18
_BLOCK_S = 20.0
"""CPU time that a block may take, a thousand times what is usual: then the kernel ends it."""
_END_S = 60.0
"""How long the end of a run waits for what is not read yet."""
_HURRY_S = 3.0
"""The same for a rank that failed or is stopped; less than the supervisor waits."""
_LOOK_S = 0.5
_SHOWN = 300


@dataclass(slots=True)
class PrintedReader:
    """The agent's side: the process that reads, and when it is ended; none if none is wanted."""

    process: asyncio.subprocess.Process | None = None
    problem: str = ""
    _until: float = field(default=math.inf, init=False)

    def limit_remaining_time(self, limit_s: float = _HURRY_S) -> None:
        """Give the reader no more than so many seconds from now."""
        self._until = min(self._until, time.monotonic() + limit_s)

    async def finish_reading(self, *, is_urgent: bool) -> str:
        """Let it read to the end; return in words what is lost, or wrong; empty if nothing is."""
        if self.process is not None:
            self.limit_remaining_time(_HURRY_S if is_urgent else _END_S)
            began = time.monotonic()
            ending = asyncio.ensure_future(self.process.communicate(b""))
            while not ending.done() and time.monotonic() < self._until:
                await asyncio.wait({ending}, timeout=_LOOK_S)
            if not ending.done():
                self.problem = f"its reader took more than {time.monotonic() - began:.0f} s"
                with suppress(ProcessLookupError):
                    self.process.kill()
                await asyncio.wait({ending}, timeout=_LOOK_S)  # a file system may hold it
                ending.cancel()
            elif self.process.returncode:
                self.problem = _explain_reader_exit(self.process.returncode, ending.result()[1])
            elif not self.problem:
                return ending.result()[1].decode(errors="replace").strip()
        return self.problem and (
            "what rank 0 printed was not read to its end, so metrics may be missing "
            f"(observe.printed_metrics): {self.problem}"
        )


def _explain_reader_exit(code: int, error: bytes) -> str:
    if code == -signal.SIGVTALRM:
        return "a regular expression takes too long for a line"
    if code < 0:
        return f"its reader was ended by {signal_name(-code)}"
    last = error.decode(errors="replace").strip().splitlines()[-1:]
    return "".join(last)[:_SHOWN] or f"its reader ended with exit code {code}"


async def start_printed_metrics_reader(paths: AttemptPaths, number: int, wanted: list[str]) -> PrintedReader:
    """Start to read what rank 0 prints in a round, if metrics are wanted."""
    if not wanted:
        return PrintedReader()
    words = (sys.executable, "-P", "-m", __name__, str(paths.folder), str(number), *wanted)
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=pipe,
            stdout=none,
            stderr=pipe,
            env=copy_environment(),
            process_group=0,  # but in the session of the agent: sessions of their own are ranks'
        )
    except OSError as error:
        return PrintedReader(problem=f"its reader could not be started: {error.strerror or error}")
    return PrintedReader(process=process)


@dataclass(slots=True, kw_only=True)
class PrintedLog:
    """The log of rank 0 in one round."""

    log: Path
    metrics: MetricsLog
    round: int
    patterns: Patterns
    lost: str = ""
    losses: dict[str, Any] = field(default_factory=dict, init=False)
    """The last value of each metric that is named like a loss."""
    _read: int = field(default=0, init=False)
    _last: dict[str, Any] = field(default_factory=dict, init=False)
    _steps: dict[str, int] = field(default_factory=dict, init=False)

    def record_metrics_of_new_lines(self, *, ended: bool = False) -> None:
        """Add what was printed since; with `ended` also a last line that is cut off.

        Rows that cannot be written are left out, and `lost` says why. Raises OSError if the log
        cannot be read.
        """
        with suppress(FileNotFoundError), open_regular_file(self.log) as file:
            more = True
            while more:
                signal.setitimer(signal.ITIMER_VIRTUAL, _BLOCK_S)
                file.seek(self._read)
                data = file.read(_MOST_BYTES)
                more = len(data) == _MOST_BYTES
                whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
                if (more and not whole) or (ended and not more):
                    whole = len(data)
                self._read += whole
                self._record_metrics(data[:whole].decode(errors="replace"))
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if ended:
                self.metrics.write_last_values()

    def _record_metrics(self, text: str) -> None:
        rows, at = [], now().isoformat(timespec="milliseconds")
        for line in text.split("\n"):
            row = parse_printed_metrics(line, self.patterns)
            if not row or row == self._last:
                continue
            self._last = dict(row)
            self.losses |= {name: row[name] for name in row if name.lower().endswith("loss")}
            step = row.pop("step")
            if step is not None and any(step <= self._steps.get(name, -1) for name in row):
                step = None  # an epoch of several lines: none of them replaces another
            elif step is not None:
                self._steps |= dict.fromkeys(row, step)
            rows.append({"step": step, "at": at, "round": self.round, **row})
        try:
            if rows:
                self.metrics.append_rows(*rows)
        except OSError as error:
            self.lost = str(error)


def main(folder: str, number: str, *wanted: str) -> str | int:
    """Read until standard input is closed, then to the end; return what went wrong, or 0."""
    for notice in NOTICES:  # they are for the agent
        signal.signal(notice, signal.SIG_IGN)
    paths = AttemptPaths(Path(folder))
    printed = PrintedLog(
        log=paths.round(int(number)).rank_log(0),
        metrics=MetricsLog(paths=paths),
        round=int(number),
        patterns=compile_metric_patterns(wanted),
    )
    while not select.select([sys.stdin], [], [], _INTERVAL_S)[0]:
        with suppress(OSError):
            printed.record_metrics_of_new_lines()
    printed.record_metrics_of_new_lines(ended=True)
    # Not finite values are texts. Exit code 0: nothing is lost.
    bad = [f"{name} {value}" for name, value in printed.losses.items() if isinstance(value, str)]
    if bad and not printed.lost:
        sys.stderr.write(f"the last value that rank 0 printed is not finite: {', '.join(bad)}\n")
    return printed.lost or 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
