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

SHOWN = 10
"""How many layouts are shown of those that are found."""


_CALIBRATION = (
    "run step_s predicted_step_s step_ratio memory_bytes predicted_memory_bytes memory_ratio"
)
"""What was measured of a run, and predicted for it."""


def plan_object(plan: CapacityPlan) -> dict[str, Any]:
    """Return a plan for `--json`; what is not known is null."""
    known, between = plan.setup is not None, plan.days_between
    return {
        **plain_fields(plan, "parameters active_parameters=setup.shape.active_parameters"),
        **plain_fields(plan, "gpu=gpu.name gpus gpu_memory_bytes=gpu.memory layout"),
        **({} if plan.setup is None else {"layout": _layout(plan.setup)}),
        "unknown": plan.unknown or None,
        "memory": _memory(plan.memory, whole=known),
        **plain_fields(plan, "fits step_s=rates.step_s step_parts=time"),
        **plain_fields(plan.rates, "mfu mfu_masked hfu tokens_per_s_per_gpu"),
        **plain_fields(plan, "tokens defaults"),
        "calibration": plan.calibration and plain_fields(plan.calibration, _CALIBRATION),
        **plain_fields(plan.bill, "steps days"),
        "days_low": between and between[0],
        "days_high": between and between[1],
        **plain_fields(plan, "experience=experience.said remarks"),
        **plain_fields(plan.bill, "gpu_hours lost_share"),
        "moment": plan.moment or None,
        **plain_fields(plan.bill, "energy_j cost carbon_kg"),
        **power_object(plan.power),
        **_launch(plan.launch),
    }


def power_object(power: PowerDraw) -> dict[str, float]:
    """Return watts: of the GPUs alone, of their nodes, of the facility."""
    return plain_fields(power, "power_w=gpus node_w=nodes facility_w=facility")


def _memory(memory: MemoryParts, *, whole: bool) -> dict[str, Any]:
    """Return bytes per GPU by component; `whole` is whether more than the states is known."""
    states = ("weights", "gradients", "optimizer")
    parts = to_plain(memory).items()
    found = {name: size if whole or name in states else None for name, size in parts}
    return {**found, "total": plain_fields(memory, "low expected high")}


def _layout(setup: TrainingSetup) -> dict[str, Any]:
    """Return how a setup lays its model and its batch out."""
    batch = "stages_per_rank micro_batch microbatches global_batch"
    more = plain_fields(setup, batch, "sequence precision recompute zero")
    return {**to_plain(setup.layout), **more}


def search_object(found: FoundLayouts, calibration: Calibration | None = None) -> dict[str, Any]:
    """Return the ten fastest layouts, up to ten that need less memory, the plan of the fastest.

    If none fits, `smallest` is what needs the least memory, and `help` what would make it fit.
    """
    return {
        "found": len(found.fitting),
        "fits": bool(found.fitting),
        "calibration": calibration and plain_fields(calibration, _CALIBRATION),
        "fastest": [_found(setup) for setup in found.fitting[:SHOWN]],
        "pareto": [_found(setup) for setup in found.smaller[:SHOWN]],
        "best": found.best and plan_object(found.best),
        "smallest": found.smallest and _found(found.smallest),
        **plain_fields(found, "help"),
    }


def _found(one: PlannedSetup) -> dict[str, Any]:
    return {
        "layout": _layout(one.setup),
        "step_s": one.time.total,
        "memory": _memory(one.memory, whole=True),
        "days": one.days,
        **_launch(one.launch),
    }


def _launch(launch: LaunchWords | None) -> dict[str, Any]:
    found = plain_fields(launch, "overrides limits unplaced options")
    return found | {"unplaced": found["unplaced"] or None}
