"""How Slurm treats a job that is preempted: its mode and grace, by partition or by QOS."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from hpckit.values import dataclass

NO_PREEMPTION = "preempt/none"
BY_PARTITION = "preempt/partition_prio"
BY_QOS = "preempt/qos"


class PreemptMode(StrEnum):
    """What happens to a job that is preempted."""

    off = "OFF"
    cancel = "CANCEL"
    requeue = "REQUEUE"
    suspend = "SUSPEND"
    unknown = "UNKNOWN"

    @classmethod
    def parse(cls, text: str) -> PreemptMode:
        """Parse Slurm's mode; extra words are ignored, as in `GANG,SUSPEND` or with `WITHIN`."""
        words = text.upper().replace(",", " ").split()
        return next((mode for mode in cls if mode.value in words), cls.unknown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """What is set for a partition, a QOS or a job. `grace` is null if it is not known.

    A QOS with mode `unknown` leaves it to the cluster (`PreemptMode=cluster`).
    """

    mode: PreemptMode = PreemptMode.unknown
    grace: timedelta | None = None


def resolve_job_preemption(
    plugin: str, cluster: PreemptMode, partition: Preemption | None, qos: Preemption | None
) -> Preemption:
    """Return what holds for a job, from `PreemptType` and `PreemptMode` of the cluster.

    `partition` and `qos` are the job's; null if they are not known. Only one of them counts, as in
    Slurm's preempt/partition_prio and preempt/qos.
    """
    if plugin == NO_PREEMPTION:
        return Preemption(mode=PreemptMode.off)
    own = {BY_PARTITION: partition, BY_QOS: qos}.get(plugin)
    if own is None:
        # What a QOS sets takes precedence over the cluster: without it, nothing is known.
        return Preemption(mode=PreemptMode.unknown if plugin == BY_QOS else cluster)
    return Preemption(mode=cluster if own.mode is PreemptMode.unknown else own.mode, grace=own.grace)


def slurm_restarts_preempted_job(mode: PreemptMode, *, requeueable: bool) -> bool:
    """Whether Slurm itself starts a job again that it has preempted.

    Measured with 22.05: a job with Requeue=0 is killed in mode REQUEUE, too.
    """
    return mode is PreemptMode.requeue and requeueable
