"""The shape of a transformer, and its parameters: as a whole, by layer and by matrix. Pure."""

from __future__ import annotations

import math

from hpckit.errors import ConfigError
from hpckit.values import dataclass

_MOST = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """A decoder-only transformer by its numbers; sizes are in elements.

    `kv_heads` and `head_dim` of 0 follow from `heads` and `hidden`, `ffn` of 0 is 4 x hidden. `positions` is
    the number of learned positions, 0 if there are none (rotary). `max_sequence` is the longest sequence that
    the model is published for, 0 if that is not known. `swiglu` has three matrices in the feed-forward part
    instead of two. `biases` are on all matrices and norms, `query_biases` on queries, keys and values only.
    With `dropout` the residuals and, with eager attention, the scores keep a mask. With `experts` above 1
    each layer has that many feed-forward parts, of which a token takes `active_experts`.

    Example: GPT-3 is `TransformerShape(hidden=12288, layers=96, heads=96, vocab=50257)`.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    vocab: int = 51200
    positions: int = 2048
    tied: bool = True
    swiglu: bool = False
    biases: bool = True
    dropout: bool = True
    query_biases: bool = False
    head_norms: bool = False
    experts: int = 1
    active_experts: int = 1
    max_sequence: int = 0

    def __post_init__(self) -> None:
        """Check the numbers; raises ConfigError."""
        sizes = ("hidden", "layers", "heads", "vocab", "experts", "active_experts")
        for name in sizes:
            self._check_size(name, least=1)
        for name in ("kv_heads", "head_dim", "ffn", "positions", "max_sequence"):
            self._check_size(name, least=0)
        if not self.head_dim and self.hidden % self.heads:
            raise ConfigError(
                f"model: heads={self.heads} do not divide hidden={self.hidden}",
                hint="choose heads that divide hidden, or give head_dim",
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise ConfigError(
                f"model: kv_heads={self.kv_heads} do not divide heads={self.heads}",
                hint="each key-value head serves a whole number of heads",
            )
        if self.active_experts > self.experts:
            raise ConfigError(
                f"model: active_experts={self.active_experts} are more than experts={self.experts}",
                hint="a token takes as many experts as there are, or fewer",
            )

    def _check_size(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not least <= value <= _MOST:
            shown = value if abs(value) <= _MOST else f"about 1e{int(math.log10(abs(value)))}"
            raise ConfigError(
                f"model: {name}={shown} is not a valid size",
                hint=f"{name} takes a whole number from {least} to {_MOST}",
            )

    @property
    def query_width(self) -> int:
        """Width of all queries."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def kv_width(self) -> int:
        """Width of all keys, and of all values."""
        return self.query_width // self.heads * (self.kv_heads or self.heads)

    @property
    def ffn_width(self) -> int:
        """Width within the feed-forward part."""
        return self.ffn or 4 * self.hidden

    @property
    def ffn_matrices(self) -> int:
        """Matrices of a feed-forward part."""
        return 3 if self.swiglu else 2

    @property
    def attention_elements(self) -> int:
        """Elements of a layer's four attention matrices."""
        return self.hidden * 2 * (self.query_width + self.kv_width)

    @property
    def expert_elements(self) -> int:
        """Elements of the matrices of one feed-forward part."""
        return self.ffn_matrices * self.hidden * self.ffn_width

    @property
    def router_elements(self) -> int:
        """Elements of what chooses among experts."""
        return self.hidden * self.experts if self.experts > 1 else 0

    @property
    def layer_matrix_elements(self) -> int:
        """Elements of all matrices of a layer."""
        return self.attention_elements + self.experts * self.expert_elements + self.router_elements

    @property
    def active_layer_elements(self) -> int:
        """Elements of the matrices of a layer that a token goes through."""
        return self.attention_elements + self.active_experts * self.expert_elements + self.router_elements

    @property
    def sharded_bias_elements(self) -> int:
        """Elements of a layer's biases that tensor parallelism cuts: those of cut outputs."""
        found = self.query_width + 2 * self.kv_width if self.biases or self.query_biases else 0
        if self.biases:
            found += self.experts * (self.ffn_width * (self.ffn_matrices - 1))
        return found

    @property
    def replicated_elements(self) -> int:
        """Elements of a layer that every rank of a tensor group has: norms, biases of outputs."""
        norms = 2 * self.norm_elements
        if self.head_norms:
            norms += 2 * (self.query_width // self.heads)
        return norms + ((1 + self.experts) * self.hidden if self.biases else 0)

    @property
    def norm_elements(self) -> int:
        """Elements of a norm: a scale, with biases also a shift."""
        return (2 if self.biases else 1) * self.hidden

    @property
    def embedding_elements(self) -> int:
        """Elements of the table of tokens."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All elements: layers, embeddings, positions, the last norm, the head if it is not tied.

        Source: Narayanan et al. 2021 (SC21), equation 2: 12Lh²(1 + 13/12h + (V + s)/12Lh), and the
        last norm, which it leaves out.
        """
        tables = (1 if self.tied else 2) * self.embedding_elements
        layer = self.layer_matrix_elements + self.sharded_bias_elements + self.replicated_elements
        return self.layers * layer + tables + self.positions * self.hidden + self.norm_elements

    @property
    def active_parameters(self) -> int:
        """Elements that a token goes through: all but those of experts that it does not take."""
        idle = self.experts - self.active_experts
        return self.parameters - self.layers * idle * self.expert_elements
