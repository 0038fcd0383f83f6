"""The plan of `hpckit plan` beside trainings on one real GPU: memory, steps, host and device.

Each row is a launch of its own on this machine, whose GPU nothing else may use.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.commands import hpckit, on_path, run
from hpckit.features.capacity.gpus import GPUS, find_gpu_by_driver_name
from hpckit.features.capacity.model_plan import CapacityPlan
from hpckit.features.capacity.model_setup import (
    AttentionKind,
    GpuSpec,
    NumberType,
    OptimizerKind,
    Recomputation,
)
from hpckit.features.capacity.request import CapacityRequest, plan_capacity

_GIB = 2**30
_STEPS = 12
_PROGRAMS = Path(__file__).parent / "programs"
_GPT2 = {"width": 768, "heads": 12, "layers": 12, "vocab": 50257, "positions": 1024}
_GPT2_MEDIUM = {**_GPT2, "width": 1024, "heads": 16, "layers": 24}
TINY = {"width": 64, "heads": 2, "layers": 2, "vocab": 256, "positions": 32}
"""For a machine without a GPU: shows that the trainings run."""
_CHARLM_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A training: the numbers of its model, rows of a batch, what is computed again, its state."""

    name: str
    shape: Mapping[str, int]
    rows: int
    recompute: Recomputation = Recomputation.none
    optimizer: OptimizerKind = OptimizerKind.adam
    precision: NumberType = NumberType.bf16

    @property
    def point(self) -> dict[str, Any]:
        """The keys of its configuration, with their values."""
        again = "blocks" if self.recompute is Recomputation.full else self.recompute.value
        return {
            **{f"+{key}": value for key, value in self.shape.items()},
            "+rows": self.rows,
            "+steps": _STEPS,
            "+optimizer": self.optimizer.value,
            "parallel.params": self.precision.value,
            "parallel.recompute": again,
        }

    @property
    def words(self) -> tuple[str, ...]:
        """The words that launch it."""
        keys = (f"{key}={value}" for key, value in self.point.items())
        return ("experiment=function", "entry_point=gpt_training:train", *keys)

    def planned(self, gpu: GpuSpec) -> CapacityPlan:
        """Return the plan of it, of kernels that are not compiled."""
        numbers = self.shape
        return plan_capacity(
            CapacityRequest(
                gpu=gpu,
                model=f"hidden={numbers['width']} layers={numbers['layers']} "
                f"heads={numbers['heads']} vocab={numbers['vocab']} "
                f"positions={numbers['positions']} dropout=false",
                micro_batch=self.rows,
                sequence=numbers["positions"],
                recompute=self.recompute,
                optimizer=self.optimizer,
                precision=self.precision,
                attention=AttentionKind.flash,
                fused=False,
            )
        )


def gpu_cases() -> list[Case]:
    """Return the trainings: of two models, by batch, recomputation, optimizer and precision."""
    every = (Recomputation.none, Recomputation.selective, Recomputation.full)
    small, medium = (
        [Case(name=name, shape=shape, rows=32, recompute=one) for one in every]
        for name, shape in (("gpt2", _GPT2), ("gpt2-medium", _GPT2_MEDIUM))
    )
    return [
        *small,
        *medium,
        replace(small[0], rows=4),
        replace(medium[0], rows=4),
        replace(small[0], optimizer=OptimizerKind.sgd),
        replace(small[0], rows=8, precision=NumberType.fp32),
    ]


def bench_gpu(folder: Path) -> None:
    """Print a table of trainings, then charlm, then the transfers between host and GPU."""
    spec = _spec()
    environ = {**on_path(_PROGRAMS), "HPCKIT_OUTPUTS": str(folder / "outputs")}
    if spec is None:
        print("this machine shows no GPU of the catalogue: one tiny training on its CPUs")
        _say(Case(name="tiny", shape=TINY, rows=2), GPUS["A100-80"], environ, gpus=0)
        return
    print(f"{spec.name}: GiB in use and seconds of a step, measured and planned")
    print(
        "model        rows  recompute  optimizer  precision   used  planned (low to high)"
        "   error    step  planned   took longer by"
    )
    for case in gpu_cases():
        _say(case, spec, environ, gpus=1)
    _say_charlm(spec, environ)
    _say_transfers(environ)


def _spec() -> GpuSpec | None:
    """Return the GPU of this machine, by its driver's name; None without one that is known."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    return find_gpu_by_driver_name(run([sys.executable, "-c", code]).stdout.strip())


def _trained(words: tuple[str, ...], environ: Mapping[str, str], gpus: int) -> dict[str, Any]:
    """Launch a training here and wait for it; return what it has logged."""
    here = ["cluster=local", "cluster.gpus_per_node=1", f"resources.gpus_per_node={gpus}"]
    here += ["parallel=none", "--rerun"]
    more = ("code.snapshot=false", "preflight=off", "--wait", "--json")
    command = hpckit("launch", *words, *here, *more)
    launch = json.loads(run(command, env=environ, cwd=_PROGRAMS).stdout)["launch"]
    found = json.loads(run(hpckit("results", launch, "--json"), env=environ, cwd=_PROGRAMS).stdout)
    return dict(found["runs"][0]["metrics"])


def _say(case: Case, gpu: GpuSpec, environ: Mapping[str, str], *, gpus: int) -> None:
    metrics, plan = _trained(case.words, environ, gpus), case.planned(gpu)
    assert plan.rates is not None  # noqa: S101  # the shape is known
    step_s, used = metrics["step_s"], metrics.get("used_bytes")
    memory = f"{plan.memory.low / _GIB:.1f} to {plan.memory.high / _GIB:.1f}"
    planned = f"{plan.memory.expected / _GIB:6.2f} ({memory})"
    error = "" if used is None else f"{100 * (plan.memory.expected / used - 1):+5.1f} %"
    said = "     -" if used is None else f"{used / _GIB:6.2f}"
    longer = 100 * (step_s / plan.rates.step_s - 1)
    print(
        f"{case.name:12} {case.rows:4}  {case.recompute.value:9}  {case.optimizer.value:9}  "
        f"{case.precision.value:9} {said}  {planned:22} {error:8} {step_s:7.4f}  "
        f"{plan.rates.step_s:7.4f}  {longer:+.0f} %",
        flush=True,
    )


def charlm_plan(gpu: GpuSpec) -> CapacityPlan:
    """Return the plan of the shipped experiment."""
    return plan_capacity(
        CapacityRequest(
            gpu=gpu,
            model="hidden=96 layers=4 heads=4 vocab=256 positions=128 dropout=false",
            micro_batch=32,
            sequence=128,
            precision=NumberType.fp32,
            attention=AttentionKind.flash,
        )
    )


def _say_charlm(gpu: GpuSpec, environ: Mapping[str, str]) -> None:
    """Compare the memory of the shipped experiment, which computes in 32 bits."""
    words = ("experiment=charlm", "entry_point=gpt_training:train_charlm", "resources=one_gpu")
    metrics = _trained((*words, f"steps={_CHARLM_STEPS}"), environ, gpus=1)
    plan = charlm_plan(gpu)
    used, expected = metrics["used_bytes"], plan.memory.expected
    print(
        f"charlm, 32 rows of 128: {used / _GIB:.2f} GiB in use, {expected / _GIB:.2f} planned "
        f"({plan.memory.low / _GIB:.2f} to {plan.memory.high / _GIB:.2f})"
    )


def _say_transfers(environ: Mapping[str, str]) -> None:
    """Show what `hpckit bench comm` says of the way between host and GPU."""
    words = hpckit("bench", "comm", "cluster=local", "cluster.gpus_per_node=1", "resources=one_gpu")
    print(run(words, env={**os.environ, **environ}, cwd=_PROGRAMS).stdout)
