"""Wrong arguments of `run` are refused by an error that says what it got, and what to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from hpckit import Plan
from hpckit.errors import UsageError
from hpckit.model.parallel.layout import Layout
from hpckit.model.rank import RankInfo, RankSource
from hpckit.runtime.rank.parallel_run import ParallelRun

X, Y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
ALONE = RankInfo(
    rank=0,
    world_size=1,
    local_rank=0,
    local_world_size=1,
    node_rank=0,
    num_nodes=1,
    source=RankSource.torchrun,
)


@pytest.fixture(scope="module", name="run")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the run of a world of one rank."""
    store = tmp_path_factory.mktemp("world") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield ParallelRun(info=ALONE, device=torch.device("cpu"))
    dist.destroy_process_group()


@pytest.fixture(scope="module", name="model")
def model_fixture(run: Any) -> Any:
    """Return a model that it trains."""
    return run.parallelize(lambda: nn.Linear(3, 2))


def squared(outputs: Any, targets: Any) -> Any:
    """Return a mean over rows that takes any targets."""
    del targets
    return outputs.square().mean()


@pytest.mark.parametrize("value", [16777217.0, 0.1, 2**40 + 1, np.float64(0.1)])
def test_mean_of_a_number_is_exact(run: Any, value: Any) -> None:
    """A Python float has more digits than torch's default type."""
    assert run.mean(value) == value


BATCHES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "inputs in a dictionary": ({"x": X}, Y, {}, "got a dict as inputs, and takes one tensor"),
    "inputs in a tuple": ((X, X), Y, {}, "got a tuple as inputs"),
    "inputs of numpy": (X.numpy(), Y, {}, "got a ndarray as inputs"),
    "no inputs": (None, Y, {}, "got None as inputs"),
    "a number": (torch.tensor(3), Y, {}, r"a tensor of int64 \[\] as inputs"),
    "no targets": (X, None, {}, "got None as targets; without loss="),
    "targets in a list": (X, [Y], {}, "got a list as targets; without loss="),
    "targets of numpy": (X, Y.numpy(), {}, "got a ndarray as targets; without loss="),
    "probabilities": (X, torch.rand(4, 2), {}, r"a tensor of float32 \[4, 2\] as targets"),
    "short numbers": (X, Y.int(), {}, "class numbers in int64"),
    "loss of a name": (X, Y, {"loss": "mse"}, "got loss='mse', and takes a function"),
}


@pytest.mark.parametrize("call", ["train_step", "evaluate"])
@pytest.mark.parametrize("name", BATCHES)
def test_wrong_batch_is_refused(run: Any, model: Any, name: str, call: str) -> None:
    """It would fail somewhere inside, or on one stage of a pipeline only."""
    inputs, targets, options, words = BATCHES[name]
    with pytest.raises(UsageError, match=words) as caught:
        getattr(run, call)(model, inputs, targets, **options)
    assert f"run.{call}()" in caught.value.message
    assert caught.value.hint


CALLS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "share of a number": (lambda run, m: run.train_step(m, X, Y, share=8), "got share=8, and"),
    "parameters": (lambda run, m: run.clip_grad_norm_(m.parameters(), 1.0), "a generator as the"),
    "no model": (lambda run, _: run.train_step(None, X, Y), "got None as the model"),
    "norm of a text": (lambda run, m: run.clip_grad_norm_(m, "a"), "max_norm='a'"),
    "negative norm": (lambda run, m: run.clip_grad_norm_(m, -1.0), "max_norm=-1.0"),
    "norm of 0": (lambda run, m: run.clip_grad_norm_(m, 0), "a number above 0"),
    "norm that is none": (lambda run, m: run.clip_grad_norm_(m, float("nan")), "max_norm=nan"),
    "norm of a flag": (lambda run, m: run.clip_grad_norm_(m, True), "max_norm=True"),  # noqa: FBT003
    "mean of several": (lambda run, _: run.mean(torch.ones(3)), r"a tensor of float32 \[3\]"),
    "mean of none": (lambda run, _: run.mean([]), "run.mean.. got a list"),
    "mean of a text": (lambda run, _: run.mean("a"), "got 'a', and takes one number"),
    "complex mean": (lambda run, _: run.mean(1j), "got a complex"),
    "share of a part": (lambda run, _: run.share(8.0), "got 8.0, and takes the number of rows"),
    "share of a flag": (lambda run, _: run.share(True), "run.share.. got True"),  # noqa: FBT003
    "share of none": (lambda run, _: run.share(0), "a batch of 0 rows cannot be shared out"),
    "share below 0": (lambda run, _: run.share(-3), "a batch of -3 rows"),
    "a model": (lambda run, _: run.parallelize(nn.Linear(3, 2)), "got a model, a Linear"),
    "a text": (lambda run, _: run.parallelize("Linear"), "got 'Linear', and takes a function"),
    "builds nothing": (lambda run, _: run.parallelize(lambda: None), "returned None, and has to"),
    "plan of a dictionary": (
        lambda run, _: run.parallelize(lambda: nn.Linear(3, 2), {"units": "blocks.*"}),
        "got a dict as its plan",
    ),
    "init of a name": (
        lambda run, _: run.parallelize(lambda: nn.Linear(3, 2), Plan(), init="zeros"),
        "got init='zeros'",
    ),
    "detached loss": (
        lambda run, m: run.train_step(m, X, Y, loss=lambda o, _: o.detach().mean()),
        "the loss of this step has no gradient",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_argument_is_refused(run: Any, model: Any, name: str) -> None:
    """The error has the value, what is allowed and what to do."""
    call, words = CALLS[name]
    with pytest.raises(UsageError, match=words) as caught:
        call(run, model)
    assert caught.value.hint


def test_step_without_gradients_is_refused(run: Any, model: Any) -> None:
    """Also where it is the caller that switched them off."""
    with torch.no_grad(), pytest.raises(UsageError, match="has no gradient"):
        run.train_step(model, X, Y)


def test_stages_take_one_tensor_of_targets() -> None:
    """Torch would cut nothing else into microbatches, on the last stage alone."""
    staged = ParallelRun(info=ALONE, device=torch.device("cpu"), layout=Layout(pipeline=2))
    with pytest.raises(UsageError, match=r"a dict as targets, and parallel\.pipeline takes"):
        staged.train_step(nn.Linear(3, 2), X, {"y": Y}, loss=squared)


@pytest.mark.parametrize("targets", [None, [Y], Y.numpy(), {"y": Y}, "any"])
def test_loss_of_the_user_may_take_any_targets(run: Any, model: Any, targets: Any) -> None:
    """Only the cross entropy needs class numbers."""
    assert float(run.train_step(model, X, targets, loss=squared)) > 0
    assert float(run.evaluate(model, X, targets, loss=squared)) > 0


@pytest.mark.parametrize("value", [2, 2.0, True, np.float32(2), np.array(2.0), torch.tensor([2]), [2]])
def test_mean_takes_one_number_of_any_kind(run: Any, value: Any) -> None:
    """Of Python, numpy and torch."""
    assert run.mean(value) == float(torch.as_tensor(value))


@pytest.mark.parametrize("norm", [1, 0.5, float("inf"), np.float64(1), torch.tensor(1.0)])
def test_gradients_are_clipped_to_any_number_above_0(run: Any, model: Any, norm: Any) -> None:
    """Infinity measures the norm and scales nothing."""
    model.zero_grad()
    run.train_step(model, X, Y.byte())
    before = float(run.clip_grad_norm_(model, norm))
    assert float(run.clip_grad_norm_(model, norm)) == pytest.approx(min(before, float(norm)), 1e-4)


@pytest.mark.parametrize("size", [8, np.int64(8), torch.tensor(8)])
def test_share_takes_whole_numbers_of_any_kind(run: Any, size: Any) -> None:
    """Its own numbers are Python's."""
    share = run.share(size)
    assert (share.stop, type(share.stop)) == (8, int)


def test_model_may_be_built_by_any_callable(run: Any) -> None:
    """A class, a part of a function, or an object that is called."""

    class Builder:
        def __call__(self) -> nn.Module:
            return nn.Linear(2, 2)

    for build in (nn.Identity, Builder()):
        assert isinstance(run.parallelize(build), nn.Module)
