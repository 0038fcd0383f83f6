"""Rows of metrics on their way to the disk: a full disk costs rows, never the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpckit.record.layout import AttemptPaths
from hpckit.record.metrics.log import MetricsLog


@dataclass(slots=True, kw_only=True)
class MetricRows:
    """Appends rows to the metrics of an attempt; `dropped` counts those that no disk could take.

    `warn` is called with the reason when the first one is dropped.
    """

    folder: Path
    warn: Callable[[str], None]
    dropped: int = field(default=0, init=False)
    _log: MetricsLog | None = field(default=None, init=False)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row, or drop and count it if that is not possible."""
        if self._log is None:
            self._log = MetricsLog(paths=AttemptPaths(self.folder))
        try:
            self._log.append(row)
        except OSError as error:
            self.dropped += 1
            if self.dropped == 1:
                self.warn(f"metrics are dropped for now: {error}")
