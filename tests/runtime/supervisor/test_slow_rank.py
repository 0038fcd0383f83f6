"""A rank that is slow in a real run: recorded, and warned of, while nothing is lost."""

from __future__ import annotations

from typing import Any

from tiers import thorough

from hpckit.model.launch import Recovery, StragglerPolicy
from hpckit.model.settings import Observe

SLOW = """
import os, pathlib, time, torch, torch.distributed as dist

def busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))

def main(config, run):
    run.state(counter=Counter())
    told = pathlib.Path(os.environ["HPCKIT_ATTEMPT_DIR"], "events.jsonl")
    slow = run.rank == 1
    for step in run.steps(config.params.steps):
        with run.timed("data"):
            time.sleep(0.002)
        busy(0.005)
        if slow:
            busy(0.04)
            slow = "the run continues there" not in told.read_text()
        dist.all_reduce(torch.ones(1))
    run.log(step=step, loss=0.5)

class Counter:
    def state_dict(self):
        return {}
    def load_state_dict(self, state):
        pass
"""


@thorough
def test_attempt_names_a_slow_rank_and_stays_without_a_spare(workshop: Any, ranks: Any) -> None:
    """A real run: the slow rank is recorded with its node, the run warned, and nothing is lost."""
    ended = workshop.attempt(
        SLOW,
        **ranks(
            2,
            params={"steps": 500},
            recovery=Recovery(on_straggler=StragglerPolicy.move, restarts={"straggler": 3}),
            observe=Observe(interval_s=1, row_s=2),
        ),
    )
    assert ended.code == 0, ended.output
    (found,) = ended.record.stragglers
    assert found.rank == 1
    assert found.slower_by > 0.5
    assert any("the run continues there" in words for words in ended.record.warnings)
