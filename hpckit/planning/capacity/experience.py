"""How long published steps took, compared with what is predicted for them. Pure.

Ranges are those of published rows; `tests/planning/capacity/test_experience.py` has the rows, with
their sources, and holds each within its range. No constant of the prediction follows from them.
"""

from __future__ import annotations

from hpckit.model.capacity.plan import Experience
from hpckit.model.capacity.setup import TrainingSetup

_A100_WHOLE = Experience(
    low=0.99,
    high=1.09,
    said="seven published Megatron steps on A100 took 1 % less to 9 % more time than predicted",
)
_A100_SHARDED = Experience(
    low=0.92,
    high=1.21,
    said="published steps with sharded weights on A100 took 8 % less to 21 % more time than "
    "predicted",
)
_H100_SHARDED = Experience(
    low=1.14,
    high=1.37,
    said="published steps with sharded weights on H100 took 14 to 37 % more time than predicted",
)
_UNKNOWN = Experience(
    low=0.92,
    high=1.37,
    said="no published step of this layout on this GPU was compared; those of others took 8 % less "
    "(A100) to 37 % more time than predicted (H100)",
)


def experience_of(setup: TrainingSetup) -> Experience:
    """Return how long published steps took on this GPU, with weights sharded as here or not."""
    sharded = setup.layout.shard > 1 or bool(setup.zero)
    if setup.gpu.name.startswith("A100"):
        return _A100_SHARDED if sharded else _A100_WHOLE
    if sharded and setup.gpu.name == "H100-SXM":
        return _H100_SHARDED
    return _UNKNOWN
