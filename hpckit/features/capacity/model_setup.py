"""What is to be planned: a model, GPUs, how the one is laid out over the others. Pure."""

from __future__ import annotations

from enum import StrEnum

from hpckit.errors import ConfigError
from hpckit.features.capacity.model_transformer import TransformerShape
from hpckit.model.counted import format_count
from hpckit.model.parallel.layout import Layout
from hpckit.values import dataclass, field

_MOST_PER_NODE = 8
"""A fast fabric that joins more GPUs joins nodes; how many each has, the catalogue does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU: bytes, FLOP/s of dense matrix products, bytes per second in one direction, watts.

    `flops_bf16` of None: its tensor cores do not know bfloat16. `link` is the fabric within a
    domain of `domain` GPUs (NVLink, else PCIe), `network` this GPU's part of the network between
    nodes. `per_node` is how many GPUs a node has, 0 where only `domain` says it. `node_w` is
    `power_w` with this GPU's part of its node. `reachable` is the share of the peak that the best
    products reach, `flash` the share that flash attention reaches, `clock` what a power cap leaves.
    `source` says where the numbers come from, `node_source` where `node_w` does. `like` is the GPU
    of the catalogue that a site's own one was described by.
    """

    name: str
    like: str = ""
    memory: float
    flops_fp16: float
    flops_bf16: float | None
    flops_fp32: float
    bandwidth: float
    link: float
    network: float
    power_w: float
    node_w: float
    domain: int = 8
    per_node: int = 0
    reachable: float = 0.8
    flash: float = 0.48
    clock: float = 1.0
    source: str = ""
    node_source: str = ""

    @property
    def gpus_per_node(self) -> int | None:
        """How many GPUs a node has; None where a fabric joins those of several nodes."""
        return self.per_node or (self.domain if self.domain <= _MOST_PER_NODE else None)


class NumberType(StrEnum):
    """In which type of number a model is trained."""

    bf16 = "bf16"
    """computed in 16 bits; weights, gradients and optimizer are kept in 32"""
    fp16 = "fp16"
    """as bf16"""
    fp32 = "fp32"
    """all in 32 bits"""
    bf16_pure = "bf16-pure"
    """all in 16 bits"""


_MOST_CUT = 64
"""Larger sizes are not proposed."""


def check_precision_supported(precision: NumberType, gpu: GpuSpec) -> None:
    """Check that a GPU's tensor cores know this type of number; raises ConfigError.

    Example: a V100 does not know bf16.
    """
    if precision in (NumberType.bf16, NumberType.bf16_pure) and gpu.flops_bf16 is None:
        raise ConfigError(
            f"{gpu.name} cannot use {precision}: its tensor cores have no bfloat16",
            hint="take --precision fp16 (with a scaled loss) or fp32, or another GPU",
        )


class OptimizerKind(StrEnum):
    """The optimizer, as far as its state differs."""

    adam = "adam"
    adam8bit = "adam8bit"
    sgd = "sgd"


class Recomputation(StrEnum):
    """What the backward pass computes again."""

    none = "none"
    selective = "selective"
    """what is cheap for the memory that it frees: with eager attention what lies between its
    matrices (scores, softmax, values); with flash attention, which keeps no scores, all of a layer
    but its products of matrices, as `parallel.recompute=selective` does"""
    full = "full"
    """whole layers"""


class AttentionKind(StrEnum):
    """How attention is computed."""

    eager = "eager"
    """scores of all pairs of positions are kept"""
    flash = "flash"
    """in one kernel that keeps none of them"""


class LossKind(StrEnum):
    """How the loss of all words' scores is computed, as far as its memory differs."""

    plain = "plain"
    """torch's cross entropy, one operation after the other, in 32 bits"""
    compiled = "compiled"
    """compiled into one kernel by torch.compile"""
    in_place = "in-place"
    """a kernel that overwrites the scores by their gradient, as those of Megatron and flash-attn"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """One way to train a model; sizes as in `Layout`, batches in sequences, `sequence` in tokens.

    `micro_batch` is what a rank computes at once. `stages_per_rank` above 1 is an interleaved
    pipeline. `zero` names a stage of ZeRO with Adam in mixed precision, which shards over all data
    ranks; without it states are sharded as FSDP does, over the layout's `shard`. `fused` is whether
    norms, residuals and functions are single kernels, as after torch.compile.
    """

    shape: TransformerShape
    gpu: GpuSpec
    layout: Layout
    sequence: int
    micro_batch: int = 1
    global_batch: int = 1
    stages_per_rank: int = 1
    sequence_parallel: bool = True
    precision: NumberType = NumberType.bf16
    optimizer: OptimizerKind = OptimizerKind.adam
    recompute: Recomputation = Recomputation.none
    attention: AttentionKind = AttentionKind.eager
    zero: int | None = None
    fused: bool = True
    loss: LossKind | None = None
    gpus: int = field(init=False)

    def __post_init__(self) -> None:
        """Check that the numbers fit together; raises ConfigError."""
        object.__setattr__(self, "gpus", self.layout.world_size)
        for name in ("sequence", "micro_batch", "global_batch", "stages_per_rank"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is not a valid size",
                    hint=f"{name} takes a whole number of 1 or more",
                )
        check_precision_supported(self.precision, self.gpu)
        self._check_axis_divides("tensor", self.shape.heads, "heads of the model")
        self._check_axis_divides("context", self.sequence, "tokens of a sequence")
        chunks = self.layout.pipeline * self.stages_per_rank
        if chunks > self.shape.layers:
            raise ConfigError(
                f"pipeline={self.layout.pipeline} with {self.stages_per_rank} stages per rank is "
                f"more than the {self.shape.layers} layers",
                hint="choose fewer stages",
            )
        if self.global_batch % self.concurrent_sequences_of_all_ranks:
            raise self._build_uneven_batch_error()

    def _check_axis_divides(self, axis: str, whole: int, of: str) -> None:
        size = getattr(self.layout, axis)
        if whole % size:
            sizes = [size for size in range(2, min(whole, _MOST_CUT) + 1) if whole % size == 0]
            near = sorted(sizes, key=lambda one: abs(one - size))[:2]
            raise ConfigError(
                f"{axis}={size} does not divide the {whole} {of}",
                hint=f"give --parallel {axis}=N with an N that does"
                + (f", such as {' or '.join(map(str, sorted(near)))}" if near else ""),
            )

    def _build_uneven_batch_error(self) -> ConfigError:
        at_once, ranks = self.concurrent_sequences_of_all_ranks, self.layout.data_size
        more = at_once * (self.global_batch // at_once + 1)
        return ConfigError(
            f"--global-batch {self.global_batch} cannot be shared out: it is not a multiple of "
            f"{at_once}, which {format_count(ranks, 'data rank')} (replicate x shard) compute at "
            f"once with --micro-batch {self.micro_batch}",
            hint=f"give a multiple of {at_once}, such as --global-batch {more}"
            + (", or fewer data ranks, such as --parallel tensor=2" if ranks > 1 else ""),
        )

    @property
    def loss_kind(self) -> LossKind:
        """How the loss is computed: as `run.train_step` does it without `loss=`, unless given."""
        return self.loss or LossKind.plain

    @property
    def concurrent_sequences_of_all_ranks(self) -> int:
        """Sequences that all data ranks together compute at once."""
        return self.layout.data_size * self.micro_batch

    @property
    def microbatches(self) -> int:
        """How many batches a rank computes one after the other in a step."""
        return self.global_batch // self.concurrent_sequences_of_all_ranks

    @property
    def micro_batch_tokens_per_rank(self) -> int:
        """Tokens that a rank has of a micro batch."""
        return self.micro_batch * self.sequence // self.layout.context

    @property
    def max_stage_layers(self) -> int:
        """Layers of a rank of the first stage: no other one has more."""
        return self.count_stage_layers(0)

    def count_stage_layers(self, stage: int) -> int:
        """Return the layers of a rank of a stage; of uneven groups the earlier ones have one more.

        Example: 126 layers over 8 stages are 16 for each of the first 6, and 15 for the others.
        """
        stages = self.layout.pipeline
        groups = range(stage, stages * self.stages_per_rank, stages)
        even, more = divmod(self.shape.layers, stages * self.stages_per_rank)
        return sum(even + (group < more) for group in groups)

    @property
    def bytes_per_number(self) -> int:
        """Bytes of a number that is computed with."""
        return 4 if self.precision is NumberType.fp32 else 2
