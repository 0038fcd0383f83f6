"""What else should be known of a plan: what was assumed, and what is not modelled. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.capacity.setup import TrainingSetup
from hpckit.model.capacity.transformer import TransformerShape


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
