"""Two machines side by side: what is asked of the node, what was seen, and how clocks differ."""

from __future__ import annotations

from hpckit.model.environment.facts import EnvironmentFacts
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfNode:
    """What a run with these overrides asks of a node.

    `nodes` is of the run itself, although one is looked at. `needs_torch`: it is a function, which
    torch's ranks call. `own_python`: `cluster.python` names one, so that a difference is intended.
    `on_cpus`: torch is told to leave GPUs alone.
    """

    nodes: int = 1
    gpus: int = 0
    memory_bytes: int | None = None
    needs_torch: bool = False
    own_python: bool = False
    on_cpus: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """How far the node's clock is ahead of this one, in seconds: somewhere between two bounds.

    The node read its clock after the submission and before its answer was read, so that both bounds
    are certain, whatever the network and the queue did in between.
    """

    least_s: float
    most_s: float

    @property
    def surely_s(self) -> float:
        """The smallest difference that fits; negative if the node is behind."""
        return max(self.least_s, min(self.most_s, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentComparison:
    """The machine of the user and, if there is another one, the compute node.

    `token` is what was written into the output folder for the node to read.
    """

    here: EnvironmentFacts
    node: EnvironmentFacts | None
    asked: AskedOfNode
    clock: ClockOffset | None = None
    token: str | None = None

    @property
    def runs(self) -> EnvironmentFacts:
        """The machine that runs would be on."""
        return self.here if self.node is None else self.node
