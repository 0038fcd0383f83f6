"""What was measured of a run on GPUs, compared with what is predicted for it."""

from __future__ import annotations

from hpckit.errors import ConfigError, UsageError
from hpckit.features.capacity.gpus import find_gpu_by_driver_name
from hpckit.features.capacity.memory import estimate_peak_memory
from hpckit.features.capacity.model_plan import Calibration, MeasuredRun
from hpckit.features.capacity.model_setup import NumberType, TrainingSetup
from hpckit.features.capacity.overrides import RECOMPUTE
from hpckit.features.capacity.request import CapacityRequest, build_training_setup
from hpckit.features.capacity.step_time import estimate_shortest_step, predict_step_time
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Precision
from hpckit.planning.diagnosis.evidence import RunEvidence, list_ranks_with_enough_steps
from hpckit.planning.diagnosis.thresholds import DEFAULT
from hpckit.planning.diagnosis.usage import list_step_reports_of_ranks, samples_per_step, summarize_gpu_use
from hpckit.record.launches import Launch, load_run_settings, read_run_records
from hpckit.values import replace
from hpckit.views.telemetry import read_resource_usage_of_run

_SAME_MODEL = 0.05
"""How far numbers of parameters of one model may be apart: heads, ties and biases differ."""


def fill_request_from_run(request: CapacityRequest, run: MeasuredRun, *, gpus: int | None) -> CapacityRequest:
    """Return a request that takes from a run what it does not say itself.

    Without `gpus` and `parallel` these are the run's; a layout of its own needs `gpus`.
    """
    same = gpus in (None, run.layout.world_size) and not request.parallel
    return replace(
        request,
        gpus=gpus or run.layout.world_size,
        parallel=_layout_to_parallel_words(run.layout) if same else request.parallel,
        global_batch=request.global_batch or (run.batch if same else None),
        micro_batch=request.micro_batch or (_infer_micro_batch(run) if same else None),
        precision=request.precision or run.precision,
        recompute=request.recompute or run.recompute,
    )


def compare_predictions_with_run(request: CapacityRequest, run: MeasuredRun) -> Calibration:
    """Return how far predictions for a run are off.

    `request` describes the model and its sequences, and the GPU if the run's name of it is not
    known. Raises ConfigError if these cannot be those of the run.
    """
    setup = _build_setup_of_run(request, run)
    shortest = estimate_shortest_step(setup)
    if run.step_s < shortest:
        raise ConfigError(
            f"{run.name} took {run.step_s:.3g} s a step, and {setup.gpus} x {setup.gpu.name} need "
            f"{shortest:.3g} s for what --model, --sequence and --global-batch say",
            hint="describe the model and the batch that the run had",
        )
    memory = estimate_peak_memory(setup)
    working = memory.expected - memory.states - memory.context
    measured = None if run.memory_bytes is None else run.memory_bytes - memory.states
    measured = None if measured is None else measured - memory.context
    known = measured is not None and measured > 0 and working > 0
    return Calibration(
        run=run.name,
        step_s=run.step_s,
        predicted_step_s=predict_step_time(setup).total,
        memory_bytes=run.memory_bytes,
        predicted_memory_bytes=memory.expected,
        memory_ratio=measured / working if known and measured is not None else None,
    )


def _build_setup_of_run(request: CapacityRequest, run: MeasuredRun) -> TrainingSetup:
    batch = run.batch or request.global_batch
    if batch is None:
        raise ConfigError(
            f"{run.name} does not say how many samples its steps had",
            hint="give --global-batch, or tell it with run.steps(…, samples_per_step=N) or run.batches",
        )
    asked, called = request.gpu, find_gpu_by_driver_name(run.gpu)
    setup = build_training_setup(
        replace(
            request,
            # As asked for if the driver's name fits that, as a site's own GPU may.
            gpu=asked if called is None or called.name in (asked.name, asked.like) else called,
            gpus=run.layout.world_size,
            parallel=_layout_to_parallel_words(run.layout),
            global_batch=batch,
            micro_batch=_infer_micro_batch(replace(run, batch=batch)),
            precision=run.precision,
            recompute=run.recompute,
            step_s=None,
            zero=None,
        )
    )
    planned = setup.shape.parameters
    if run.parameters is not None and abs(planned / run.parameters - 1) > _SAME_MODEL:
        raise ConfigError(
            f"{run.name} trained {run.parameters:,} parameters, and --model has {planned:,}",
            hint="describe the model that the run trained",
        )
    return setup


def _layout_to_parallel_words(layout: Layout) -> tuple[str, ...]:
    return tuple(f"{axis.value}={size}" for axis, size in layout.sizes.items() if size > 1)


def _infer_micro_batch(run: MeasuredRun) -> int | None:
    """Return how many sequences a GPU computed at once; None if they were not whole ones."""
    parts = run.layout.data_size * run.microbatches
    return None if run.batch is None or run.batch % parts else run.batch // parts


_RECOMPUTED = {launched: planned for planned, launched in RECOMPUTE.items()}


def read_measured_run(launch: Launch, index: int) -> MeasuredRun:
    """Return what a run did on its GPUs; raises UsageError if too little was measured."""
    name, usages = f"{launch.id}.{index}", read_resource_usage_of_run(launch, index).nodes
    every = list_step_reports_of_ranks(usages)
    ranks = [
        rank
        for rank in list_ranks_with_enough_steps(RunEvidence(ranks=every), DEFAULT)
        if rank.gpu is not None
    ]
    if not ranks:
        whose = "its ranks" if every else "it"
        raise UsageError(
            f"{name} cannot calibrate a plan: no steps of {whose}{' on GPUs' if every else ''} were measured",
            hint=f"use a run on GPUs with {DEFAULT.steps} steps or more in "
            f"{DEFAULT.steps_s:g} s, and the config group observe not off",
        )
    gpus, devices = (
        summarize_gpu_use(usages),
        {device.uuid: device for use in usages for device in use.devices},
    )
    used = {rank.gpu for rank in ranks}
    peaks = [gpu.memory_peak_bytes for gpu in gpus if gpu.uuid in used]
    known = [peak for peak in peaks if peak is not None]
    names = sorted({devices[uuid].name for uuid in used if uuid in devices})
    samples = samples_per_step(ranks)
    parallel = load_run_settings(launch, index)[0].parallel
    reported = read_run_records(launch, (index,))[0].layout
    spent = sum(rank.seconds - (rank.checkpoint_s or 0.0) for rank in ranks)
    return MeasuredRun(
        name=name,
        step_s=spent / sum(rank.steps for rank in ranks),
        layout=Layout(replicate=len(every)) if reported is None else reported.layout,
        gpu=names[0] if len(names) == 1 else "",
        batch=None if samples is None else round(samples),
        microbatches=parallel.microbatches or 1,
        memory_bytes=max(known, default=None),
        parameters=None if reported is None else reported.model_parameters,
        precision=NumberType.bf16 if parallel.params is Precision.bf16 else NumberType.fp32,
        recompute=_RECOMPUTED[parallel.recompute],
    )
