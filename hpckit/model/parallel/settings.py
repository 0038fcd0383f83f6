"""What a user may configure of a run's layout, in the section `parallel` and by later overrides.

`scripts/config_reference.py` takes the docstrings below the fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, field


class SizeWord(StrEnum):
    """Sizes that follow from the resources of a run."""

    rest = "rest"
    """the ranks that the other axes leave over; for one axis of data, replicate or shard"""
    node = "node"
    """the ranks of a node, over the axes below it that have a number; for shard, context, tensor"""
    nodes = "nodes"
    """the number of nodes; on one node, its ranks; for pipeline"""


class Precision(StrEnum):
    """In which type of number a model computes."""

    fp32 = "fp32"
    """as the model is built"""
    bf16 = "bf16"
    """bfloat16 for computing and gathering parameters; gradients are summed in float32"""


class Recompute(StrEnum):
    """What the backward pass computes again instead of keeping it in memory."""

    none = "none"
    """nothing"""
    blocks = "blocks"
    """every unit of the plan"""
    selective = "selective"
    """every unit but for its matrix products, which are kept; attention is computed again"""


def can_compile(recompute: Recompute, *, tensor: int, context: int) -> bool:
    """Return whether torch can compile units that are recomputed in this way.

    Not if they keep products of matrices that `tensor` ranks share, nor if they are recomputed
    whole and `context` ranks share a sequence.
    """
    if recompute is Recompute.selective:
        return tensor == 1
    return recompute is Recompute.none or context == 1


class BatchRule(StrEnum):
    """What becomes of the batch of a step while a run has fewer replicas, or more."""

    keep = "keep"
    """it stays as it is: each replica has more rows, and computes them one part after the other"""
    scale = "scale"
    """each data rank keeps its number of rows, so that a step has fewer samples, or more"""


class Reduction(StrEnum):
    """In which order gradients are added."""

    fast = "fast"
    """as the communication library does it: the last bits follow from the number of ranks"""
    tree = "tree"
    """as a fixed binary tree over groups of samples: the bits are the same with fewer replicas"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FallbackLayout:
    """The sizes of a layout for a run that has too few nodes for its own.

    Numbers and words as in `Parallel`; words follow from the nodes that are left.

    Example: `{replicate: 1, shard: rest}` shards over all ranks that are left.
    """

    replicate: int | str = "rest"
    """Replicas of the model; as `parallel.replicate`."""
    shard: int | str = 1
    """As `parallel.shard`."""
    tensor: int | str = 1
    """As `parallel.tensor`."""
    context: int | str = 1
    """As `parallel.context`."""
    pipeline: int | str = 1
    """As `parallel.pipeline`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel:
    """How a model and its data are laid out over the ranks of a run.

    The product of the five sizes is the number of ranks. Ranks next to each other differ first in
    `tensor`, then in `context`, `shard`, `pipeline`, and last in `replicate`. Sizes are numbers, or
    words for what follows from `resources`: `rest`, `node`, `nodes`.
    """

    replicate: int | str = "rest"
    """Replicas of the model; each takes its own part of the data. A run shrinks along this axis. A
    number, or `rest`: the ranks that the other axes leave over."""
    shard: int | str = 1
    """Over how many ranks the parameters, gradients and optimizer state of a replica are sharded;
    each takes its own part of the data (FSDP). A number, `rest`, or `node`: the ranks of a node."""
    tensor: int | str = 1
    """Over how many ranks each matrix is cut; they share their data. A number, or `node`."""
    context: int | str = 1
    """Over how many ranks each sequence is cut. A number, or `node`."""
    pipeline: int | str = 1
    """Into how many groups of layers the model is cut; each rank has one. A number, or `nodes`: one
    for each node, or on a single node one for each rank."""
    sequence: bool = True
    """With `tensor`: also shard activations between the matrices along the sequence."""
    schedule: str = "1F1B"
    """With `pipeline`: the order of the microbatches' passes, by torch's names: `GPipe` (all
    forward, then all backward), `1F1B` (in turn, which needs less memory) or `Interleaved1F1B`
    (with two groups of layers on each rank, which wait less for each other)."""
    microbatches: int | None = None
    """Into how many parts `run.train_step` cuts each rank's rows of a batch, to compute them one
    after the other. Null: with `pipeline` twice as many as stages, or what of that divides the
    rows; else 1."""
    params: Precision = Precision.fp32
    """In which type of number the model computes."""
    recompute: Recompute = Recompute.none
    """What the backward pass computes again, to save memory."""
    batch: BatchRule = BatchRule.keep
    """What becomes of the batch of a step while replicas are lost. `scale` does not change the
    learning rate; batch sizes have to be a multiple of the data ranks asked for."""
    reduce: Reduction = Reduction.fast
    """In which order gradients are added. `tree` is for data parallelism alone, and slower; the
    replicas asked for, times `microbatches`, have to be a power of two."""
    compile: bool = False
    """Compile every unit of the plan with torch.compile."""
    offload: bool = False
    """Keep parameters, gradients and optimizer state in the host's memory, and on the GPU only what
    computes (FSDP's offloading). Slower; on CPUs it saves nothing."""
    self_check: bool = True
    """In the first step, compare on one row: with `tensor` or `context`, what one unit of each
    class computes with what the whole unit does; with `pipeline`, what the stages compute with what
    the model's forward does over all units. Not with `compile`."""
    fallback: list[FallbackLayout] = field(default_factory=list, hash=False)
    """Layouts in which a run continues while its nodes hold no whole replica, for example
    `[{replicate: 1, shard: rest}]`. The first that fits the nodes is taken. A layout has the keys
    `replicate`, `shard`, `tensor`, `context` and `pipeline`, and has to fit `resources.min_nodes`
    nodes. Other keys of `parallel` stay as they are."""


SCHEDULES = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2}
"""The allowed schedules, and how many groups of layers each rank has with them."""

SIZE_WORDS: dict[str, frozenset[SizeWord]] = {
    "replicate": frozenset({SizeWord.rest}),
    "shard": frozenset({SizeWord.rest, SizeWord.node}),
    "tensor": frozenset({SizeWord.node}),
    "context": frozenset({SizeWord.node}),
    "pipeline": frozenset({SizeWord.nodes}),
}
"""The words that each axis takes besides a number."""


_GROUP = "parallel"
_WORD = lazy_pattern(r"[+~]{0,2}[A-Za-z_$][\w.@/$]*=")


def is_override(word: str) -> bool:
    """Whether a word has the form of an override: `seed=1`, `parallel=tensor`, `+x.y=2`."""
    return _WORD.match(word) is not None


def is_layout_word(word: str) -> bool:
    """Whether an override chooses a layout, or sets a key of it: `parallel.shard=2`."""
    key, equals, _ = word.partition("=")
    return bool(equals) and (key == _GROUP or key.startswith(f"{_GROUP}."))


def with_layout_words(overrides: Iterable[str], words: Iterable[str]) -> tuple[str, ...]:
    """Return the overrides of a run after these words: they replace what they make void.

    Example: `seed=1 parallel.shard=2` with `parallel=tensor` is `seed=1 parallel=tensor`.
    """
    found = list(overrides)
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        found = [word_before for word_before in found if not _is_void(word_before, key)] + [word]
    return tuple(found)


def _is_void(override: str, key: str) -> bool:
    own = override.partition("=")[0].lstrip("+")
    return own == key or (key == _GROUP and is_layout_word(override.lstrip("+")))
