"""Trainings beside their plan, and one in every layout, each as a run of hpckit."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.gpu import TINY, Case, charlm_plan, gpu_cases

from gpu_check.scene import UNDER_WAY, Launched, MeasureError, NotRunError, Scene, failure_words
from hpckit.features.capacity.gpus import GPUS, find_gpu_by_driver_name
from hpckit.features.capacity.model_plan import CapacityPlan
from hpckit.features.capacity.model_setup import GpuSpec, NumberType
from hpckit.model.environment.torch_version import OLDEST_FOR_LAYOUTS, format_version, is_version_older

_FUNCTION = ("experiment=function", "preflight=off")
_CHARLM_STEPS = 20
_LAYOUTS = ("none", "fsdp", "hsdp", "tensor", "pipeline", "context")
_BASE: Mapping[str, Any] = {
    "parallel": "none",
    "parallel.params": "bf16",
    "parallel.recompute": "none",
    "parallel.compile": False,
    "attention": "any",
}
_PROFILED_PATIENCE_S = 60
_PROFILED_ROWS = 32
"""Enough that kernels, and not Python, take the time."""


def too_old(scene: Scene) -> str:
    """Return why this torch is not for layouts, and not for bf16; empty if it is."""
    torch = scene.machine.torch
    if not is_version_older(torch, OLDEST_FOR_LAYOUTS) or scene.machine.older_torch:
        return ""
    return f"torch {torch} is older than {format_version(OLDEST_FOR_LAYOUTS)}, and --older-torch is not set"


def _spec(scene: Scene) -> GpuSpec:
    if not scene.machine.on_gpu:
        return GPUS["A100-80"]
    spec = find_gpu_by_driver_name(scene.machine.gpu)
    if spec is None:
        raise NotRunError(f"hpckit's catalogue does not know {scene.machine.gpu}")
    return spec


def measure_memory(scene: Scene) -> dict[str, Any]:
    """Train GPTs of different batch, recomputation and optimizer; add what is planned of each."""
    spec, reason = _spec(scene), too_old(scene)
    all_cases = gpu_cases() if scene.machine.on_gpu else _tiny_cases()
    cases = [case for case in all_cases if not reason or case.precision is NumberType.fp32]
    left = [f"{_named(case)}: {reason}" for case in all_cases if case not in cases]
    measured = {"gpu": spec.name, "on_gpu": scene.machine.on_gpu, "left_out": left}
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(case.name for case in cases):
        own = [case for case in cases if case.name == name]
        points = [one.point for one in own]
        train = (*_FUNCTION, "entry_point=gpu_work:train_gpt", "parallel=none")
        for row, case in zip(_rows(scene.sweep(points, *train)), own, strict=True):
            rows.append({"case": _named(case), **row, **_planned(case.planned(spec))})
        scene.keep({**measured, "rows": rows})
    return {**measured, "rows": rows}


def _tiny_cases() -> list[Case]:
    tiny = Case(name="tiny", shape=TINY, rows=2)
    return [tiny, replace(tiny, rows=4, precision=NumberType.fp32)]


def _named(case: Case) -> str:
    words = (case.recompute.value, case.optimizer.value, case.precision.value)
    return f"{case.name}, {case.rows} rows, recompute {', '.join(words)}"


def _planned(plan: CapacityPlan) -> dict[str, Any]:
    memory = plan.memory
    return {
        "low_bytes": memory.low,
        "high_bytes": memory.high,
        "planned_bytes": memory.expected,
        "planned_step_s": plan.rates.step_s if plan.rates else None,
    }


def _rows(launched: Launched) -> list[dict[str, Any]]:
    """Return for each run of a sweep what it logged, and why it failed if it did."""
    return [
        {"failure": failure_words(run), **metrics}
        for run, metrics in zip(launched.runs(), launched.metrics(), strict=True)
    ]


def measure_charlm(scene: Scene) -> dict[str, Any]:
    """Train charlm as it is shipped for some steps; add what is planned."""
    spec = _spec(scene)
    steps = _CHARLM_STEPS if scene.machine.on_gpu else 2
    launched = scene.launch(
        *("experiment=charlm", "entry_point=gpu_work:train_charlm", "preflight=off"),
        *("resources.tasks_per_node=1", f"steps={steps}", "evaluate_every=1000"),
    )
    row = _rows(launched)[0]
    return {"on_gpu": scene.machine.on_gpu, **row, **_planned(charlm_plan(spec))}


def measure_layouts(scene: Scene) -> dict[str, Any]:
    """Train one transformer in each layout of a single rank, recomputed, compiled, by kernels."""
    reason = too_old(scene)
    wanted = dict(_layout_points(on_gpu=scene.machine.on_gpu))
    names = [one for one, point in wanted.items() if not reason or _for_any_torch(point)]
    big = scene.machine.on_gpu
    sizes = {"width": 512, "heads": 8, "context": 512, "rows": 16, "steps": 12}
    tiny = {"width": 32, "heads": 2, "context": 32, "rows": 2, "steps": 3}
    words = [f"+{key}={value}" for key, value in (sizes if big else tiny).items()]
    points = [{_key(key): one for key, one in wanted[name].items()} for name in names]
    launched = scene.sweep(
        points, *_FUNCTION, "entry_point=gpu_work:lay_out", *words, "cluster.max_parallel=4"
    )
    rows = dict(zip(names, _rows(launched), strict=True))
    left = [f"{name}: {reason}" for name in wanted if name not in names]
    return {"on_gpu": big, "rows": rows, "left_out": left}


def _key(key: str) -> str:
    return "+attention" if key == "attention" else key


def _for_any_torch(point: Mapping[str, Any]) -> bool:
    return (point["parallel"], point["parallel.params"]) == ("none", "fp32")


def _layout_points(*, on_gpu: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and keys; `none, fp32` is the measure of the others."""
    base = dict(_BASE)
    yield "none, fp32", {**base, "parallel.params": "fp32"}
    for again in ("blocks", "selective"):
        yield (
            f"none, fp32, recompute {again}",
            {**base, "parallel.params": "fp32", "parallel.recompute": again},
        )
    for name in _LAYOUTS:
        yield f"{name}, bf16", {**base, "parallel": name}
    for again in ("blocks", "selective"):
        yield (f"fsdp, bf16, recompute {again}", {**base, "parallel": "fsdp", "parallel.recompute": again})
    if not on_gpu:
        return
    for kind in ("flash", "math"):
        yield f"fsdp, bf16, attention {kind}", {**base, "parallel": "fsdp", "attention": kind}
    yield "fsdp, bf16, offload", {**base, "parallel": "fsdp", "parallel.offload": True}
    yield "none, fp32, compiled", {**base, "parallel.params": "fp32", "parallel.compile": True}
    yield (
        "fsdp, bf16, compiled, recompute blocks, attention flash",
        {
            **base,
            "parallel": "fsdp",
            "parallel.compile": True,
            "parallel.recompute": "blocks",
            "attention": "flash",
        },
    )


def measure_profile(scene: Scene) -> dict[str, Any]:
    """Start a training, and ask it for a profile of five steps."""
    large = next(case for case in gpu_cases() if case.rows == _PROFILED_ROWS)
    case = large if scene.machine.on_gpu else Case(name="tiny", shape=TINY, rows=2)
    precision = NumberType.fp32 if too_old(scene) else case.precision
    words = replace(case, precision=precision).words
    endless = tuple("+steps=1000000" if word.startswith("+steps=") else word for word in words)
    named = tuple("entry_point=gpu_work:train_gpt" if "entry_point=" in one else one for one in endless)
    launched = scene.launch(*named, "parallel=none", "preflight=off", wait=False)
    try:
        _wait_for_steps(launched)
        text = scene.call("profile", launched.name, "--steps", "5", "--json", codes=(0, 1))
    finally:
        scene.call("cancel", launched.name, codes=(0, 1, 2))
    said = json.loads(text)
    told = said["ranks"][0]
    if told.get("trace") and scene.machine.on_gpu:
        shutil.copy(told["trace"], scene.folder / "profile.trace.json.gz")
    summary = told.get("summary") or {}
    summary["top"] = (summary.get("top") or [])[:8]
    return {
        "on_gpu": scene.machine.on_gpu,
        "done": said["done"],
        "problem": told.get("problem"),
        "bytes": told.get("bytes"),
        "summary": summary,
    }


def _wait_for_steps(launched: Launched) -> None:
    deadline = time.monotonic() + _PROFILED_PATIENCE_S
    while time.monotonic() < deadline:
        run = launched.runs()[0]
        if (run["step"] or 0) >= 5:  # noqa: PLR2004  # past what only the first steps do
            return
        if run["state"] not in UNDER_WAY:
            raise MeasureError(failure_words(run))
        time.sleep(1)
    raise MeasureError(f"no step began within {_PROFILED_PATIENCE_S} s")
