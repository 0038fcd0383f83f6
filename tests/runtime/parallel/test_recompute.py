"""What the backward pass computes again: nothing, all of each unit, or all but its products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from byte_model import LENGTH, VALUES, ByteModel, plan
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel, Recompute
from hpckit.runtime.model_check.model_fit import fake_process_group
from hpckit.runtime.parallel.build import build_seeded_model, lay_out_model
from hpckit.runtime.parallel.mesh import RankMesh

BLOCKS = 2


class CountedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that run, by their names."""

    counts: Counter[str]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count one, and run it."""
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operations(recompute: Recompute) -> Counter[str]:
    """Return the operations of one forward and backward pass."""
    layout = Layout(shard=2)
    with fake_process_group(0, layout.world_size):
        mesh = RankMesh(layout, torch.device("cpu"), 0)
        model = build_seeded_model(lambda: ByteModel(blocks=BLOCKS), 1)
        module = lay_out_model(model, plan(), mesh, Parallel(recompute=recompute)).module
        text = torch.arange(2 * LENGTH).view(2, LENGTH) % VALUES
        seen = CountedOperations()  # type: ignore[no-untyped-call]
        seen.counts = Counter()
        with seen:
            loss = nn.functional.cross_entropy(module(text).flatten(0, 1), text.flatten())
            torch.autograd.backward(loss)
    return seen.counts


@pytest.mark.training
def test_selective_recomputing_keeps_matrix_products() -> None:
    """They run as often as without recomputing; what is cheap runs once more for each unit."""
    kept, all_again, some_again = (
        operations(one) for one in (Recompute.none, Recompute.blocks, Recompute.selective)
    )
    for name in ("mm", "addmm"):
        assert some_again[name] == kept[name]
        assert all_again[name] > kept[name]
    assert kept["gelu"] == BLOCKS
    assert some_again["gelu"] == all_again["gelu"] == 2 * BLOCKS
