"""Promises of the straggler watch: who is recorded, how often, and at what cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from hpckit.model import events
from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.messages import NodeSteps
from hpckit.model.run import RunRecord
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.planning.diagnosis.straggler_watch import StragglerWatch
from hpckit.planning.diagnosis.stragglers import StragglerDetector
from hpckit.planning.diagnosis.thresholds import DEFAULT

STEP_S = 0.1
AT = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class Cluster:
    """Nodes of two ranks each, whose reports a watch hears; `slow` maps ranks to factors."""

    nodes: int
    slow: dict[int, float] = field(default_factory=dict)
    recorded: list[events.Event] = field(default_factory=list)
    told: list[Mapping[str, str]] = field(default_factory=list)
    watch: StragglerWatch = field(default_factory=StragglerWatch)
    step: int = 0

    def take(self, message: NodeSteps, node: str, at: float) -> None:
        """Have the watch hear a report."""
        found, slow = self.watch.add_reports_and_get_news(message, node, None, at)
        for one in found:
            event = events.StragglerFound(at=AT, round=message.round, straggler=one)
            self.recorded.append(event)
        self.told += [slow] if slow else []

    def ranks(self) -> list[int]:
        """Return the ranks that were recorded, in order."""
        found = (one for one in self.recorded if isinstance(one, events.StragglerFound))
        return [one.straggler.rank for one in found]

    def run(self, windows: int, round_: int = 0) -> None:
        """Let all nodes report windows of 2 s, in turn."""
        steps = 20
        for _ in range(windows):
            for node in range(self.nodes):
                ranks = (2 * node, 2 * node + 1)
                message = NodeSteps(
                    round=round_,
                    rank=ranks,
                    first_step=(self.step,) * 2,
                    steps=(steps,) * 2,
                    seconds=(steps * STEP_S * max([1.0, *self.slow.values()]),) * 2,
                    own_s=tuple(steps * STEP_S * 0.8 * self.slow.get(rank, 1.0) for rank in ranks),
                    gpu=(None, "GPU-7"),
                )
                self.take(message, f"n{node}", self.step * STEP_S)
            self.step += steps


def test_straggler_is_told_once_with_rank_node_and_gpu() -> None:
    """A rank that stays slow is news once; the record has it again once all windows are known."""
    cluster = Cluster(nodes=4, slow={3: 1.5})
    cluster.run(80)
    first, found = cluster.recorded
    assert isinstance(first, events.StragglerFound)
    assert isinstance(found, events.StragglerFound)
    assert first.straggler.judged < found.straggler.judged == DEFAULT.windows
    assert found.straggler.windows == DEFAULT.windows
    assert (found.straggler.rank, found.straggler.node, found.straggler.gpu) == (3, "n1", "GPU-7")
    assert 0.4 < found.straggler.slower_by < 0.6
    assert cluster.told == [{"n1": "rank 3 on n1 takes 50 % longer than its peers"}]
    record = RunRecord(id="x.0", index=0, overrides=(), folder="").apply_events(cluster.recorded)
    assert [straggler.rank for straggler in record.stragglers] == [3]


def test_straggler_that_becomes_much_slower_is_news_again() -> None:
    """From 50 to 200 % is told again; the record keeps the latest."""
    cluster = Cluster(nodes=2, slow={0: 1.5})
    cluster.run(30)
    cluster.slow = {0: 3.0}
    cluster.run(30)
    assert len(cluster.recorded) >= 2
    record = RunRecord(id="x.0", index=0, overrides=(), folder="").apply_events(cluster.recorded)
    assert [round(straggler.slower_by) for straggler in record.stragglers] == [2]


def test_equal_ranks_are_no_stragglers() -> None:
    """Nobody is named where all are alike."""
    cluster = Cluster(nodes=8)
    cluster.run(60)
    assert (cluster.recorded, cluster.told) == ([], [])


def test_round_begins_anew() -> None:
    """Other ranks in a new round are not compared with those before."""
    cluster = Cluster(nodes=2, slow={0: 2.0})
    cluster.run(3)
    cluster.step = 0
    cluster.slow = {}
    cluster.run(40, round_=1)
    assert cluster.recorded == []


def test_thousand_nodes_are_compared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes that report in turn cost a comparison each 2 s, not a thousand."""
    calls: list[int] = []
    advance = StragglerDetector.add_reports

    def counted(self: StragglerDetector, reports: Iterable[RankSteps]) -> tuple[Straggler, ...]:
        some = list(reports)
        calls.append(len(some))
        return advance(self, some)

    monkeypatch.setattr(StragglerDetector, "add_reports", counted)
    cluster = Cluster(nodes=1000, slow={77: 1.5})
    cluster.run(10)
    assert cluster.ranks() == [77]
    assert len(calls) <= 10
    assert sum(calls) >= 2000 * 9


def test_damaged_reports_hold_nothing_up() -> None:
    """What does not fit together, or cannot be, is left out."""
    cluster = Cluster(nodes=2, slow={1: 1.5})
    broken = NodeSteps(
        round=0,
        rank=(9, 10),
        first_step=(0,),
        steps=(0, -5),
        seconds=(float("nan"), -1.0),
        own_s=(float("inf"),),
        gpu=(),
    )
    for _ in range(10):
        cluster.take(broken, "n9", 0.0)
        cluster.run(3)
    assert {one.straggler.rank for one in cluster.recorded if isinstance(one, events.StragglerFound)} == {1}
