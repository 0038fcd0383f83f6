"""What would train wrongly without a word is refused: by the plan, or at the first step."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from byte_model import ByteModel, plan
from torch import nn

from hpckit import Plan
from hpckit.errors import ConfigError, UsageError
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.settings import Parallel
from hpckit.model.rank import RankInfo, RankSource
from hpckit.runtime.model_check.model_fit import FittedModel
from hpckit.runtime.parallel.batch_checks import (
    check_sequence_divides_evenly,
    check_target_rows,
    gradient_sums_differ,
)
from hpckit.runtime.parallel.build import build_seeded_model, find_sharding_problems
from hpckit.runtime.parallel.loss.loss_check import KnownLosses
from hpckit.runtime.parallel.loss.step_loss import summed_cross_entropy
from hpckit.runtime.parallel.model_checks import check_plan_and_list_units, find_plan_problems
from hpckit.runtime.parallel.pipeline_split import divide_units_into_stages
from hpckit.runtime.rank.parallel_run import ParallelRun

TENSOR = Layout(tensor=2)


class FusedBlock(nn.Module):
    """Three projections in one matrix, as many models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)


def fused() -> nn.Module:
    """Return a model of such blocks."""
    return nn.ModuleDict({"blocks": nn.ModuleList(FusedBlock() for _ in range(2))})


def test_fused_projections_are_refused() -> None:
    """Cut by rows, each rank would take other projections for its own."""
    cut = Plan(units="blocks.*", columns="blocks.*.projections", rows="blocks.*.out")
    with pytest.raises(ConfigError, match=r"blocks.0.projections has 24 outputs") as caught:
        check_plan_and_list_units(fused(), cut, TENSOR)
    assert "one layer of each projection" in caught.value.hint


def test_grouped_queries_are_no_fused_projections() -> None:
    """Keys and values of fewer heads divide what the row layer takes."""
    model = ByteModel(blocks=1)
    block: Any = model.blocks[0]
    block.attention.key = nn.Linear(32, 16, bias=False)
    assert check_plan_and_list_units(model, plan(heads={"blocks.*": (4, 2)}), TENSOR) == ("blocks.0",)


def test_unequal_parts_of_sequences_are_not_passed_between_stages() -> None:
    """Each stage takes them for equal; without stages DTensors know which rank has how many."""
    odd = Layout(pipeline=2, tensor=2)
    with pytest.raises(UsageError, match="15 positions cannot be cut into 2 equal parts"):
        check_sequence_divides_evenly(odd, 15)
    check_sequence_divides_evenly(odd, 16)
    check_sequence_divides_evenly(Layout(tensor=2), 15)
    with pytest.raises(UsageError, match="18 positions cannot be cut into 4 equal parts"):
        check_sequence_divides_evenly(Layout(pipeline=2, context=2, tensor=2), 18)


def test_targets_of_other_rows_are_refused() -> None:
    """They would be spread over the inputs, or fail in the middle of a pipeline."""
    with pytest.raises(UsageError, match=r"inputs are \[4, 8\], and targets \[2, 8\]"):
        check_target_rows(torch.zeros(4, 8), torch.zeros(2, 8))
    check_target_rows(torch.zeros(4, 8), {"anything": 1})


@pytest.mark.parametrize(
    ("changes", "layout", "message"),
    [
        ({"units": "layers.*"}, TENSOR, r"Plan\(units=…\): layers.\* matches no module"),
        ({"units": ()}, TENSOR, "names no units"),
        ({"columns": "blocks.*.nothing"}, TENSOR, "matches no module"),
        ({"heads": {"blocks.*": (4, 4)}}, Layout(tensor=3), "divide the 4 attention heads"),
        ({"heads": {"blocks.*": (4, 2)}}, Layout(tensor=4), "divide the 2 key-value heads"),
        ({"heads": {}}, Layout(tensor=3), "does not divide blocks.0.attention.query"),
        ({"columns": (), "rows": ()}, TENSOR, "cuts no matrices"),
        ({"rows": ("blocks.*.attention_norm",)}, TENSOR, "is a LayerNorm"),
        ({"rows": ("blocks.*.up",)}, TENSOR, "in both columns and rows"),
        ({"tied": ()}, TENSOR, "are one parameter, but the plan does not say so"),
        ({"tied": (("embed.weight", "tail.weight"),)}, TENSOR, "no parameter tail.weight"),
        ({"tied": (("embed.weight", "place.weight"),)}, TENSOR, "are two parameters"),
        (
            {"columns": ("blocks.*.up",), "rows": ("blocks.*.down", "embed", "head")},
            Layout(pipeline=2, tensor=2),
            "is tied to embed.weight, which the plan cuts in another way",
        ),
        (
            {"columns": ("blocks.*.up",), "rows": ("blocks.*.down", "embed")},
            Layout(pipeline=2, tensor=2),
            "is tied to embed.weight, which the plan cuts in another way",
        ),
        ({"last": ("head",)}, Layout(pipeline=2), "norm.weight belongs to no unit"),
    ],
)
def test_plan_that_does_not_fit_is_refused(changes: dict[str, Any], layout: Layout, message: str) -> None:
    """The error names the field and the module, and says what to do."""
    with pytest.raises(ConfigError, match=message) as caught:
        check_plan_and_list_units(ByteModel(), plan(**changes), layout)
    assert caught.value.hint or "both" in message


@pytest.mark.parametrize(
    "fields",
    [
        {"units": 3},
        {"units": ("",)},
        {"tied": ("a",)},
        {"tied": (("a", "a"),)},
        {"heads": {"blocks.*": 4}},
        {"heads": {"blocks.*": (4, 3)}},
    ],
)
def test_what_is_no_plan_is_refused(fields: dict[str, Any]) -> None:
    """Whatever the model."""
    with pytest.raises(ConfigError) as caught:
        Plan(**fields)
    assert caught.value.hint


def test_fewer_units_than_stages_are_refused() -> None:
    """A stage without a unit would do nothing."""
    assert divide_units_into_stages(["a", "b", "c", "d", "e"], 2) == [["a", "b", "c"], ["d", "e"]]
    with pytest.raises(ConfigError, match="3 units of the plan cannot make 4 stages"):
        divide_units_into_stages(["a", "b", "c"], 4)


CASES: dict[str, dict[str, Any]] = {
    "different batches in a tensor group": {"layout": {"tensor": 2}, "wrong": "own batches"},
    "batches that part in step 3": {"layout": {"pipeline": 2}, "wrong": "batches part"},
    "uneven shares without weights": {"layout": {"shard": 2}, "wrong": "no share", "rows": 7},
    "weights between columns and rows": {"layout": {"tensor": 2}, "wrong": "query norm"},
    "share of another batch": {"layout": {"shard": 2}, "wrong": "other share"},
    "parts of a batch": {"layout": {"shard": 2}, "parallel": {"microbatches": 3}},
    "microbatches": {"layout": {"pipeline": 2}, "rows": 7},
    "odd sequence": {"layout": {"context": 2}, "wrong": "odd sequence"},
    "called directly": {"layout": {"context": 2}, "wrong": "called directly"},
    "stages called": {"layout": {"pipeline": 2}, "wrong": "called directly"},
    "another model": {"layout": {"shard": 2}, "wrong": "another model"},
    "rows for none": {"layout": {"shard": 2}, "rows": 1},
}
EXPECTED = {
    "different batches in a tensor group": "ranks 0 and 1 got different batches",
    "batches that part in step 3": "ranks 0 and 1 got different batches",
    "uneven shares without weights": "data ranks have 3 to 4 rows",
    "weights between columns and rows": "query_norm.weight, blocks.0.attention.query_norm.bias",
    "share of another batch": "the batch has 4 rows, and the share 3",
    "parts of a batch": "cannot be cut into parallel.microbatches=3",
    "microbatches": "a batch of 7 rows on this rank cannot be cut into 2 to 4 equal parts",
    "odd sequence": "sequences of 14 positions cannot be cut into 4 equal pieces",
    "called directly": "attention was called outside of run.train_step",
    "stages called": "this ByteModel was called, but with parallel.pipeline it is this rank",
    "another model": "this Linear was not made by run.parallelize()",
    "rows for none": "a batch of 1 rows cannot be shared out over 2 data ranks",
}
PROGRAM = "equality_program.py"


@pytest.mark.training
@pytest.mark.parametrize("name", CASES)
def test_wrong_step_is_refused_on_every_rank(found: list[dict[str, Any]], name: str) -> None:
    """All ranks raise at the same step, so that none waits for the others."""
    for one in found:
        assert "error" in one[name], one[name]
        assert EXPECTED[name] in one[name]["message"]
        assert one[name]["hint"]


def test_model_is_built_the_same_whatever_was_drawn_before() -> None:
    """Initialisation depends on the seed alone."""
    torch.manual_seed(1)
    first = build_seeded_model(ByteModel, 5)
    drawn = torch.rand(3)
    second = build_seeded_model(ByteModel, 5)
    other = build_seeded_model(ByteModel, 6)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))  # and does not disturb what is drawn after
    weights = [dict(one.named_parameters())["blocks.0.up.weight"] for one in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_layout_that_the_code_does_not_use_is_refused() -> None:
    """Else status would tell of a layout, and every rank would train the whole model."""
    info = RankInfo(
        rank=0,
        world_size=2,
        local_rank=0,
        local_world_size=2,
        node_rank=0,
        num_nodes=1,
        source=RankSource.torchrun,
    )
    run = ParallelRun(info=info, device=torch.device("cpu"), layout=TENSOR)
    with pytest.raises(UsageError, match="the layout is tensor 2, but this code uses neither"):
        run.check_layout_in_use()
    ParallelRun(info=info, device=torch.device("cpu"), layout=Layout(replicate=2)).check_layout_in_use()


class SharedLayer(nn.Module):
    """Two units have one layer, and a number without a dimension."""

    def __init__(self, *, scalar: bool) -> None:
        super().__init__()
        units = [nn.ModuleDict({"up": nn.Linear(4, 4)}) for _ in range(4)]
        if scalar:
            units[1].gate = nn.Parameter(torch.ones(()))
        else:
            units[3]["up"] = units[0]["up"]
        self.blocks = nn.ModuleList(units)


@pytest.mark.parametrize(
    ("layout", "refused"),
    [
        (Layout(shard=2), True),
        (Layout(tensor=2, replicate=2), True),
        (Layout(tensor=2), False),
        (Layout(pipeline=2), False),
        (Layout(pipeline=2, shard=2), False),
        (Layout(replicate=2), False),
    ],
)
def test_layer_of_two_units_is_refused_where_units_are_sharded(layout: Layout, *, refused: bool) -> None:
    """Torch would say something of meshes; in stages of their own each is sharded by itself."""
    tied = tuple((f"blocks.0.up.{one}", f"blocks.3.up.{one}") for one in ("weight", "bias"))
    cut = Plan(units="blocks.*", tied=tied, columns="blocks.*.up", rows="blocks.1.up")
    units = [f"blocks.{number}" for number in range(4)]
    model = SharedLayer(scalar=False)
    problems = list(find_sharding_problems(model, cut, units, layout, Parallel()))
    assert bool(problems) is refused
    if refused:
        assert "blocks.0.up.weight and blocks.3.up.weight are one parameter" in problems[0].message


def test_parameter_without_a_dimension_is_refused_where_it_is_sharded() -> None:
    """`hpckit check` names it, too."""
    cut = Plan(units="blocks.*")
    fitted = FittedModel(
        model=SharedLayer(scalar=True), plan=cut, layout=Layout(shard=2), settings=Parallel()
    )
    (problem,) = fitted.find_problems()
    assert "blocks.1.gate is a scalar without a dimension" in problem.message
    assert "torch.ones(1)" in problem.hint


def test_weight_that_is_computed_from_others_is_not_cut() -> None:
    """Torch would fail in the backward pass, at an operation that it has no rule for."""
    model = ByteModel(blocks=1)
    block: Any = model.blocks[0]
    nn.utils.parametrizations.weight_norm(block.up)
    with pytest.raises(ConfigError, match=r"blocks.0.up computes its weight from other"):
        check_plan_and_list_units(model, plan(), TENSOR)


def test_layer_of_two_units_is_cut_alike_under_each_name() -> None:
    """A module with two names is one: the plan names it once."""
    tied = tuple((f"blocks.0.up.{one}", f"blocks.3.up.{one}") for one in ("weight", "bias"))
    cut = Plan(units="blocks.*", tied=tied, columns="blocks.*.up", rows="blocks.*.down")
    problems = find_plan_problems(SharedLayer(scalar=False), cut, TENSOR)
    assert not [problem for problem in problems if "in another way" in problem.message]


def test_loss_of_small_numbers_is_summed_in_float32() -> None:
    """Over some thousand targets bfloat16 would be a percent off."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 2**15, 16, generator=generator).bfloat16().requires_grad_()
    targets = torch.randint(16, (1, 2**15), generator=generator)
    summed = summed_cross_entropy(logits, targets)
    exact = summed_cross_entropy(logits.double(), targets)
    assert float((summed / exact).detach()) == pytest.approx(1, abs=1e-5)
    assert torch.autograd.grad(summed, logits)[0].dtype is torch.bfloat16


def test_functions_that_are_made_again_in_each_step_are_one() -> None:
    """Else each step would look at its loss, and wait for all ranks."""
    known, scale = KnownLosses(), torch.ones(())

    def loss(outputs: Any, _: Any, factor: Any = 1.0) -> Any:
        return (outputs * scale * factor).mean()

    def made(factor: torch.Tensor) -> Any:
        return lambda outputs, _: (outputs * factor).mean()

    assert known.find_loss_and_count_step(loss) is known.find_loss_and_count_step(loss)
    assert known.find_loss_and_count_step(partial(loss, factor=scale)) is known.find_loss_and_count_step(
        partial(loss, factor=scale)
    )
    assert known.find_loss_and_count_step(partial(loss, factor=scale)) is not known.find_loss_and_count_step(
        loss
    )
    assert known.find_loss_and_count_step(made(scale)) is not known.find_loss_and_count_step(
        made(torch.zeros(()))
    )
    in_each_step = [
        known.find_loss_and_count_step(lambda outputs, _: outputs.mean() * scale) for _ in range(3)
    ]
    assert in_each_step[0] is in_each_step[1] is in_each_step[2]
    others = [known.find_loss_and_count_step(made(torch.zeros(()))) for _ in range(9)]
    assert others[0].is_checked_step
    assert not others[-1].is_checked_step


@pytest.mark.parametrize(
    ("sums", "wrong"),
    [
        ((1.0, 1.0), False),
        ((1.0, 1.0005), False),
        ((1.0, 2.0), True),
        ((float("nan"), 1.0), True),
        ((1.0, float("inf")), True),
        ((float("inf"), float("nan")), False),
        ((0.0, 0.0), False),
    ],
)
def test_gradients_of_a_tensor_group_differ(sums: tuple[float, ...], wrong: bool) -> None:  # noqa: FBT001
    """Also if one rank's alone is not finite; a loss scale that is too large is no such error."""
    assert gradient_sums_differ(sums) == wrong
