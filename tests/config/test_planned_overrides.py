"""What `hpckit plan` says of a launch is what `hpckit launch` understands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.features.capacity.gpus import GPUS
from hpckit.features.capacity.model_setup import Recomputation
from hpckit.features.capacity.request import CapacityRequest
from hpckit.features.capacity.search import list_fitting_layouts, select_pareto_optimal
from hpckit.model.parallel.settings import Recompute
from hpckit.planning.layout import plan_run_layout

KEYS = {
    Recomputation.none: Recompute.none,
    Recomputation.selective: Recompute.selective,
    Recomputation.full: Recompute.blocks,
}


@pytest.mark.parametrize(
    ("model", "gpus", "words"),
    [
        ("llama3-8b", 16, ()),
        ("llama3-70b", 64, ("tensor=8",)),
        ("llama3-70b", 64, ("pipeline=4",)),
        ("llama3-405b", 512, ("pipeline=8", "stages_per_rank=2")),
    ],
)
def test_overrides_of_a_plan_compose_to_its_layout(
    request_for: Callable[..., ComposeRequest], model: str, gpus: int, words: tuple[str, ...]
) -> None:
    """Of each layout that a search finds, hpckit plans the same ranks, schedule and precision."""
    found = list_fitting_layouts(
        CapacityRequest(gpu=GPUS["H100-SXM"], gpus=gpus, model=model, parallel=words, global_batch=8 * gpus)
    )
    for one in select_pareto_optimal(found)[:4]:
        resources = (f"resources.nodes={gpus // 8}", "resources.gpus_per_node=8")
        tasks = "resources.tasks_per_node=8"
        composed = compose_sweep_points(
            request_for(*one.launch.overrides, *resources, tasks, "experiment=charlm")
        )
        settings = composed[0].settings
        assert plan_run_layout(settings) == one.setup.layout
        assert settings.parallel.recompute is KEYS[one.setup.recompute]
        kept = settings.parallel.recompute is Recompute.selective
        assert settings.parallel.compile is not (kept and one.setup.layout.tensor > 1)
        if one.setup.layout.pipeline > 1:
            assert settings.parallel.microbatches == one.setup.microbatches
