"""How long steps wait for their data. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.diagnosis.verdict import Verdict, VerdictKind
from hpckit.planning.diagnosis.evidence import RunEvidence
from hpckit.planning.diagnosis.summary import busy, judged_gpus, judged_hosts, mean, step_summary
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.planning.diagnosis.words import duration, lossy, share

_HALF_BUSY = 0.5
_WAITING_FOR_DISKS = 0.2
"""Share of time in which some task waited for input or output: the storage is slow."""


def input_bound(evidence: RunEvidence, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if ranks wait for data."""
    steps = step_summary(evidence, limits)
    if steps is None or steps.data_share is None or steps.data_loss < limits.data_share:
        return
    gpus = mean(map(busy, judged_gpus(evidence, limits)))
    data_s = steps.data_share * steps.step_s
    message = (
        f"Ranks waited {share(steps.data_share)} of each step for data "
        f"({duration(data_s)} of {duration(steps.step_s)})"
    )
    message += "." if gpus is None else f"; the GPUs were busy {share(gpus)}."
    yield lossy(
        VerdictKind.input_bound,
        steps.data_loss,
        (message, _faster_input(evidence, limits)),
        limits,
        data_share=steps.data_share,
        data_s=data_s,
        step_s=steps.step_s,
        gpu_busy_share=gpus,
        **_input_side(evidence, limits),
    )


def _input_side(evidence: RunEvidence, limits: Thresholds) -> dict[str, float | None]:
    hosts = judged_hosts(evidence, limits)
    return {
        "cores": mean(one.cores for one in hosts),
        "cores_busy": mean(one.cores_busy for one in hosts),
        "io_pressure_share": mean(one.io_pressure for one in hosts),
    }


def _faster_input(evidence: RunEvidence, limits: Thresholds) -> str:
    side = _input_side(evidence, limits)
    cores, used, pressure = side["cores"], side["cores_busy"], side["io_pressure_share"]
    if pressure is not None and pressure >= _WAITING_FOR_DISKS:
        return (
            f"Stage the data on the node's disk, or in fewer and larger files: tasks waited "
            f"{share(pressure)} of the time for storage."
        )
    if cores is None or used is None:
        return (
            "Raise num_workers or prefetch_factor of the DataLoader, or stage the data on the "
            "node's disk."
        )
    counts = f"{used:.0f} of {cores:.0f} CPUs of a node were busy"
    if used > _HALF_BUSY * cores:
        return (
            "Ask for more CPUs (resources.cpus_per_task) and as many workers, or do less work "
            f"for each sample, such as decoding beforehand ({counts})."
        )
    return (
        f"Raise num_workers or prefetch_factor of the DataLoader ({counts}), or stage the data on "
        "the node's disk."
    )
