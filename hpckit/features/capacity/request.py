"""What a user asks to be planned, in words and numbers, and the answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpckit.errors import ConfigError
from hpckit.features.capacity.gpus import GPUS
from hpckit.features.capacity.memory import (
    count_state_bytes_per_parameter,
    count_state_shards,
    estimate_peak_memory,
    estimate_state_memory,
    find_peak_memory_moment,
)
from hpckit.features.capacity.model_plan import (
    Calibration,
    CapacityPlan,
    Experience,
    PlannedSetup,
    TrainingBill,
)
from hpckit.features.capacity.model_setup import (
    AttentionKind,
    GpuSpec,
    LossKind,
    NumberType,
    OptimizerKind,
    Recomputation,
    TrainingSetup,
    check_precision_supported,
)
from hpckit.features.capacity.model_transformer import TransformerShape
from hpckit.features.capacity.overrides import build_launch_words
from hpckit.features.capacity.power import SiteRates, estimate_power_draw, estimate_training_bill
from hpckit.features.capacity.presets import (
    MODELS,
    build_unknown_model_error,
    parse_huggingface_config,
    parse_model_dimensions,
)
from hpckit.features.capacity.step_time import compute_step_rates, estimate_shortest_step, predict_step_time
from hpckit.features.capacity.words import ParallelWords, check_range, check_whole_number, parse_count
from hpckit.model.parallel.layout import MOST_RANKS
from hpckit.values import dataclass, field, replace

_TOKENS_PER_PARAMETER = 20
"""What a model is trained on if nothing is said (Hoffmann et al. 2022)."""
_USUAL_SEQUENCE, _MOST_USUAL_SEQUENCE = 4096, 8192
"""Longer sequences than that are for the end of a training: none is assumed."""
_MOST_ROWS = 10**9
_MOST_TOKENS = 10**9
_LEAST_STEP_S, _MOST_STEP_S = 1e-6, 1e7
STATES = "parameters="
UNKNOWN = "activations, time and money follow from a transformer's shape: describe it with --model"
_MICROBATCHES_PER_STAGE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """What is to be planned; None is what was not given.

    `model` is the name of a published one, or numbers such as `hidden=768 layers=12 heads=12`, or
    `parameters=7.5e9`, of which only the states are known. `config` is a `config.json` instead. `parallel`
    has words such as `tensor=8`. `step_s` is a measured step. With a `calibration`, predictions are off as
    they were for the run that it is of. `cluster_words` choose the cluster that a layout is launched on.
    """

    gpu: GpuSpec
    gpus: int = 1
    model: str = ""
    config: Mapping[str, Any] | None = None
    parallel: Sequence[str] = ()
    global_batch: int | None = None
    micro_batch: int | None = None
    sequence: int | None = None
    vocab: int | None = None
    precision: NumberType | None = None
    optimizer: OptimizerKind = OptimizerKind.adam
    recompute: Recomputation | None = None
    attention: AttentionKind | None = None
    zero: int | None = None
    fused: bool = True
    loss: LossKind | None = None
    step_s: float | None = None
    tokens: float | None = None
    site: SiteRates = field(default_factory=SiteRates)
    calibration: Calibration | None = None
    cluster_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check single numbers; raises ConfigError."""
        check_whole_number("--gpus", self.gpus, MOST_RANKS)
        check_whole_number("--global-batch", self.global_batch, _MOST_ROWS)
        check_whole_number("--micro-batch", self.micro_batch, _MOST_ROWS)
        check_whole_number("--sequence", self.sequence, _MOST_TOKENS)
        check_whole_number("--vocab", self.vocab, _MOST_TOKENS)
        check_range("--step-s", self.step_s, _LEAST_STEP_S, _MOST_STEP_S)
        words = ParallelWords.parse(self.parallel)
        if self.zero is not None and words.sizes.get("shard", 1) > 1:
            raise ConfigError(
                f"--zero {self.zero} and --parallel shard={words.sizes['shard']} both shard states",
                hint="give one of them: ZeRO shards over all data ranks",
            )

    @property
    def parallel_words(self) -> ParallelWords:
        """What `parallel` says."""
        return ParallelWords.parse(self.parallel)

    @property
    def effective_precision(self) -> NumberType:
        """The type of number to train in: as given, else bf16, or fp16 where a GPU has no bf16."""
        usual = NumberType.fp16 if self.gpu.flops_bf16 is None else NumberType.bf16
        return self.precision or usual

    @property
    def defaulted_options(self) -> tuple[str, ...]:
        """Options of the batch and of the training that were not given."""
        named = {"--global-batch": self.global_batch, "--sequence": self.sequence, "--tokens": self.tokens}
        return tuple(name for name, value in named.items() if value is None)

    @property
    def has_only_parameter_count(self) -> bool:
        """Whether only the number of parameters is known."""
        return self.model.startswith(STATES)


def plan_capacity(request: CapacityRequest) -> CapacityPlan:
    """Return what a training needs; raises ConfigError if the request does not fit together."""
    if request.has_only_parameter_count:
        return _plan_from_parameter_count(request)
    return build_capacity_plan(request, build_training_setup(request))


def estimate_memory_and_step_time(
    setup: TrainingSetup, calibration: Calibration | None = None, words: Sequence[str] = ()
) -> PlannedSetup:
    """Return what a setup needs, as a measured run makes one expect it if there is one.

    `words` stand before the overrides that launch it.
    """
    memory, time = estimate_peak_memory(setup), predict_step_time(setup)
    if calibration is not None:
        memory, time = calibration.correct_memory(memory), calibration.correct_step_time(time)
    launch = build_launch_words(setup)
    launch = replace(launch, overrides=(*words, *launch.overrides))
    return PlannedSetup(setup=setup, memory=memory, time=time, launch=launch)


def build_capacity_plan(request: CapacityRequest, setup: TrainingSetup) -> CapacityPlan:
    """Return what a setup needs, with its bill."""
    planned = estimate_memory_and_step_time(setup, request.calibration, request.cluster_words)
    time, shortest = planned.time, estimate_shortest_step(setup)
    if request.step_s is not None and request.step_s < shortest:
        raise ConfigError(
            f"--step-s {request.step_s:g}: {request.gpus} x {request.gpu.name} need "
            f"{shortest:.3g} s for this step, at the most that they are said to reach",
            hint="check --global-batch, --sequence and --gpus: the step was of another size",
        )
    step_s = request.step_s or time.total
    tokens = _choose_training_tokens(request, setup)
    return CapacityPlan(
        gpu=request.gpu,
        gpus=request.gpus,
        parameters=setup.shape.parameters,
        memory=planned.memory,
        power=estimate_power_draw(request.gpu, request.gpus, request.site.pue),
        setup=setup,
        time=None if request.step_s else time,
        rates=compute_step_rates(setup, step_s),
        bill=estimate_request_bill(request, setup, step_s),
        tokens=tokens,
        launch=planned.launch,
        calibration=request.calibration,
        experience=None if request.step_s or request.calibration else find_published_step_slowdown(setup),
        moment=find_peak_memory_moment(setup)[0],
        defaults=request.defaulted_options,
        remarks=tuple(list_setup_remarks(setup, request.model if request.config is None else "")),
    )


def _choose_training_tokens(request: CapacityRequest, setup: TrainingSetup) -> float:
    return request.tokens or float(_TOKENS_PER_PARAMETER * setup.shape.parameters)


def estimate_request_bill(request: CapacityRequest, setup: TrainingSetup, step_s: float) -> TrainingBill:
    """Return what the whole training comes to with steps of `step_s` seconds."""
    steps = max(1, round(_choose_training_tokens(request, setup) / (setup.global_batch * setup.sequence)))
    return estimate_training_bill(request.gpu, request.gpus, step_s=step_s, steps=steps, rates=request.site)


def find_model_shape(request: CapacityRequest) -> TransformerShape:
    """Return the shape of the model; raises ConfigError."""
    if request.config is not None:
        shape = parse_huggingface_config(request.config)
    elif request.model.lower() in MODELS:
        shape = MODELS[request.model.lower()]
    elif "=" in request.model:
        shape = parse_model_dimensions(request.model, positions=request.sequence)
    else:
        raise build_unknown_model_error(request.model)
    return shape if request.vocab is None else replace(shape, vocab=request.vocab)


def choose_sequence_length(shape: TransformerShape) -> int:
    """Return how long sequences are if nothing is said: as published, up to 8192; else 4096."""
    published = min(shape.max_sequence, _MOST_USUAL_SEQUENCE)
    return shape.positions or published or _USUAL_SEQUENCE


def build_training_setup(request: CapacityRequest) -> TrainingSetup:
    """Return the setup that a request describes; raises ConfigError."""
    shape = find_model_shape(request)
    words = request.parallel_words
    layout = words.build_layout(request.gpus)
    if words.stages_per_rank is not None and words.stages_per_rank > 1 and layout.pipeline == 1:
        raise ConfigError(
            f"--parallel stages_per_rank={words.stages_per_rank} interleaves a pipeline, but there is none",
            hint="give pipeline=N as well, or leave stages_per_rank out",
        )
    micro_batch = request.micro_batch or 1
    more = _MICROBATCHES_PER_STAGE * layout.pipeline if layout.pipeline > 1 else 1
    eager = request.attention or (AttentionKind.eager if shape.biases else AttentionKind.flash)
    return TrainingSetup(
        shape=shape,
        gpu=request.gpu,
        layout=layout,
        sequence=request.sequence or choose_sequence_length(shape),
        micro_batch=micro_batch,
        global_batch=request.global_batch or layout.data_size * micro_batch * more,
        stages_per_rank=words.stages_per_rank or 1,
        sequence_parallel=words.sequence,
        precision=request.effective_precision,
        optimizer=request.optimizer,
        recompute=request.recompute or Recomputation.none,
        attention=eager,
        zero=request.zero,
        fused=request.fused,
        loss=request.loss,
    )


_OF_SHAPES = (*("global_batch", "micro_batch", "sequence", "vocab", "recompute", "attention", "loss"),)
_OF_TIMES = ("step_s", "tokens")


def _plan_from_parameter_count(request: CapacityRequest) -> CapacityPlan:
    text = request.model.removeprefix(STATES)
    _refuse_options_needing_shape(request, text)
    check_precision_supported(request.effective_precision, request.gpu)
    parameters = int(parse_count(f"--model {STATES}", text))
    layout = request.parallel_words.build_layout(request.gpus)
    remarks = () if request.zero is not None else (_format_gpus_for_states(request, parameters),)
    held = parameters // (layout.tensor * layout.pipeline)
    kind, shards = request.effective_precision, count_state_shards(layout)
    per = count_state_bytes_per_parameter(kind, request.optimizer, request.zero, shards, layout.data_size)
    return CapacityPlan(
        gpu=request.gpu,
        gpus=request.gpus,
        parameters=parameters,
        memory=estimate_state_memory(held, per),
        power=estimate_power_draw(request.gpu, request.gpus, request.site.pue),
        layout=layout,
        unknown=UNKNOWN,
        remarks=remarks,
    )


def _format_gpus_for_states(request: CapacityRequest, parameters: int) -> str:
    """Return how many GPUs hold the weights alone, and how many all states."""
    gpu, weights = request.gpu, 2 * parameters
    per = count_state_bytes_per_parameter(request.effective_precision, request.optimizer, None, 1, 1)
    states = estimate_state_memory(parameters, per).states
    alone, whole = (math.ceil(size / gpu.memory) for size in (weights, states))
    return (
        f"weights alone are {weights / 1e9:,.4g} GB in 16 bits, on {alone} x {gpu.name} or more; "
        f"all states are {states / 1e9:,.4g} GB, on {whole} or more (--gpus {whole} --parallel "
        f"shard={whole})"
    )


def _refuse_options_needing_shape(request: CapacityRequest, text: str) -> None:
    """Raise ConfigError for what says nothing if only the number of parameters is known."""
    if len(text.split()) > 1:
        raise ConfigError(
            f"--model {STATES}{text}: parameters stands alone, as only states follow from it",
            hint="give either parameters=N, or the shape: hidden=N layers=N heads=N",
        )
    given = [name for name in (*_OF_SHAPES, *_OF_TIMES) if getattr(request, name) is not None]
    given += [
        name for name in ("price_per_gpu_hour", "carbon_g_per_kwh") if getattr(request.site, name) is not None
    ]
    if given:
        raise ConfigError(
            f"--{given[0].replace('_', '-')} cannot go with --model {request.model}: {UNKNOWN}",
            hint="leave it out, or describe the model: --model 'hidden=4096 layers=32 heads=32'",
        )


def list_setup_remarks(setup: TrainingSetup, model: str) -> Iterator[str]:
    """Yield sentences about a setup; `model` is how it was named, or its numbers."""
    shape, sequence = setup.shape, setup.sequence
    if "=" in model:
        given = {word.partition("=")[0] for word in model.split()}
        if found := list(_list_assumed_values(shape, given)):
            words = ", ".join([*found, f"{setup.attention} attention"])
            yield f"assumed of the model: {words}; --model and --attention say otherwise"
    if shape.positions and sequence > shape.positions:
        yield (
            f"sequences of {sequence} tokens are longer than the {shape.positions} positions that "
            "the model learns: its code has to have more"
        )
    elif shape.max_sequence and sequence > shape.max_sequence:
        yield (
            f"sequences of {sequence} tokens are longer than the {shape.max_sequence} that the "
            "model is published for"
        )
    if shape.experts > 1:
        yield (
            f"{shape.active_parameters / 1e9:.3g} B of the parameters are active for a token "
            f"({shape.active_experts} of {shape.experts} experts); expert parallelism and uneven "
            "experts are not modelled"
        )


def _list_assumed_values(shape: TransformerShape, given: set[str]) -> Iterator[str]:
    if "vocab" not in given:
        yield f"vocab={shape.vocab}"
    if "ffn" not in given:
        yield f"ffn={shape.ffn_width}"
    for name in ("swiglu", "biases", "dropout", "tied"):
        if name not in given and not (name == "dropout" and not shape.dropout):
            yield f"{name}={str(getattr(shape, name)).lower()}"
    if "positions" not in given:
        yield f"positions={shape.positions}"
    if "kv_heads" not in given:
        yield f"kv_heads={shape.kv_heads or shape.heads}"


_A100_WHOLE = Experience(
    low=0.99,
    high=1.10,
    said="fifteen published Megatron steps on A100 took 1 % less to 10 % more time than predicted",
)
_A100_SHARDED = Experience(
    low=0.97,
    high=1.21,
    said="four in five of 118 published steps with sharded weights on A100 took 3 % less to 21 % "
    "more time than predicted",
)
_H100_SHARDED = Experience(
    low=1.07,
    high=1.30,
    said="four in five of 66 published steps with sharded weights on H100 took 7 to 30 % more time "
    "than predicted",
)
_UNKNOWN = Experience(
    low=0.97,
    high=1.30,
    said="no published step of this layout on this GPU was compared; those of others took 3 % less "
    "(A100) to 30 % more time than predicted (H100)",
)


def find_published_step_slowdown(setup: TrainingSetup) -> Experience:
    """Return how long published steps took on this GPU, with weights sharded as here or not.

    Those with sharded weights had no other axis than data; all were in 16 bits, on nodes as the
    catalogue has them, with sequences up to 8192 tokens. tests/published_steps.py has the rows,
    with their sources; no constant of the prediction follows from them.
    """
    layout, gpu = setup.layout, setup.gpu.name
    sharded = layout.shard > 1 or bool(setup.zero)
    data_alone = layout.tensor == layout.pipeline == layout.context == 1
    known = GPUS.get(gpu)
    if known is None or known.domain != setup.gpu.domain:
        return _UNKNOWN
    if setup.precision not in (NumberType.bf16, NumberType.fp16) or (sharded and not data_alone):
        return _UNKNOWN
    if gpu in ("A100-40", "A100-80"):
        return _A100_SHARDED if sharded else _A100_WHOLE
    return _H100_SHARDED if sharded and gpu == "H100-SXM" else _UNKNOWN
