"""Real local attempts whose ranks fall silent or diverge: what is taken for a hang."""

from __future__ import annotations

from typing import Any

import pytest
from tiers import thorough

from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Checkpoint, Recovery, Runtime
from hpckit.model.states import RunState
from hpckit.record.store import read_events

pytestmark = pytest.mark.training

TRAIN = """
import time, torch, torch.distributed as dist


def look_at_everything():
    time.sleep(9)


def main(config, run):
    model = torch.nn.Linear(2, 2)
    run.state(model=model)
    for step in run.steps(30):
        time.sleep(0.1)
        dist.all_reduce(torch.ones(1))
        if config.params.get("evaluate") == step:
            with run.unwatched():
                look_at_everything()
        run.log(loss=float("nan") if step >= config.params.get("diverge", 99) else 1.0)
"""


LEAVES = """
import time, torch, torch.distributed as dist, hpckit

run = hpckit.attach()
run.state(model=torch.nn.Linear(2, 2))
for step in run.steps(30):
    if step == 25 and run.rank == 1:
        break
    time.sleep(0.05)
    dist.all_reduce(torch.ones(1))
"""


def watched(ranks: Any, **more: Any) -> dict[str, Any]:
    """Return settings for two ranks that may be silent for some seconds."""
    runtime = Runtime(stop_grace_s=2, rendezvous_timeout_s=20, hang_min_s=4, hang_first_s=60, hang_factor=3)
    settings: dict[str, Any] = ranks(
        2,
        runtime=runtime,
        recovery=Recovery(restarts={"hang": 1}, nan_patience=3),
        checkpoint=Checkpoint(interval_steps=4),
        **more,
    )
    return settings


def failures(ended: Any) -> list[Failure]:
    """Return what the rounds of an attempt failed of."""
    told = read_events(ended.paths.events)
    rounds = [event for event in told if isinstance(event, events.RoundEnded)]
    return [event.failure for event in rounds if event.failure is not None]


def test_hung_rank_is_named_with_its_stack_and_costs_a_round(workshop: Any, ranks: Any) -> None:
    """Holding the GIL in C for ever: noticed from outside, stacks saved, gone on in a new round."""
    ended = workshop.attempt(TRAIN, **watched(ranks, chaos=["hang_gil rank=1 step=26"]))
    assert ended.code == 0, ended.output
    (failure,) = failures(ended)
    assert (failure.cause, failure.rank) == (Cause.hang, 1), failure
    assert failure.step == 26, "known exactly, though ranks tell of a step ten times a second"
    assert ended.record.round == 1
    stacks = ended.paths.round(0).rank_stacks_file(0).read_text()
    assert "all_reduce" in stacks, "rank 0 waits for rank 1"
    assert "fault_injector.py" in ended.paths.round(0).rank_stacks_file(1).read_text()


def test_rank_that_leaves_its_loop_alone_is_named(workshop: Any, ranks: Any) -> None:
    """Not its peer, which never comes to the end where it waits; by the stacks of a script."""
    once = watched(ranks, entry_point=None, command="python task.py")
    once["recovery"] = Recovery(restarts={})
    ended = workshop.attempt(LEAVES, **once)
    (failure,) = failures(ended)
    assert (failure.cause, failure.rank) == (Cause.hang, 1), failure
    assert failure.message.startswith("rank 1 left the loop over steps in step 25, and others did")
    assert "in <module>" in ended.paths.round(0).rank_stacks_file(0).read_text(), "that of the script itself"


def test_unwatched_silence_is_no_hang(workshop: Any, ranks: Any) -> None:
    """An evaluation far longer than the limit passes, when it is announced."""
    ended = workshop.attempt(TRAIN, **watched(ranks, params={"evaluate": 26}))
    assert (ended.code, failures(ended)) == (0, []), ended.output


def test_diverged_run_fails_with_its_reason_and_saves_nothing_bad(workshop: Any, ranks: Any) -> None:
    """A loss that stays NaN ends the run; no checkpoint holds what came of it."""
    ended = workshop.attempt(TRAIN, **watched(ranks, params={"diverge": 10}))
    assert ended.record.state is RunState.failed
    (failure,) = failures(ended)
    assert (failure.cause, failure.rank) == (Cause.nan, 0)
    assert "the loss was nan 3 times in a row, last at step 12" in failure.message
    assert saved(ended) == [4, 8]


def saved(ended: Any) -> list[int]:
    """Return the steps that an attempt saved."""
    told = read_events(ended.paths.events)
    return [event.step for event in told if isinstance(event, events.CheckpointSaved)]


DIVERGE_LAST = """
import torch

def main(config, run):
    run.state(model=torch.nn.Linear(2, 2))
    for step in run.steps(6):
        run.log(loss=float("nan") if step >= 4 else 1.0)
        if step == 4 and config.params["how"] == "break":
            break
"""


@pytest.mark.parametrize("how", ["end", "break"])
def test_run_whose_last_loss_is_not_finite_has_not_completed(workshop: Any, ranks: Any, how: str) -> None:
    """A state that is good for nothing is never the newest checkpoint of a completed run."""
    settings = ranks(2, params={"how": how}, checkpoint=Checkpoint(interval_steps=2))
    ended = workshop.attempt(DIVERGE_LAST, **settings)
    assert ended.record.state is RunState.failed, ended.output
    assert failures(ended)[0].cause is Cause.nan
    assert "was not finite: the state is not saved" in failures(ended)[0].message
    assert max(saved(ended)) <= 4


def test_last_state_is_saved_with_a_warning_where_losses_may_be_anything(workshop: Any, ranks: Any) -> None:
    """Whoever allows any loss (`nan_patience=0`) keeps the last state, and is told of it."""
    settings = ranks(
        2, params={"how": "end"}, checkpoint=Checkpoint(interval_steps=2), recovery=Recovery(nan_patience=0)
    )
    ended = workshop.attempt(DIVERGE_LAST, **settings)
    assert ended.record.state is RunState.completed, ended.output
    assert max(saved(ended)) == 6
    assert "saved although its last loss was not finite" in " ".join(ended.record.warnings)


STUCK = """
import time
def main(config, run):
    where = config["params"]["where"]
    if where == "before":
        time.sleep(3600)
    for step in run.steps(30):
        time.sleep(0.02)
    if where == "after":
        time.sleep(3600)
"""

NO_STEPS = """
import time
def main(config, run):
    time.sleep(14)
    run.log(done=1)
"""


@pytest.mark.parametrize("where", [pytest.param("before", marks=thorough), "after"])
def test_hang_beside_the_steps_is_noticed(workshop: Any, ranks: Any, where: str) -> None:
    """Code that loops over steps is judged before the first and after the last one, too."""
    runtime = Runtime(stop_grace_s=2, rendezvous_timeout_s=20, hang_min_s=2, hang_first_s=10)
    ended = workshop.attempt(STUCK, **ranks(1, runtime=runtime, params={"where": where}))
    (failure,) = failures(ended)
    assert (failure.cause, failure.rank) == (Cause.hang, 0), failure
    words = "no first step began" if where == "before" else "did not come to its end"
    assert words in failure.message
    assert "is in main" in failure.message


def test_code_without_steps_is_not_taken_for_a_hang(workshop: Any, ranks: Any) -> None:
    """A function that never loops over steps may be silent for as long as it likes."""
    runtime = Runtime(stop_grace_s=2, rendezvous_timeout_s=20, hang_min_s=2, hang_first_s=10)
    ended = workshop.attempt(NO_STEPS, **ranks(1, runtime=runtime))
    assert (ended.code, failures(ended)) == (0, []), ended.output
