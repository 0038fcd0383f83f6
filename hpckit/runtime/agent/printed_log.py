"""Reads what rank 0 prints while it grows, and adds the metrics in it to those of the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hpckit.planning.printed_metrics import Patterns, printed_patterns, printed_row
from hpckit.record.metrics.log import MetricsLog
from hpckit.record.store import open_plain
from hpckit.runtime.agent.rank_outlook import RankOutlook
from hpckit.runtime.agent.rank_starter import RankChild
from hpckit.runtime.channel.messages import StartRound
from hpckit.runtime.clock import now
from hpckit.runtime.threads import aside
from hpckit.values import dataclass, field

_INTERVAL_S = 2.0
_MOST_BYTES = 1 << 20


async def follow_printed(
    outlook: RankOutlook, order: StartRound, processes: Mapping[int, RankChild]
) -> None:
    """Take metrics from what rank 0 prints in a round until it ends, if they are wanted."""
    wanted, paths = outlook.settings.observe.printed_metrics, outlook.attempt
    if not wanted or 0 not in processes:
        return
    printed = PrintedLog(
        log=paths.round(order.round).log(0),
        metrics=MetricsLog(paths=paths),
        round=order.round,
        patterns=printed_patterns(wanted),
    )
    ending = asyncio.ensure_future(processes[0].wait())
    while not (await asyncio.wait({ending}, timeout=_INTERVAL_S))[0]:
        await aside(printed.read)
    await aside(partial(printed.read, ended=True))


@dataclass(slots=True, kw_only=True)
class PrintedLog:
    """The log of rank 0 in one round; of a line that is drawn again and again the latest counts."""

    log: Path
    metrics: MetricsLog
    round: int
    patterns: Patterns
    _read: int = field(default=0, init=False)
    _last: dict[str, Any] = field(default_factory=dict, init=False)
    _steps: dict[str, int] = field(default_factory=dict, init=False)

    def read(self, *, ended: bool = False) -> None:
        """Add what was printed since; with `ended` also a last line that is cut off.

        What cannot be read or written is left out: metrics never end a run.
        """
        with suppress(OSError), open_plain(self.log) as file:
            more = True
            while more:
                file.seek(self._read)
                data = file.read(_MOST_BYTES)
                more = len(data) == _MOST_BYTES
                whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
                if (more and not whole) or (ended and not more):
                    whole = len(data)
                self._read += whole
                for line in data[:whole].decode(errors="replace").split("\n"):
                    self._take(next((part for part in line.split("\r")[::-1] if part.strip()), ""))
            if ended:
                self.metrics.flush()

    def _take(self, line: str) -> None:
        row = printed_row(line, self.patterns)
        if not row or row == self._last:
            return
        self._last = dict(row)
        step = row.pop("step")
        if step is not None and any(step <= self._steps.get(name, -1) for name in row):
            step = None  # an epoch of several lines: none of them replaces another
        elif step is not None:
            self._steps |= dict.fromkeys(row, step)
        at = now().isoformat(timespec="milliseconds")
        self.metrics.append({"step": step, "at": at, "round": self.round, **row})
