"""How long published steps took, compared with what is predicted for them. Pure.

Ranges are those of published rows with sequences up to 8192 tokens; tests/published_steps.py has
the rows, with their sources. No constant of the prediction follows from them.
"""

from __future__ import annotations

from hpckit.model.capacity.plan import Experience
from hpckit.model.capacity.setup import TrainingSetup

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
    """Return how long published steps took on this GPU, with weights sharded as here or not."""
    sharded = setup.layout.shard > 1 or bool(setup.zero)
    gpu = setup.gpu.like or setup.gpu.name
    if gpu.startswith("A100"):
        return _A100_SHARDED if sharded else _A100_WHOLE
    if sharded and gpu == "H100-SXM":
        return _H100_SHARDED
    return _UNKNOWN
