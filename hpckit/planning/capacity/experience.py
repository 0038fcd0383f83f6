"""How long published steps took, compared with what is predicted for them. Pure.

Ranges are those of published rows with sequences up to 8192 tokens; tests/published_steps.py has
the rows, with their sources. No constant of the prediction follows from them.
"""

from __future__ import annotations

from hpckit.model.capacity.plan import Experience
from hpckit.model.capacity.setup import NumberType, TrainingSetup
from hpckit.planning.capacity.gpu_catalogue import GPUS

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
    catalogue has them.
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
