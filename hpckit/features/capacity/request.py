"""What a user asks to be planned, in words and numbers, and the answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpckit.errors import ConfigError
from hpckit.features.capacity.gpus import GPUS
from hpckit.features.capacity.memory import (
    fullest_moment,
    plan_memory,
    plan_states,
    shards_of,
    state_bytes,
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
    check_precision,
)
from hpckit.features.capacity.model_transformer import TransformerShape
from hpckit.features.capacity.overrides import launch_words
from hpckit.features.capacity.power import SiteRates, power_draw, training_bill
from hpckit.features.capacity.presets import MODELS, from_config, from_numbers, unknown_model
from hpckit.features.capacity.step_time import predict_step, rates, shortest_step
from hpckit.features.capacity.words import ParallelWords, check_range, check_size, read_count
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
    """What is to be planned; None is what nothing was said of.

    `model` is the name of a published one, or numbers such as `hidden=768 layers=12 heads=12`, or
    `parameters=7.5e9`, of which only the states are known. `config` is a `config.json` instead.
    `parallel` has words such as `tensor=8`. `step_s` is a measured step. With a `calibration`,
    predictions are off as they were for the run that it is of. `cluster_words` choose the cluster
    that a layout is launched on.
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
        check_size("--gpus", self.gpus, MOST_RANKS)
        check_size("--global-batch", self.global_batch, _MOST_ROWS)
        check_size("--micro-batch", self.micro_batch, _MOST_ROWS)
        check_size("--sequence", self.sequence, _MOST_TOKENS)
        check_size("--vocab", self.vocab, _MOST_TOKENS)
        check_range("--step-s", self.step_s, _LEAST_STEP_S, _MOST_STEP_S)
        words = ParallelWords.of(self.parallel)
        if self.zero is not None and words.sizes.get("shard", 1) > 1:
            raise ConfigError(
                f"--zero {self.zero} and --parallel shard={words.sizes['shard']} both shard states",
                hint="give one of them: ZeRO shards over all data ranks",
            )

    @property
    def words(self) -> ParallelWords:
        """What `parallel` says."""
        return ParallelWords.of(self.parallel)

    @property
    def number_type(self) -> NumberType:
        """In which type of number is trained: bf16 unless said, or fp16 where a GPU has no bf16."""
        usual = NumberType.fp16 if self.gpu.flops_bf16 is None else NumberType.bf16
        return self.precision or usual

    @property
    def defaults(self) -> tuple[str, ...]:
        """Options of the batch and of the training that nothing was said of."""
        named = {
            "--global-batch": self.global_batch,
            "--sequence": self.sequence,
            "--tokens": self.tokens,
        }
        return tuple(name for name, value in named.items() if value is None)

    @property
    def only_states(self) -> bool:
        """Whether only the number of parameters is known."""
        return self.model.startswith(STATES)


def plan_capacity(request: CapacityRequest) -> CapacityPlan:
    """Return what a training needs; raises ConfigError if the request does not fit together."""
    if request.only_states:
        return _plan_states(request)
    return finish_plan(request, setup_of(request))


def plan_setup(
    setup: TrainingSetup, calibration: Calibration | None = None, words: Sequence[str] = ()
) -> PlannedSetup:
    """Return what a setup needs, as a measured run makes one expect it if there is one.

    `words` stand before the overrides that launch it.
    """
    memory, time = plan_memory(setup), predict_step(setup)
    if calibration is not None:
        memory, time = calibration.memory(memory), calibration.time(time)
    launch = launch_words(setup)
    launch = replace(launch, overrides=(*words, *launch.overrides))
    return PlannedSetup(setup=setup, memory=memory, time=time, launch=launch)


def finish_plan(request: CapacityRequest, setup: TrainingSetup) -> CapacityPlan:
    """Return what a setup needs, with its bill."""
    planned = plan_setup(setup, request.calibration, request.cluster_words)
    time, shortest = planned.time, shortest_step(setup)
    if request.step_s is not None and request.step_s < shortest:
        raise ConfigError(
            f"--step-s {request.step_s:g}: {request.gpus} x {request.gpu.name} need "
            f"{shortest:.3g} s for this step, at the most that they are said to reach",
            hint="check --global-batch, --sequence and --gpus: the step was of another size",
        )
    step_s = request.step_s or time.total
    tokens = _tokens(request, setup)
    return CapacityPlan(
        gpu=request.gpu,
        gpus=request.gpus,
        parameters=setup.shape.parameters,
        memory=planned.memory,
        power=power_draw(request.gpu, request.gpus, request.site.pue),
        setup=setup,
        time=None if request.step_s else time,
        rates=rates(setup, step_s),
        bill=bill_of(request, setup, step_s),
        tokens=tokens,
        launch=planned.launch,
        calibration=request.calibration,
        experience=None if request.step_s or request.calibration else experience_of(setup),
        moment=fullest_moment(setup)[0],
        defaults=request.defaults,
        remarks=tuple(remarks_on(setup, request.model if request.config is None else "")),
    )


def _tokens(request: CapacityRequest, setup: TrainingSetup) -> float:
    return request.tokens or float(_TOKENS_PER_PARAMETER * setup.shape.parameters)


def bill_of(request: CapacityRequest, setup: TrainingSetup, step_s: float) -> TrainingBill:
    """Return what the whole training comes to with steps of `step_s` seconds."""
    steps = max(1, round(_tokens(request, setup) / (setup.global_batch * setup.sequence)))
    return training_bill(request.gpu, request.gpus, step_s=step_s, steps=steps, rates=request.site)


def shape_of(request: CapacityRequest) -> TransformerShape:
    """Return the shape of the model; raises ConfigError."""
    if request.config is not None:
        shape = from_config(request.config)
    elif request.model.lower() in MODELS:
        shape = MODELS[request.model.lower()]
    elif "=" in request.model:
        shape = from_numbers(request.model, positions=request.sequence)
    else:
        raise unknown_model(request.model)
    return shape if request.vocab is None else replace(shape, vocab=request.vocab)


def usual_sequence(shape: TransformerShape) -> int:
    """Return how long sequences are if nothing is said: as published, up to 8192; else 4096."""
    published = min(shape.max_sequence, _MOST_USUAL_SEQUENCE)
    return shape.positions or published or _USUAL_SEQUENCE


def setup_of(request: CapacityRequest) -> TrainingSetup:
    """Return the setup that a request describes; raises ConfigError."""
    shape = shape_of(request)
    words = request.words
    layout = words.layout_on(request.gpus)
    if words.stages_per_rank is not None and words.stages_per_rank > 1 and layout.pipeline == 1:
        raise ConfigError(
            f"--parallel stages_per_rank={words.stages_per_rank} interleaves a pipeline, and there "
            "is none",
            hint="give pipeline=N as well, or leave stages_per_rank out",
        )
    micro_batch = request.micro_batch or 1
    more = _MICROBATCHES_PER_STAGE * layout.pipeline if layout.pipeline > 1 else 1
    eager = request.attention or (AttentionKind.eager if shape.biases else AttentionKind.flash)
    return TrainingSetup(
        shape=shape,
        gpu=request.gpu,
        layout=layout,
        sequence=request.sequence or usual_sequence(shape),
        micro_batch=micro_batch,
        global_batch=request.global_batch or layout.data_size * micro_batch * more,
        stages_per_rank=words.stages_per_rank or 1,
        sequence_parallel=words.sequence,
        precision=request.number_type,
        optimizer=request.optimizer,
        recompute=request.recompute or Recomputation.none,
        attention=eager,
        zero=request.zero,
        fused=request.fused,
        loss=request.loss,
    )


_OF_SHAPES = (
    *("global_batch", "micro_batch", "sequence", "vocab", "recompute", "attention", "loss"),
)
_OF_TIMES = ("step_s", "tokens")


def _plan_states(request: CapacityRequest) -> CapacityPlan:
    text = request.model.removeprefix(STATES)
    _check_only_states(request, text)
    check_precision(request.number_type, request.gpu)
    parameters = int(read_count(f"--model {STATES}", text))
    layout = request.words.layout_on(request.gpus)
    remarks = () if request.zero is not None else (_gpus_for_states(request, parameters),)
    held = parameters // (layout.tensor * layout.pipeline)
    kind, shards = request.number_type, shards_of(layout)
    per = state_bytes(kind, request.optimizer, request.zero, shards, layout.data_size)
    return CapacityPlan(
        gpu=request.gpu,
        gpus=request.gpus,
        parameters=parameters,
        memory=plan_states(held, per),
        power=power_draw(request.gpu, request.gpus, request.site.pue),
        layout=layout,
        unknown=UNKNOWN,
        remarks=remarks,
    )


def _gpus_for_states(request: CapacityRequest, parameters: int) -> str:
    """Return how many GPUs hold the weights alone, and how many all states."""
    gpu, weights = request.gpu, 2 * parameters
    per = state_bytes(request.number_type, request.optimizer, None, 1, 1)
    states = plan_states(parameters, per).states
    alone, whole = (math.ceil(size / gpu.memory) for size in (weights, states))
    return (
        f"weights alone are {weights / 1e9:,.4g} GB in 16 bits, on {alone} x {gpu.name} or more; "
        f"all states are {states / 1e9:,.4g} GB, on {whole} or more (--gpus {whole} --parallel "
        f"shard={whole})"
    )


def _check_only_states(request: CapacityRequest, text: str) -> None:
    """Raise ConfigError for what says nothing if only the number of parameters is known."""
    if len(text.split()) > 1:
        raise ConfigError(
            f"--model {STATES}{text}: parameters stands alone, as only states follow from it",
            hint="give either parameters=N, or the shape: hidden=N layers=N heads=N",
        )
    given = [name for name in (*_OF_SHAPES, *_OF_TIMES) if getattr(request, name) is not None]
    given += [
        name
        for name in ("price_per_gpu_hour", "carbon_g_per_kwh")
        if getattr(request.site, name) is not None
    ]
    if given:
        raise ConfigError(
            f"--{given[0].replace('_', '-')} says nothing about --model {request.model}: {UNKNOWN}",
            hint="leave it out, or describe the model: --model 'hidden=4096 layers=32 heads=32'",
        )


def remarks_on(setup: TrainingSetup, model: str) -> Iterator[str]:
    """Yield sentences about a setup; `model` is how it was named, or its numbers."""
    shape, sequence = setup.shape, setup.sequence
    if "=" in model:
        given = {word.partition("=")[0] for word in model.split()}
        if found := list(_assumed(shape, given)):
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


def _assumed(shape: TransformerShape, given: set[str]) -> Iterator[str]:
    """Yield what of a shape follows from no number that was given."""
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


def experience_of(setup: TrainingSetup) -> Experience:
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
