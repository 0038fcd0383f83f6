"""What `run` is given by the user: wrong types are refused before anything is computed.

Checks look at types and shapes alone, on the host, and wait for no device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import wraps
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from hpckit.errors import UsageError
from hpckit.model.parallel.plan import Plan
from hpckit.model.parallel.share import BatchShare

LossFunction = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor | float]]
"""Takes outputs and targets of some rows; returns a mean over them, or a sum and its weight."""

_WHOLE = (torch.int64, torch.uint8)
"""Types that torch's cross entropy takes for the numbers of classes."""


def describe_type_and_shape(value: Any) -> str:
    """Return what a value is, for a message: its type, and the shape of a tensor."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def check_parallelize_arguments(build: Any, plan: Any = None, init: Any = None) -> None:
    """Raise UsageError unless these are a function that builds a model, a plan and an `init`."""
    if isinstance(build, nn.Module):
        name = type(build).__name__
        raise UsageError(
            f"run.parallelize() got a model, a {name}, and takes the function that builds it: each "
            "rank builds the model to keep its own part of it",
            hint=f"run.parallelize(lambda: {name}(…), plan)",
        )
    if not callable(build):
        raise UsageError(
            f"run.parallelize() got {describe_type_and_shape(build)}, and takes a function that builds the "
            "model",
            hint="run.parallelize(lambda: Model(…), plan)",
        )
    if plan is not None and not isinstance(plan, Plan):
        raise UsageError(
            f"run.parallelize() got {describe_type_and_shape(plan)} as its plan, and takes a hpckit.Plan or "
            "None",
            hint='from hpckit import Plan; Plan(units="blocks.*")',
        )
    if init is not None and not callable(init):
        raise UsageError(
            f"run.parallelize() got init={describe_type_and_shape(init)}, and takes a function or None",
            hint="init=hpckit.reset_parameters, or a function init(name, module)",
        )


def wrap_builder_with_result_check(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return the same function, which raises UsageError if it returns something else."""

    @wraps(build, updated=())
    def build_checked() -> nn.Module:
        model: Any = build()
        if isinstance(model, nn.Module):
            return model
        raise UsageError(
            f"the function that run.parallelize() got returned {describe_type_and_shape(model)}, and has to "
            "return the model, a torch.nn.Module",
            hint="return the model: run.parallelize(lambda: Model(…), plan)",
        )

    return build_checked


def refuse_non_module(call: str, model: Any) -> None:
    """Raise UsageError unless this may be a model that `run.parallelize` returned."""
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"run.{call}() got {describe_type_and_shape(model)} as the model, and takes the model itself, "
            "as run.parallelize() returned it, not its parameters or its name",
            hint=f"model = run.parallelize(build, plan); run.{call}(model, …)",
        )


def check_batch_types(call: str, inputs: Any, targets: Any, loss: Any, *, staged: bool) -> None:
    """Raise UsageError for a batch of other types than the loss and the layout take.

    `staged`: pipeline stages cut the targets into microbatches.
    """
    if loss is not None and not callable(loss):
        raise UsageError(
            f"run.{call}() got loss={describe_type_and_shape(loss)}, and takes a function or None",
            hint="loss=lambda outputs, targets: …, which returns a mean over rows",
        )
    if not isinstance(inputs, Tensor) or not inputs.dim():
        raise UsageError(
            f"run.{call}() got {describe_type_and_shape(inputs)} as inputs, and takes one tensor [rows, …]",
            hint="several inputs go into one tensor, which forward takes apart; a numpy array "
            "becomes one by torch.from_numpy(…)",
        )
    if loss is None:
        _check_class_targets(call, targets)
    elif staged and not isinstance(targets, Tensor):
        raise UsageError(
            f"run.{call}() got {describe_type_and_shape(targets)} as targets, and parallel.pipeline takes "
            "one tensor [rows, …]",
            hint="put them into one tensor, which loss takes apart",
        )


def _check_class_targets(call: str, targets: Any) -> None:
    if not isinstance(targets, Tensor):
        raise UsageError(
            f"run.{call}() got {describe_type_and_shape(targets)} as targets; without loss= the cross "
            "entropy is taken, of one tensor of class numbers",
            hint="give targets as a tensor of int64 [rows, …], or a function of your own: loss=",
        )
    if targets.dtype not in _WHOLE:
        raise UsageError(
            f"run.{call}() got {describe_type_and_shape(targets)} as targets; without loss= the cross "
            "entropy is taken, of class numbers in int64",
            hint="targets.long() for numbers of classes; for anything else, such as probabilities "
            "or values, give a function of your own: loss=",
        )


def check_batch_share_type(share: Any) -> None:
    """Raise UsageError unless this is a rank's share of a batch, or None."""
    if share is not None and not isinstance(share, BatchShare):
        raise UsageError(
            f"run.train_step() got share={describe_type_and_shape(share)}, and takes what "
            "run.share(batch_size) returned, or None",
            hint="share = run.share(batch_size); run.train_step(model, inputs, targets, share=share)",
        )


def check_batch_size(value: Any) -> int:
    """Return a number of rows; raises UsageError if it is no whole number."""
    is_flag = isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool)
    try:
        if not is_flag:
            return operator.index(value)
    except TypeError:
        pass
    raise UsageError(
        f"run.share() got {describe_type_and_shape(value)}, and takes the number of rows of the batch of "
        "all ranks, a whole number",
        hint="run.share(len(batch)), or a whole number such as batch // 2",
    )


def check_max_norm(value: Any) -> float:
    """Return what gradients are scaled to; raises UsageError unless it is a number above 0.

    A tensor on a device is taken as it is: to look at its value is to wait for the device.
    """
    if isinstance(value, Tensor) and value.numel() == 1 and value.device.type != "cpu":
        return value  # type: ignore[return-value]  # as torch's own function takes it
    is_number = isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)
    if not is_number or isinstance(value, bool) or not float(value) > 0:
        raise UsageError(
            f"run.clip_grad_norm_() got max_norm={describe_type_and_shape(value)}, and takes a number above "
            "0",
            hint='run.clip_grad_norm_(model, 1.0); float("inf") measures the norm and scales nothing',
        )
    return float(value)


def check_single_number(value: Any) -> None:
    """Raise UsageError unless this is one real number, also in a tensor or an array."""
    try:
        found = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        found = None
    is_one = found is not None and found.numel() == 1 and not found.is_complex()
    if not is_one or hasattr(value, "full_tensor"):
        raise UsageError(
            f"run.mean() got {describe_type_and_shape(value)}, and takes one number, or a tensor with one",
            hint="for several numbers: run.mean(value.mean()); for a DTensor, call .full_tensor() "
            "on it first",
        )
