"""A model is laid out on meta, in a world that is not there, as it would be in the real one."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from byte_model import LENGTH, ByteModel, plan
from torch.distributed.tensor.debug import CommDebugMode

from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.model_check import StageMemory
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.settings import Parallel
from hpckit.runtime.model_check.model_fit import FittedModel, fake_process_group, measure_stage_memory
from hpckit.runtime.parallel.build import build_model_on_meta, lay_out_model
from hpckit.runtime.parallel.mesh import RankMesh
from hpckit.runtime.parallel.model_checks import find_plan_problems

ELEMENTS = 103_488
TIED_AGAIN = 64 * 32
"""The embedding is on the first stage, and as the head on the last."""


def fitted(layout: Layout, **settings: object) -> FittedModel:
    """Return the byte model on meta."""
    return FittedModel(
        model=build_model_on_meta(ByteModel, 0),
        plan=plan(),
        layout=layout,
        settings=Parallel(**settings),  # type: ignore[arg-type]
    )


def stages(model: FittedModel) -> list[StageMemory]:
    """Return what the first rank of each stage holds."""
    found = []
    for stage in range(model.layout.pipeline):
        rank = model.layout.rank_at({MeshAxis.pipeline: stage})
        with fake_process_group(rank, model.layout.world_size):
            found.append(measure_stage_memory(stage, [model.lay_out_model_of_rank(rank).module]))
    return found


@pytest.mark.training
def test_ranks_hold_their_part_and_no_tensor_has_memory() -> None:
    """Bytes of parameters, gradients and Adam follow from the layout; the original stays whole."""
    model = fitted(Layout(replicate=2, shard=4))
    assert model.find_problems() == ()
    (one,) = stages(model)
    assert one.parameters == ELEMENTS // 4 == model.parameter_count // 4
    assert (one.parameter_bytes, one.gradient_bytes) == (ELEMENTS, ELEMENTS)
    assert one.training_state_bytes == 4 * ELEMENTS
    assert all(tensor.is_meta for tensor in model.model.parameters())
    assert not dist.is_initialized()


@pytest.mark.training
def test_stages_hold_the_whole_model_together() -> None:
    """Each has its own units; the first and the last have the tied weight, too."""
    found = stages(fitted(Layout(pipeline=4, shard=2), schedule="1F1B"))
    assert [one.stage for one in found] == [0, 1, 2, 3]
    assert 2 * sum(one.parameters for one in found) == ELEMENTS + TIED_AGAIN
    assert found[1] == StageMemory(**{**_fields(found[2]), "stage": 1})


def _fields(one: StageMemory) -> dict[str, int]:
    return {name: getattr(one, name) for name in StageMemory.__slots__}


@pytest.mark.training
def test_a_thousand_ranks_take_one_model_and_one_part_each_stage() -> None:
    """However many ranks there are, a part is as large as that of the few that are alike."""
    few = stages(fitted(Layout(pipeline=2, shard=2, tensor=2)))
    many = stages(fitted(Layout(replicate=128, pipeline=2, shard=2, tensor=2)))
    assert many == few


@pytest.mark.training
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # when torch compiles
@pytest.mark.parametrize(("compiled", "gathers"), [(False, 2), (True, 4)])
def test_columns_of_one_input_gather_it_once(*, compiled: bool, gathers: int) -> None:
    """Query, key and value together, and the feed-forward layer: two for each unit, not four.

    In a compiled unit each gathers for itself: torch cannot compile what keeps it for the others.
    """
    layout = Layout(tensor=2)
    counts = []
    for blocks in (1, 2):
        with fake_process_group(0, 2):
            model = ByteModel(blocks=blocks)
            mesh = RankMesh(layout, torch.device("cpu"), 0)
            part = lay_out_model(model, plan(), mesh, Parallel(compile=compiled))
            with torch.compiler.set_stance("force_eager"), CommDebugMode() as seen:  # type: ignore[no-untyped-call]
                part.module(torch.zeros(2, LENGTH, dtype=torch.long))
        counts.append(sum(seen.get_comm_counts().values()))
    # Each unit also scatters the outputs of its two row layers.
    assert counts[1] - counts[0] == gathers + 2


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    """Heads, key-value heads, widths and the number of stages."""
    model = fitted(Layout(pipeline=16, tensor=3))
    said = [problem.message for problem in model.find_problems()]
    for wanted in (
        "does not divide the 4 attention heads",
        "does not divide blocks.0.attention.query, which has 32 to cut",
        "8 units of the plan cannot make 16 stages",
    ):
        assert any(wanted in one for one in said), (wanted, said)
    # All that is the matter with a size is one line, with each width once.
    (line,) = [one for one in said if "to cut" in one]
    assert [int(width) for width in re.findall(r"which has (\d+) to cut", line)] == [32, 128, 64]
    hints = {problem.hint for problem in model.find_problems() if "to cut" in problem.message}
    assert hints == {"sizes that divide them: 2, 4, 8, 16, 32; or leave these layers out of the plan"}


def test_wrong_name_is_one_error_with_the_siblings_that_may_be_meant() -> None:
    """Layers of a Sequential have numbers, and what goes with the missing one is no error too."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))

    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(Block() for _ in range(2))})
    given = Plan(units="layers.*", columns="layers.*.mlp.0", rows="layers.*.mlp.down")
    (one,) = find_plan_problems(model, given, Layout(tensor=2))
    assert one.message == "Plan(rows=…): layers.*.mlp.down matches no module of the model"
    assert one.hint is not None
    siblings = "layers.*.mlp.0 or layers.*.mlp.1 or layers.*.mlp.2"
    assert one.hint.startswith(f"did you mean {siblings}? its modules are layers, layers.*, ")


def test_interleaved_stages_are_twice_as_many() -> None:
    """Each rank has two, and units have to be enough for all."""
    assert fitted(Layout(pipeline=8), schedule="1F1B").find_problems() == ()
    (one,) = fitted(Layout(pipeline=8), schedule="Interleaved1F1B").find_problems()
    assert "8 units of the plan cannot make 16 stages" in one.message
