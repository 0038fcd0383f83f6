"""A plan of a training as JSON: memory, time, money, power. Pure."""

from __future__ import annotations

from typing import Any

from hpckit.features.capacity.model_plan import (
    Calibration,
    CapacityPlan,
    FoundLayouts,
    LaunchWords,
    MemoryParts,
    PlannedSetup,
    PowerDraw,
)
from hpckit.features.capacity.model_setup import TrainingSetup
from hpckit.model.plain import plain_fields, to_plain
from hpckit.values import field_names

SHOWN = 10
"""How many layouts are shown of those that are found."""


def plan_object(plan: CapacityPlan) -> dict[str, Any]:
    """Return a plan for `--json`; what is not known is null."""
    known = plan.setup is not None
    bill, between = plan.bill, plan.days_between
    return {
        "parameters": plan.parameters,
        **plain_fields(plan.setup and plan.setup.shape, "active_parameters"),
        "gpu": plan.gpu.name,
        "gpus": plan.gpus,
        "gpu_memory_bytes": plan.gpu.memory,
        "layout": _layout(plan),
        "unknown": plan.unknown or None,
        "memory": memory_object(plan.memory, whole=known),
        "fits": plan.fits,
        **plain_fields(plan.rates, "step_s"),
        "step_parts": to_plain(plan.time),
        **plain_fields(plan.rates, "mfu", "mfu_masked", "hfu", "tokens_per_s_per_gpu"),
        **plain_fields(plan, "tokens", "defaults"),
        "calibration": plan.calibration and calibration_object(plan.calibration),
        **plain_fields(bill, "steps", "days"),
        "days_low": between and between[0],
        "days_high": between and between[1],
        "experience": plan.experience and plan.experience.said,
        "remarks": list(plan.remarks),
        **plain_fields(bill, "gpu_hours", "lost_share"),
        "moment": plan.moment or None,
        **plain_fields(bill, "energy_j", "cost", "carbon_kg"),
        **power_object(plan.power),
        **_launch_object(plan.launch),
    }


def power_object(power: PowerDraw) -> dict[str, float]:
    """Return watts: of the GPUs alone, of their nodes, of the facility."""
    return {"power_w": power.gpus, "node_w": power.nodes, "facility_w": power.facility}


def memory_object(memory: MemoryParts, *, whole: bool) -> dict[str, Any]:
    """Return bytes per GPU by component; `whole` is whether more than the states is known."""
    states = ("weights", "gradients", "optimizer")
    found: dict[str, Any] = {
        name: getattr(memory, name) if whole or name in states else None
        for name in field_names(memory)
    }
    return {**found, "total": plain_fields(memory, "low", "expected", "high")}


def _layout(plan: CapacityPlan) -> dict[str, Any] | None:
    if plan.setup is not None:
        return layout_object(plan.setup)
    if plan.layout is None:
        return None
    return {axis.value: size for axis, size in plan.layout.sizes.items()}


def layout_object(setup: TrainingSetup) -> dict[str, Any]:
    """Return how a setup lays its model and its batch out."""
    return {
        **{axis.value: size for axis, size in setup.layout.sizes.items()},
        **plain_fields(setup, "stages_per_rank", "micro_batch", "microbatches", "global_batch"),
        **plain_fields(setup, "sequence", "precision", "recompute", "zero"),
    }


def calibration_object(calibration: Calibration) -> dict[str, Any]:
    """Return what was measured of a run, and predicted for it."""
    times = plain_fields(calibration, "run", "step_s", "predicted_step_s", "step_ratio")
    memory = ("memory_bytes", "predicted_memory_bytes", "memory_ratio")
    return {**times, **plain_fields(calibration, *memory)}


def search_object(found: FoundLayouts, calibration: Calibration | None = None) -> dict[str, Any]:
    """Return the ten fastest layouts, up to ten that need less memory, the plan of the fastest.

    If none fits, `smallest` is what needs the least memory, and `help` what would make it fit.
    """
    return {
        "found": len(found.fitting),
        "fits": bool(found.fitting),
        "calibration": calibration and calibration_object(calibration),
        "fastest": [_found_object(one) for one in found.fitting[:SHOWN]],
        "pareto": [_found_object(one) for one in found.smaller[:SHOWN]],
        "best": found.best and plan_object(found.best),
        "smallest": found.smallest and _found_object(found.smallest),
        "help": list(found.help),
    }


def _found_object(one: PlannedSetup) -> dict[str, Any]:
    return {
        "layout": layout_object(one.setup),
        "step_s": one.time.total,
        "memory": memory_object(one.memory, whole=True),
        "days": one.days,
        **_launch_object(one.launch),
    }


def _launch_object(launch: LaunchWords | None) -> dict[str, Any]:
    return {
        **plain_fields(launch, "overrides", "limits"),
        "unplaced": (launch and launch.unplaced) or None,
        **plain_fields(launch, "options"),
    }
