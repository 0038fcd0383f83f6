"""What was measured of a run on GPUs, as far as a plan can follow it."""

from __future__ import annotations

from hpckit.errors import UsageError
from hpckit.features.capacity.model_plan import MeasuredRun
from hpckit.features.capacity.model_setup import NumberType, Recomputation
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel, Precision, Recompute
from hpckit.planning.diagnosis.evidence import RunEvidence, judged_ranks
from hpckit.planning.diagnosis.thresholds import DEFAULT
from hpckit.planning.diagnosis.usage import gpu_uses, rank_steps, samples_per_step
from hpckit.record.launches import Launch, load_settings, read_runs
from hpckit.views.telemetry import run_usage

_RECOMPUTED = {
    Recompute.none: Recomputation.none,
    Recompute.blocks: Recomputation.full,
    Recompute.selective: Recomputation.selective,
}


def measured_run(launch: Launch, index: int) -> MeasuredRun:
    """Return what a run did on its GPUs; raises UsageError if too little was measured."""
    name, usages = f"{launch.id}.{index}", run_usage(launch, index).nodes
    every = rank_steps(usages)
    ranks = [one for one in judged_ranks(RunEvidence(ranks=every), DEFAULT) if one.gpu is not None]
    if not ranks:
        raise UsageError(
            f"{name} cannot calibrate a plan: of {_why(len(every))}",
            hint=f"it takes a run on GPUs with {DEFAULT.steps} steps or more in "
            f"{DEFAULT.steps_s:g} s, and the config group observe not off",
        )
    gpus, devices = gpu_uses(usages), {one.uuid: one for use in usages for one in use.devices}
    used = {one.gpu for one in ranks}
    peaks = [one.memory_peak_bytes for one in gpus if one.uuid in used]
    known = [one for one in peaks if one is not None]
    names = sorted({devices[one].name for one in used if one in devices})
    samples = samples_per_step(ranks)
    parallel = load_settings(launch, index)[0].parallel
    reported = read_runs(launch, (index,))[0].layout
    spent = sum(one.seconds - (one.checkpoint_s or 0.0) for one in ranks)
    return MeasuredRun(
        name=name,
        step_s=spent / sum(one.steps for one in ranks),
        layout=Layout(replicate=len(every)) if reported is None else reported.layout,
        gpu=names[0] if len(names) == 1 else "",
        batch=None if samples is None else round(samples),
        microbatches=parallel.microbatches or 1,
        memory_bytes=max(known, default=None),
        parameters=None if reported is None else reported.model_parameters,
        precision=_precision(parallel),
        recompute=_RECOMPUTED[parallel.recompute],
    )


def _why(ranks: int) -> str:
    return "its ranks no steps on GPUs were measured" if ranks else "it no steps were measured"


def _precision(parallel: Parallel) -> NumberType:
    return NumberType.bf16 if parallel.params is Precision.bf16 else NumberType.fp32
