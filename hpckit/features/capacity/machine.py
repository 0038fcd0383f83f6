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
from hpckit.model.plain import attributes_to_json, to_plain

SHOWN = 10
"""How many layouts are shown of those that are found."""


_CALIBRATION = "run step_s predicted_step_s step_ratio memory_bytes predicted_memory_bytes memory_ratio"
"""What was measured of a run, and predicted for it."""


def plan_to_json(plan: CapacityPlan) -> dict[str, Any]:
    """Return a plan for `--json`; what is not known is null."""
    known, between = plan.setup is not None, plan.training_days_range
    return {
        **attributes_to_json(plan, "parameters active_parameters=setup.shape.active_parameters"),
        **attributes_to_json(plan, "gpu=gpu.name gpus gpu_memory_bytes=gpu.memory layout"),
        **({} if plan.setup is None else {"layout": _layout_to_json(plan.setup)}),
        "unknown": plan.unknown or None,
        "memory": _memory_to_json(plan.memory, whole=known),
        **attributes_to_json(plan, "fits step_s=rates.step_s step_parts=time"),
        **attributes_to_json(plan.rates, "mfu mfu_masked hfu tokens_per_s_per_gpu"),
        **attributes_to_json(plan, "tokens defaults"),
        "calibration": plan.calibration and attributes_to_json(plan.calibration, _CALIBRATION),
        **attributes_to_json(plan.bill, "steps days"),
        "days_low": between and between[0],
        "days_high": between and between[1],
        **attributes_to_json(plan, "experience=experience.said remarks"),
        **attributes_to_json(plan.bill, "gpu_hours lost_share"),
        "moment": plan.moment or None,
        **attributes_to_json(plan.bill, "energy_j cost carbon_kg"),
        **power_to_json(plan.power),
        **_launch_to_json(plan.launch),
    }


def power_to_json(power: PowerDraw) -> dict[str, float]:
    """Return watts: of the GPUs alone, of their nodes, of the facility."""
    return attributes_to_json(power, "power_w=gpus node_w=nodes facility_w=facility")


def _memory_to_json(memory: MemoryParts, *, whole: bool) -> dict[str, Any]:
    """Return bytes per GPU by component; `whole` is whether more than the states is known."""
    states = ("weights", "gradients", "optimizer")
    parts = to_plain(memory).items()
    found = {name: size if whole or name in states else None for name, size in parts}
    return {**found, "total": attributes_to_json(memory, "low expected high")}


def _layout_to_json(setup: TrainingSetup) -> dict[str, Any]:
    batch = "stages_per_rank micro_batch microbatches global_batch"
    more = attributes_to_json(setup, batch, "sequence precision recompute zero")
    return {**to_plain(setup.layout), **more}


def layout_search_to_json(found: FoundLayouts, calibration: Calibration | None = None) -> dict[str, Any]:
    """Return the ten fastest layouts, up to ten that need less memory, the plan of the fastest.

    If none fits, `smallest` is what needs the least memory, and `help` what would make it fit.
    """
    return {
        "found": len(found.fitting),
        "fits": bool(found.fitting),
        "calibration": calibration and attributes_to_json(calibration, _CALIBRATION),
        "fastest": [_planned_setup_to_json(setup) for setup in found.fitting[:SHOWN]],
        "pareto": [_planned_setup_to_json(setup) for setup in found.smaller[:SHOWN]],
        "best": found.best and plan_to_json(found.best),
        "smallest": found.smallest and _planned_setup_to_json(found.smallest),
        **attributes_to_json(found, "help"),
    }


def _planned_setup_to_json(one: PlannedSetup) -> dict[str, Any]:
    return {
        "layout": _layout_to_json(one.setup),
        "step_s": one.time.total,
        "memory": _memory_to_json(one.memory, whole=True),
        "days": one.days,
        **_launch_to_json(one.launch),
    }


def _launch_to_json(launch: LaunchWords | None) -> dict[str, Any]:
    found = attributes_to_json(launch, "overrides limits unplaced options")
    return found | {"unplaced": found["unplaced"] or None}
