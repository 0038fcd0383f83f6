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
    """bfloat16 to compute and gather parameters; gradients are summed in float32"""


class Recompute(StrEnum):
    """What the backward pass computes again instead of keeping it in memory."""

    none = "none"
    """nothing"""
    blocks = "blocks"
    """every unit of the plan"""
    selective = "selective"
    """every unit, but matrix products are kept; attention is computed again"""


def can_compile_with_recompute(recompute: Recompute, *, tensor: int, context: int) -> bool:
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
    """it stays; each replica has more rows, and computes them in parts"""
    scale = "scale"
    """each data rank keeps its number of rows, so a step has fewer samples, or more"""


class Reduction(StrEnum):
    """In which order gradients are added."""

    fast = "fast"
    """as the communication library does; the last bits depend on the number of ranks"""
    tree = "tree"
    """as a fixed binary tree; slower, the same bits with fewer replicas"""


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

    The product of the five sizes is the number of ranks. A size is a number, or a word for what follows from
    `resources`: `rest`, `node`, `nodes` ([which ranks share what](parallel.md#sizes-and-the-order-of-nodes)).
    """

    replicate: int | str = "rest"
    """Replicas of the model; each takes its own part of the data. A run shrinks along this axis.
    `rest`: ranks that other axes leave over."""
    shard: int | str = 1
    """Ranks over which a replica's parameters, gradients and optimizer state are sharded (FSDP);
    each takes its own part of the data. Also `rest`, or `node`: the ranks of a node."""
    tensor: int | str = 1
    """Ranks over which each matrix is cut; they share their data. Also `node`."""
    context: int | str = 1
    """Ranks over which each sequence is cut. Also `node`."""
    pipeline: int | str = 1
    """Groups into which the layers are cut; each rank has one. Also `nodes`: one per node, or on a
    single node one per rank."""
    sequence: bool = True
    """With `tensor`: also shard activations between the matrices along the sequence."""
    schedule: str = "1F1B"
    """With `pipeline`: order of the microbatches' passes, in torch's names. `GPipe`: all forward,
    then all backward; `1F1B`: in turn, with less memory; `Interleaved1F1B`: two groups of layers
    per rank, which wait less for each other."""
    microbatches: int | None = None
    """Parts into which `run.train_step` cuts each rank's rows, computed one after the other. Null:
    with `pipeline` twice the stages, or what of that divides the rows; else 1."""
    params: Precision = Precision.fp32
    """Type of number in which the model computes."""
    recompute: Recompute = Recompute.none
    """What the backward pass computes again, to save memory."""
    batch: BatchRule = BatchRule.keep
    """What happens to a step's batch while replicas are lost
    ([more](training-step.md#when-replicas-are-lost))."""
    reduce: Reduction = Reduction.fast
    """Order in which gradients are added ([limits of
    `tree`](training-step.md#the-same-bits-with-fewer-replicas))."""
    compile: bool = False
    """Compile every unit of the plan with torch.compile."""
    offload: bool = False
    """Keep parameters, gradients and optimizer state in host memory (FSDP's offloading). Slower;
    saves nothing on CPUs."""
    self_check: bool = True
    """Compare parts of the model with the whole in the first step
    ([how](parallel.md#what-the-first-steps-compare)). Not with `compile`."""
    fallback: list[FallbackLayout] = field(default_factory=list, hash=False)
    """Layouts for a run whose nodes hold no whole replica
    ([rules](../guides/elastic.md#when-no-whole-replica-is-left)), like `[{replicate: 1, shard:
    rest}]`. Keys: `replicate`, `shard`, `tensor`, `context` and `pipeline`; other keys of
    `parallel` stay."""


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


def looks_like_override(word: str) -> bool:
    """Whether a word has the form of an override: `seed=1`, `parallel=tensor`, `+x.y=2`."""
    return _WORD.match(word) is not None


def is_layout_override(word: str) -> bool:
    """Whether an override chooses a layout, or sets a key of it: `parallel.shard=2`."""
    key, equals, _ = word.partition("=")
    return bool(equals) and (key == _GROUP or key.startswith(f"{_GROUP}."))


def replace_superseded_overrides(overrides: Iterable[str], words: Iterable[str]) -> tuple[str, ...]:
    """Return the overrides of a run after these words: they replace what they make void.

    Example: `seed=1 parallel.shard=2` with `parallel=tensor` is `seed=1 parallel=tensor`.
    """
    found = list(overrides)
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        found = [word_before for word_before in found if not _is_override_superseded(word_before, key)] + [
            word
        ]
    return tuple(found)


def _is_override_superseded(override: str, key: str) -> bool:
    own = override.partition("=")[0].lstrip("+")
    return own == key or (key == _GROUP and is_layout_override(override.lstrip("+")))
