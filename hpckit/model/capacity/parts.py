"""The parts of a prediction: bytes of a GPU's memory, and seconds of a step. Pure."""

from __future__ import annotations

from hpckit.values import dataclass

_CONTEXT_LOW, _CONTEXT_HIGH = 0.6, 1.6
_FRAGMENTED_MORE = 0.11
_ACTIVATIONS_LOW, _ACTIVATIONS_HIGH = 0.85, 1.65


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes per GPU by component, at the moment of a step that needs the most."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    buffers: float = 0.0
    context: float = 0.0
    fragmentation: float = 0.0

    @property
    def tensors(self) -> float:
        """The bytes of all tensors: what is no CUDA context and no gap between them."""
        return self.states + self.activations + self.logits + self.buffers

    @property
    def expected(self) -> float:
        """The sum."""
        return self.tensors + self.context + self.fragmentation

    @property
    def states(self) -> float:
        """What is known exactly: weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer

    @property
    def low(self) -> float:
        """What it takes if nothing is kept that need not be."""
        return (
            self.states
            + _ACTIVATIONS_LOW * (self.activations + self.logits)
            + _CONTEXT_LOW * self.context
        )

    @property
    def high(self) -> float:
        """What it takes with the copies that common code keeps, and fragments."""
        working = _ACTIVATIONS_HIGH * (self.activations + self.logits) + self.buffers
        fragmentation = self.fragmentation + _FRAGMENTED_MORE * working
        return self.states + working + fragmentation + _CONTEXT_HIGH * self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step by what they go to. `bubble`: a pipeline's ranks wait for each other.

    `exposed` is communication that nothing runs beside.
    """

    compute: float
    exposed: float
    bubble: float
    optimizer: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.compute + self.exposed + self.bubble + self.optimizer
