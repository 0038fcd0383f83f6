"""What runs do at present: the newest telemetry of their nodes, and how fast their steps pass.

Only a few files are read at each look, the longest unread first: rows come every half a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

from hpckit.model.run import RunRecord
from hpckit.model.telemetry.json_form import decode_telemetry
from hpckit.model.telemetry.vocabulary import GpuDevice, TelemetryRow
from hpckit.record.launches import Launch
from hpckit.record.telemetry import telemetry_devices
from hpckit.report.live_view.top import GpuNow, RunActivity, gpu_now, mean_step_s
from hpckit.values import dataclass, field, replace
from hpckit.views.growing_file import GrowingFile

_FILES = 64
"""The most files that are read at one look."""

_AGAIN = timedelta(seconds=8)
_OLD = timedelta(minutes=5)
_END_BYTES = 100_000
_STEPS_KEPT = 20


@dataclass(slots=True, kw_only=True)
class _Node:
    """The telemetry of one node in one attempt."""

    name: str
    file: GrowingFile
    devices: dict[str, GpuDevice] | None = None
    row: TelemetryRow | None = None
    read_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class RunActivities:
    """The activities of some runs of a launch."""

    launch: Launch
    _nodes: dict[tuple[int, int, str], _Node] = field(default_factory=dict, init=False)
    _steps: dict[int, deque[tuple[datetime, int]]] = field(default_factory=dict, init=False)

    def note_steps(self, records: Iterable[RunRecord], now: datetime) -> None:
        """Remember at which step runs are, for runs without telemetry."""
        for record in records:
            if record.step is None:
                continue
            seen = self._steps.setdefault(record.index, deque(maxlen=_STEPS_KEPT))
            if seen and record.step < seen[-1][1]:  # a restart
                seen.clear()
            if not seen or record.step > seen[-1][1]:
                seen.append((now, record.step))

    def read(self, records: Iterable[RunRecord], now: datetime) -> Mapping[int, RunActivity]:
        """Return the activity of each of these runs, by index."""
        nodes = {record.index: self._nodes_of(record) for record in records}
        due = [
            one
            for some in nodes.values()
            for one in some
            if one.read_at is None or now - one.read_at >= _AGAIN
        ]
        due.sort(key=lambda one: one.read_at or datetime.min.replace(tzinfo=now.tzinfo))
        for one in due[:_FILES]:
            _read(one, now)
        return {index: self._activity(index, some, now) for index, some in nodes.items()}

    def _nodes_of(self, record: RunRecord) -> list[_Node]:
        if record.round is None:
            return []
        attempt = self.launch.paths.run(record.index).attempt(record.attempt)
        found = []
        for name in record.nodes:
            key = (record.index, record.attempt, name)
            if key not in self._nodes:
                file = GrowingFile(path=attempt.telemetry(name), most=_END_BYTES)
                self._nodes[key] = _Node(name=name, file=file)
            if self._nodes[key].devices is None and self._nodes[key].row is not None:
                with suppress(OSError):
                    devices = telemetry_devices(attempt, name)
                    self._nodes[key].devices = {one.uuid: one for one in devices}
            found.append(self._nodes[key])
        return found

    def _activity(self, index: int, nodes: Iterable[_Node], now: datetime) -> RunActivity:
        young = [one for one in nodes if one.row is not None and now - one.row.end < _OLD]
        ranks = tuple(
            replace(rank, node=one.name) for one in young if one.row for rank in one.row.ranks
        )
        step_s = mean_step_s(ranks)
        return RunActivity(
            step_s=self._seen_step_s(index) if step_s is None else step_s,
            gpus=tuple(gpu for one in young for gpu in _gpus(one)),
            ranks=tuple({rank.rank: rank for rank in ranks}.values()),
        )

    def _seen_step_s(self, index: int) -> float | None:
        seen = self._steps.get(index)
        if seen is None or len(seen) < 2:  # noqa: PLR2004  # two points make a difference
            return None
        (first_at, first), (last_at, last) = seen[0], seen[-1]
        return (last_at - first_at).total_seconds() / (last - first)


def _read(one: _Node, now: datetime) -> None:
    one.read_at = now
    for record in map(decode_telemetry, one.file.new_rows()):
        if isinstance(record, TelemetryRow) and record.end > record.start:
            one.row = record


def _gpus(one: _Node) -> list[GpuNow]:
    known = one.devices or {}
    parents = {device.parent for device in known.values()}
    rows = () if one.row is None else one.row.gpus
    return [gpu_now(one.name, row, known.get(row.uuid)) for row in rows if row.uuid not in parents]
