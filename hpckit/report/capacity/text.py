"""A plan of a training as text: memory, time, money, power. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from hpckit.model.capacity.calibration import Calibration
from hpckit.model.capacity.gpu_spec import GpuSpec
from hpckit.model.capacity.launch_words import LaunchWords
from hpckit.model.capacity.plan import CapacityPlan, PlannedSetup, PowerDraw
from hpckit.model.capacity.setup import NumberType, TrainingSetup
from hpckit.report.capacity.machine import SHOWN

_GIB = 2**30
_MANY_DAYS = 100
_HOURS = 24


def plan_text(plan: CapacityPlan) -> str:
    """Return a plan as text: what fits, how long it takes, what it comes to."""
    lines = [f"{_count(plan.parameters)} parameters on {plan.gpus} x {plan.gpu.name}"]
    if not plan.fits:
        lines.append(_too_large(plan))
    if plan.setup is not None:
        lines.append(f"  {_setup_words(plan.setup)}")
        lines.append(f"  {_batch_words(plan.setup)}{_chosen_for_you(plan.defaults)}")
        if plan.setup.precision is NumberType.fp16 and plan.gpu.flops_bf16 is None:
            lines.append(
                f"  fp16: {plan.gpu.name} has no bfloat16; a loss in fp16 has to be scaled"
            )
    elif plan.layout is not None:
        lines.append(f"  {plan.layout}")
    if plan.calibration is not None:
        lines += _calibration_lines(plan.calibration)
    lines += ["", *_memory_lines(plan)]
    if plan.setup is not None and plan.rates is not None:
        lines += ["", *([] if plan.fits else ["if it did fit:"]), *_time_lines(plan)]
    if plan.bill is not None:
        lines += ["", *_bill_lines(plan)]
    lines += ["", power_text(plan.power)]
    if plan.launch is not None and plan.fits:
        lines += ["", *_launch_lines(plan.launch)]
    return "\n".join(lines)


def _too_large(plan: CapacityPlan) -> str:
    missing = (plan.memory.expected - plan.gpu.memory) / _GIB
    found = "; --search looks for a layout that does" if plan.setup else ""
    return f"  DOES NOT FIT: {missing:.1f} GiB too much on a GPU{found}"


def _launch_lines(launch: LaunchWords) -> list[str]:
    if launch.limits:
        lines = [f"hpckit cannot run this: {launch.limits[0]}"]
        return [*lines, *(f"                        {one}" for one in launch.limits[1:])]
    lines = [f"launch    hpckit launch … {' '.join(launch.overrides)}"]
    return [*lines, f"          your code has: {'; '.join(launch.own)}"]


def power_text(power: PowerDraw) -> str:
    """Return the power of a plan in a line."""
    return (
        f"power     {_watts(power.gpus)} of the GPUs, {_watts(power.nodes)} with their nodes, "
        f"{_watts(power.facility)} with cooling"
    )


def _calibration_lines(calibration: Calibration) -> list[str]:
    took, ratio = f"{calibration.step_s:.4g} s", f"x {calibration.step_ratio:.2f}"
    predicted_s = f"predicted {calibration.predicted_step_s:.4g} s ({ratio})"
    lines = [f"  calibrated by {calibration.run}: a step took {took}, {predicted_s}"]
    measured, predicted = calibration.memory_bytes, calibration.predicted_memory_bytes
    if measured is None or predicted is None:
        return [*lines, "  its memory was not measured"]
    used = f"a GPU used {measured / _GIB:.1f} GiB, predicted {predicted / _GIB:.1f} GiB"
    if calibration.memory_ratio is None:
        return [*lines, f"  {used}: less than its states need, so memory is not calibrated"]
    return [*lines, f"  {used} (x {calibration.memory_ratio:.2f} of what is no state)"]


def search_text(
    found: Sequence[PlannedSetup],
    smaller: Sequence[PlannedSetup],
    calibration: Calibration | None = None,
    defaults: Sequence[str] = (),
) -> str:
    """Return the fastest layouts as a table, and those that need less memory."""
    best, fits = found[0], "layout fits" if len(found) == 1 else "layouts fit"
    words = f"batches of {best.setup.global_batch} sequences of {best.setup.sequence} tokens"
    words += _chosen_for_you(defaults)
    lines = [f"{len(found)} {fits}, with {words}; the fastest:", *_table(found[:SHOWN])]
    if len(smaller) > 1:
        lines += ["", "less memory for more time:", *_table(smaller[:SHOWN])]
    known = [_experience(best.setup.gpu)]
    if calibration is not None:
        known = _calibration_lines(calibration)
    lines += ["", *known, "", "the fastest one:", *_launch_lines(best.launch)]
    return "\n".join(lines)


def _table(rows: Sequence[PlannedSetup]) -> list[str]:
    lines = [f"  {'step':>9}  {'days':>7}  {'memory':>10}  layout"]
    for one in rows:
        memory = f"{one.memory.expected / _GIB:.1f} GiB"
        days = "" if one.days is None else _days(one.days)
        words = _setup_words(one.setup)
        lines.append(f"  {one.time.total:>7.2f} s  {days:>7}  {memory:>10}  {words}")
    return lines


def _setup_words(setup: TrainingSetup) -> str:
    words = [str(setup.layout), f"micro batch {setup.micro_batch}"]
    if setup.stages_per_rank > 1:
        words.append(f"{setup.stages_per_rank} stages per rank")
    if setup.recompute.value != "none":
        words.append(f"recompute {setup.recompute}")
    if setup.zero is not None:
        words.append(f"ZeRO {setup.zero}")
    return ", ".join(words)


def _batch_words(setup: TrainingSetup) -> str:
    return f"global batch {setup.global_batch} sequences of {setup.sequence} tokens"


def _memory_lines(plan: CapacityPlan) -> list[str]:
    memory, room = plan.memory, plan.gpu.memory
    size, unit = (_GIB, "GiB") if memory.expected >= _GIB else (_GIB / 1024, "MiB")
    lines = ["memory per GPU, of the fullest stage"]
    for one in fields(memory):
        value = getattr(memory, one.name)
        if value:
            label = _LABELS.get(one.name, one.name)
            lines.append(f"  {label:<14}{value / size:>9.2f} {unit}")
    low, high = (f"{one / size:.1f}" for one in (memory.low, memory.high))
    likely = f"  ({low} to {high})" if low != high else ""
    lines.append(
        f"  {'total':<14}{memory.expected / size:>9.2f} {unit}{likely} of {room / _GIB:.1f} GiB"
    )
    left = (room - memory.expected) / _GIB
    lines.append(f"  fits, {left:.1f} GiB are left" if plan.fits else f"  {-left:.1f} GiB too much")
    if plan.fits and memory.high > room:
        lines[-1] += "; not if the code keeps more than it has to"
    if plan.setup is None:
        lines.append(f"  states alone; {plan.unknown}")
    return lines


def _time_lines(plan: CapacityPlan) -> list[str]:
    rates = plan.rates
    if rates is None:
        return []
    said = "predicted" if plan.time is not None else "as measured"
    said += ", calibrated" if plan.calibration is not None else ""
    lines = [
        f"step      {rates.step_s:.4g} s {said}; MFU {rates.mfu:.1%}, HFU {rates.hfu:.1%}",
        f"          {rates.tokens_per_s_per_gpu:,.0f} tokens/s per GPU",
    ]
    if plan.time is not None:
        shares = ", ".join(
            f"{_PARTS[one.name]} {getattr(plan.time, one.name) / plan.time.total:.0%}"
            for one in fields(plan.time)
        )
        lines.append(f"          {shares}")
    return lines


_LABELS = {"context": "CUDA context"}
"""What is not called as its field of the JSON: `context` would be taken for an axis."""
_PARTS = {
    "compute": "computing",
    "exposed": "waiting for communication",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer",
}


def _bill_lines(plan: CapacityPlan) -> list[str]:
    bill, tokens = plan.bill, plan.tokens
    if bill is None or tokens is None:
        return []
    steps = f"{bill.steps:,} steps: {_span(bill.days)}"
    lines = [
        f"training  {_count(tokens)} tokens{_by_rule(plan.defaults)}, {steps}",
        *([] if plan.time is None or plan.calibration else [f"          {_experience(plan.gpu)}"]),
        f"          {bill.gpu_hours:,.0f} GPU hours, {bill.lost_share:.1%} for failures and saves",
        f"energy    {bill.energy_j / 3.6e9:,.3g} MWh with nodes and cooling",
    ]
    if bill.cost is not None:
        lines.append(f"cost      {bill.cost:,.0f} in the currency of --price-per-gpu-hour")
    if bill.carbon_kg is not None:
        lines.append(f"carbon    {bill.carbon_kg / 1000:,.3g} t CO2")
    return lines


_PUBLISHED = {
    "A100": "published runs on A100 took up to 9 % longer than predicted",
    "H100": "published runs on H100 took up to 30 % longer than predicted",
}


def _chosen_for_you(defaults: Sequence[str]) -> str:
    """Return which numbers of the batch nobody chose."""
    found = [one for one in defaults if one != "--tokens"]
    if not found:
        return ""
    return f" (default: set {' and '.join(found)})"


def _by_rule(defaults: Sequence[str]) -> str:
    return " (default: 20 per parameter)" if "--tokens" in defaults else ""


def _span(days: float) -> str:
    """Return a time in days, or in hours if it is less than one."""
    return f"{_days(days)} days" if days >= 1 else f"{days * _HOURS:.3g} hours"


def _days(days: float) -> str:
    return f"{days:,.0f}" if days >= _MANY_DAYS else f"{days:.3g}"


def _experience(gpu: GpuSpec) -> str:
    """Return how long published runs took, compared with what is predicted for them."""
    unknown = "no published run on this GPU was compared; on H100 they took up to 30 % longer"
    return _PUBLISHED.get(gpu.name.partition("-")[0], unknown)


def _count(number: float) -> str:
    for size, word in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.4g} {word}"
    return f"{number:.0f}"


def _watts(watts: float) -> str:
    for size, unit in ((1e6, "MW"), (1e3, "kW")):
        if watts >= size:
            return f"{watts / size:.3g} {unit}"
    return f"{watts:.0f} W"
