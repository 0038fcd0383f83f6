"""Who starts a run again that was preempted: Slurm, its own attempt, or nobody."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest
from planning.recovery.test_decide import NOTHING, view

from hpckit.model.cluster.preemption import (
    Preemption,
    PreemptMode,
    resolve_job_preemption,
    slurm_restarts_preempted_job,
)
from hpckit.model.failure import Cause
from hpckit.model.launch import Recovery
from hpckit.planning.recovery.decide import decide_after_round, decide_end_after_notice
from hpckit.planning.recovery.round_view import EndAttempt, StopNotice

TEN = timedelta(seconds=10)
CANCELS = Preemption(mode=PreemptMode.cancel, grace=TEN)
LEAVES_IT = Preemption(mode=PreemptMode.unknown, grace=TEN)


@pytest.mark.parametrize(
    ("mode", "requeueable", "cancelled", "allowed", "budget", "saved"),
    list(product(PreemptMode, *([(False, True)] * 5))),
)
def test_preempted_run_has_at_most_one_starter(
    mode: PreemptMode,
    requeueable: bool,  # noqa: FBT001
    cancelled: bool,  # noqa: FBT001
    allowed: bool,  # noqa: FBT001
    budget: bool,  # noqa: FBT001
    saved: bool,  # noqa: FBT001
) -> None:
    """Never two, none after a cancel, and always one where the policy allows it."""
    slurm = slurm_restarts_preempted_job(mode, requeueable=requeueable)
    notice = StopNotice(signal="SIGTERM", cause=Cause.preempted, restarts=slurm)
    ended = view(notice=notice, cancelled=cancelled, requeues=allowed, saved=saved)
    policy = Recovery(requeue=allowed, restarts={"preempted": 3} if budget else {})
    action = decide_after_round(ended, policy, NOTHING)
    assert isinstance(action, EndAttempt)
    starters = int(slurm and not cancelled) + int(action.again)
    assert starters <= 1
    assert not (cancelled and action.again)
    if not cancelled and allowed and budget:
        assert starters == 1
    if not cancelled and not slurm and not allowed:
        assert action.failure is not None
        assert "recovery.requeue is off" in action.failure.message


def test_end_by_a_notice_is_the_same_before_the_round_has_ended() -> None:
    """What is asked for while a run saves is what is asked for when it has saved."""
    notice = StopNotice(signal="SIGTERM", cause=Cause.preempted, restarts=False)
    policy = Recovery(requeue=True, restarts={"preempted": 1})
    ended = view(notice=notice, requeues=True)
    assert decide_end_after_notice(ended, notice, policy, NOTHING) == decide_after_round(
        ended, policy, NOTHING
    )


@pytest.mark.parametrize(
    ("plugin", "partition", "qos", "expected"),
    [
        ("preempt/partition_prio", CANCELS, None, CANCELS),
        ("preempt/partition_prio", CANCELS, LEAVES_IT, CANCELS),
        ("preempt/partition_prio", None, CANCELS, Preemption(mode=PreemptMode.requeue)),
        ("preempt/qos", LEAVES_IT, CANCELS, CANCELS),
        ("preempt/qos", CANCELS, LEAVES_IT, Preemption(mode=PreemptMode.requeue, grace=TEN)),
        ("preempt/qos", CANCELS, None, Preemption()),
        ("preempt/none", CANCELS, CANCELS, Preemption(mode=PreemptMode.off)),
        ("", None, None, Preemption(mode=PreemptMode.requeue)),
    ],
)
def test_preemption_of_a_job_is_the_partitions_or_the_qoss(
    plugin: str, partition: Preemption | None, qos: Preemption | None, expected: Preemption
) -> None:
    """PreemptType says which of them counts; a QOS may leave the mode to the cluster."""
    assert resolve_job_preemption(plugin, PreemptMode.requeue, partition, qos) == expected
