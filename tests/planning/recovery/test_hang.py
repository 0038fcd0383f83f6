"""Promises of `blame`: whom a hang is put down to."""

from __future__ import annotations

from typing import Any

from hpckit.model.diagnosis.collectives import CollectiveWait
from hpckit.model.failure import Cause, RankStack, StalledRank
from hpckit.planning.recovery.hang import build_hang_failure

STALL = StalledRank(rank=0, step=7, silent_s=12.5, limit_s=5.0)
WAITING = """Current thread 0x1 (most recent call first):
  File "/v/torch/distributed/distributed_c10d.py", line 3 in all_reduce
  File "train.py", line 9 in main
"""
STUCK = """Thread 0x2 (most recent call first):
  File "/v/torch/distributed/other.py", line 3 in background

Current thread 0x1 (most recent call first):
  File "train.py", line 8 in read_forever
  File "train.py", line 9 in main
"""
IN_BACKWARD = """Current thread 0x1 (most recent call first):
  File "/v/torch/autograd/graph.py", line 979 in _engine_run_backward
  File "/v/torch/_tensor.py", line 623 in backward
  File "train.py", line 9 in main
"""
STUCK_IN_FORWARD = """Current thread 0x1 (most recent call first):
  File "model.py", line 8 in forward
  File "/v/torch/nn/modules/module.py", line 5 in _call_impl
  File "/v/torch/nn/parallel/distributed.py", line 3 in forward
  File "train.py", line 9 in main
"""


LEFT = """Current thread 0x1 (most recent call first):
  File "/v/torch/distributed/distributed_c10d.py", line 3 in all_reduce
  File "/v/hpckit/runtime/rank/step_boundary.py", line 4 in end
  File "/v/hpckit/runtime/rank/steps.py", line 150 in end_within_last_step
  File "/v/hpckit/runtime/rank/run.py", line 318 in finish
"""


def stack(rank: int, **about: Any) -> RankStack:
    """Return what a rank that waits in a collective was doing."""
    given = {"node": f"n{rank}", "state": "S (sleeping)", "step": 7, "text": WAITING, **about}
    return RankStack(rank=rank, **given)


def test_blame_names_a_stopped_rank() -> None:
    """What the kernel stopped is guilty, and cannot tell its stacks."""
    failure = build_hang_failure(STALL, [stack(0), stack(1, state="T (stopped)", text="")])
    assert (failure.cause, failure.rank, failure.node, failure.step) == (Cause.hang, 1, "n1", 7)
    assert failure.message.endswith("rank 1 on n1 is T (stopped)")
    assert "12.5 s after step 7 (limit 5.0 s)" in failure.message


def test_blame_names_the_rank_that_waits_for_nobody() -> None:
    """The one outside a collective is what the others wait for."""
    failure = build_hang_failure(STALL, [stack(0), stack(1, text=STUCK), stack(2)])
    assert failure.rank == 1
    assert "is in read_forever (train.py:8)" in failure.message
    assert failure.traceback == STUCK


def test_blame_names_the_rank_that_has_left_its_loop() -> None:
    """It waits at the end of its code, and the others in a collective of their next step."""
    wait = CollectiveWait(
        operation="all_reduce", sequence=6, group="1", backend="gloo", tensor="", waiting=(1,)
    )
    failure = build_hang_failure(STALL, [stack(0), stack(1, text=LEFT, step=5)], wait)
    assert (failure.rank, failure.node) == (1, "n1")
    assert failure.message.startswith("rank 1 left the loop over steps in step 5, and others did not")
    assert build_hang_failure(STALL, [stack(0, text=LEFT), stack(1, text=LEFT)]).rank is None


def test_blame_names_the_rank_that_does_not_come_to_the_end() -> None:
    """All have left their loops: who is stuck after it, or was stopped, is what others wait for."""
    for stuck in ({"text": STUCK}, {"text": "", "state": "T (stopped)"}):
        failure = build_hang_failure(STALL, [stack(0, **stuck), stack(1, text=LEFT)])
        assert failure.rank == 0
        assert "left the loop" not in failure.message


def test_blame_knows_where_distributed_data_parallel_waits() -> None:
    """In backward(); a model of the user's that is stuck below it waits for nobody."""
    failure = build_hang_failure(STALL, [stack(0, text=IN_BACKWARD), stack(1, text=STUCK_IN_FORWARD)])
    assert failure.rank == 1
    assert build_hang_failure(STALL, [stack(0, text=IN_BACKWARD), stack(1, text=IN_BACKWARD)]).rank is None


def test_blame_names_the_rank_that_is_a_step_behind() -> None:
    """The others have begun a step that it has not."""
    assert build_hang_failure(STALL, [stack(0), stack(1, step=6)]).rank == 1


def test_blame_names_nobody_where_all_wait_alike() -> None:
    """A lost message hangs all ranks in the same collective: then the network may be guilty."""
    failure = build_hang_failure(STALL, [stack(0), stack(1)])
    assert (failure.rank, failure.node) == (None, None)


def test_blame_gives_hangs_at_one_place_the_same_signature() -> None:
    """Whichever rank hangs at whichever step; hangs elsewhere have another."""
    first = build_hang_failure(STALL, [stack(0), stack(1, text=STUCK)])
    second = build_hang_failure(STALL, [stack(0, text=STUCK, step=9), stack(1, step=9)])
    other = build_hang_failure(STALL, [stack(0), stack(1, text=STUCK.replace("read_forever", "elsewhere"))])
    assert first.signature == second.signature
    assert first.signature != other.signature


def test_blame_begins_with_the_collective_and_where_ranks_wait_in_it() -> None:
    """Tables cut messages; the place comes from the stack of a rank that waits."""
    wait = CollectiveWait(
        operation="all_reduce",
        sequence=4,
        group="default_pg",
        backend="nccl",
        tensor="float32[2]",
        waiting=(0, 2),
        missing=(1,),
        culprit=1,
        words="rank 1 (n1) never entered all_reduce #4",
    )
    failure = build_hang_failure(STALL, [stack(0), stack(1, text=STUCK), stack(2)], wait)
    assert failure.message.startswith(
        "rank 1 (n1) never entered all_reduce #4, at train.py:9 in main; no step began on rank 0"
    )
    assert failure.message.endswith("rank 1 on n1 is in read_forever (train.py:8)")
    assert failure.collective is not None
    assert failure.collective.place == "train.py:9 in main"
    named = build_hang_failure(STALL, [stack(0), stack(1), stack(2)], wait)
    assert (named.rank, named.node) == (1, "n1"), "although its stack looks like the others'"
