"""Weights with several names, in a model that is cut into stages: which ranks have which of them.

Each rank has its own copy of such a weight, and one copy of it, however many names lead to it. So
every weight is exchanged once, between all stages that have it.
"""

from __future__ import annotations

from torch import nn

from hpckit.model.parallel.layout import MeshAxis
from hpckit.model.parallel.plan import Plan
from hpckit.runtime.parallel.gradients import TiedWeight
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.pipeline import PipelineSplit


def find_tied_weights(
    holder: nn.Module, plan: Plan, mesh: RankMesh, split: PipelineSplit | None
) -> tuple[TiedWeight, ...]:
    """Return the weights that this rank's stages share with those of other ranks."""
    if split is None:
        return ()
    own = dict(holder.named_parameters(remove_duplicate=False))
    line = mesh.layout.peers(mesh.rank, MeshAxis.pipeline)
    found = []
    for names in plan.ties():
        here = next((own[name] for name in names if name in own), None)
        places = sorted({split.stage_of(name) % split.places for name in names})
        if here is None or len(places) == 1:
            continue
        found.append(
            TiedWeight(
                parameter=here,
                learns=here.requires_grad,
                ranks=tuple(line[place] for place in places),
                rank=mesh.rank,
                group=mesh.group(MeshAxis.pipeline),
                device=mesh.device,
            )
        )
    return tuple(found)
