"""A plan of a training as text: memory, time, money, power, how it is launched. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpckit.features.capacity.machine import SHOWN
from hpckit.features.capacity.model_plan import (
    Calibration,
    CapacityPlan,
    FoundLayouts,
    LaunchWords,
    PlannedSetup,
    PowerDraw,
    StepRates,
)
from hpckit.features.capacity.model_setup import NumberType, TrainingSetup
from hpckit.features.capacity.units import (
    WIDTH,
    format_days,
    format_days_column,
    format_days_range,
    format_energy,
    format_labelled_lines,
    format_large_number,
    format_mass,
    format_percent,
    format_watts,
    wrap_command,
    wrap_indented,
)
from hpckit.model.counted import format_count, format_whole_percent
from hpckit.values import field_names

_GIB = 2**30
_MUCH_ATTENTION = 0.25
"""From this share of the operations on, it matters whether attention is halved for its mask."""


def format_plan(plan: CapacityPlan) -> str:
    """Return a plan as text: what fits, how long it takes, what it comes to."""
    lines = [f"{format_large_number(plan.parameters)} parameters on {plan.gpus} x {plan.gpu.name}"]
    if plan.fits is False:
        lines.append(_format_memory_excess(plan))
    if plan.setup is not None:
        lines += wrap_indented(format_layout_and_batch(plan.setup))
        rows = format_count(plan.setup.global_batch, "sequence")
        batch = f"global batch {rows} of {plan.setup.sequence} tokens"
        lines += wrap_indented(f"{batch}{explain_defaulted_batch_options(plan.defaults)}")
        if plan.setup.precision is NumberType.fp16 and plan.gpu.flops_bf16 is None:
            lines += wrap_indented(f"fp16: {plan.gpu.name} has no bfloat16; a loss in fp16 has to be scaled")
    elif plan.layout is not None:
        lines.append(f"  {plan.layout}")
    for remark in plan.remarks:
        lines += wrap_indented(remark)
    if plan.calibration is not None:
        lines += format_calibration(plan.calibration)
    lines += ["", *_format_memory(plan)]
    if plan.rates is not None:
        lines += ["", *([] if plan.fits else ["if it did fit:"]), *_format_step_time(plan, plan.rates)]
    if plan.bill is not None:
        lines += ["", *_format_bill(plan)]
    lines += ["", format_power_draw(plan.power)]
    if plan.launch is not None and plan.fits is not False:
        lines += ["", *format_launch_command(plan.launch)]
    return "\n".join(lines)


def _format_memory_excess(plan: CapacityPlan) -> str:
    missing = (plan.memory.expected - plan.gpu.memory) / _GIB
    found = "; --search looks for one that does" if plan.setup else ""
    return f"  DOES NOT FIT: {missing:.1f} GiB too much on a GPU{found}"


def format_launch_command(launch: LaunchWords) -> list[str]:
    """Return the command that launches a layout, or why hpckit cannot run it."""
    if launch.limits:
        first, *others = launch.limits
        return format_labelled_lines("launch", f"hpckit cannot run this: {first}", *others)
    own = () if launch.complete else ("experiment=YOURS",)
    lines = ["launch", *wrap_command(["hpckit", "launch", *own, *launch.overrides])]
    if launch.unplaced:
        lines += wrap_indented(launch.unplaced)
    return [*lines, *(wrap_indented(f"your code has: {'; '.join(launch.own)}") if launch.own else [])]


def format_power_draw(power: PowerDraw) -> str:
    """Return the power of a plan: at full load, with where it comes from."""
    source = f"({power.node_source}; --node-w-per-gpu sets it)"
    sentences = [
        f"{format_watts(power.gpus)} of the GPUs at full load, {power.gpu_w:g} W each",
        f"{format_watts(power.nodes)} with their nodes, {power.node_w:g} W each {source}",
        f"{format_watts(power.facility)} with cooling, PUE {power.pue:g}",
    ]
    if power.clock < 1:
        sentences.append(
            f"capped, a GPU is assumed to compute at {format_whole_percent(power.clock)} of its "
            "rate: as the square root of its power"
        )
    return "\n".join(format_labelled_lines("power", *sentences))


def format_calibration(calibration: Calibration) -> list[str]:
    """Return what a run took, and what was predicted for it."""
    took, ratio = f"{calibration.step_s:.4g} s", f"x {calibration.step_ratio:.2f}"
    predicted_s = f"predicted {calibration.predicted_step_s:.4g} s ({ratio})"
    lines = [f"  calibrated by {calibration.run}:", f"    a step took {took}, {predicted_s}"]
    measured, predicted = calibration.memory_bytes, calibration.predicted_memory_bytes
    if measured is None or predicted is None:
        return [*lines, "    its memory was not measured"]
    used = f"a GPU used {measured / _GIB:.1f} GiB, predicted {predicted / _GIB:.1f} GiB"
    if calibration.memory_ratio is None:
        return [*lines, f"    {used}:", "    less than its states need, so memory is not calibrated"]
    return [*lines, f"    {used} (x {calibration.memory_ratio:.2f} of all but the states)"]


def format_layout_and_batch(setup: TrainingSetup) -> str:
    """Return a layout with what is computed at once and again."""
    words = [str(setup.layout), f"micro batch {setup.micro_batch}"]
    if setup.stages_per_rank > 1:
        words.append(f"{setup.stages_per_rank} stages per rank")
    if setup.recompute.value != "none":
        words.append(f"recompute {setup.recompute}")
    if setup.zero is not None:
        words.append(f"ZeRO {setup.zero}")
    return ", ".join(words)


def explain_defaulted_batch_options(defaults: Sequence[str]) -> str:
    """Return which numbers of the batch are defaults."""
    found = [default for default in defaults if default != "--tokens"]
    return f" (default: set {' and '.join(found)})" if found else ""


_MOMENTS = {
    "": "",
    "loss": ", as the loss is computed",
    "head": ", in the backward pass of the head",
    "last layer": ", in the backward pass of its last layer",
    "first layer": ", in the backward pass of its first layer",
    "embedding": ", in the backward pass of the embedding",
    "end": ", at the end of the backward pass",
    "optimizer": ", in the optimizer's step",
}
"""When a step needs the most; gradients are not all there before the end of the backward pass."""


def _format_memory(plan: CapacityPlan) -> list[str]:
    memory, room = plan.memory, plan.gpu.memory
    size, unit = (_GIB, "GiB") if memory.expected >= _GIB else (_GIB / 1024, "MiB")
    lines = [f"memory per GPU, of the fullest stage{_MOMENTS[plan.moment]}"]
    for name in field_names(memory):
        value = getattr(memory, name)
        if value:
            label = _LABELS.get(name, name)
            lines.append(f"  {label:<14}{value / size:>9.2f} {unit}")
    low, high = (f"{amount / size:.1f}" for amount in (memory.low, memory.high))
    likely = f"  ({low} to {high})" if low != high else ""
    of = f"of {room / _GIB:.1f} GiB"
    lines.append(f"  {'total':<14}{memory.expected / size:>9.2f} {unit}{likely} {of}")
    return [*lines, *_format_fit_verdict(plan)]


def _format_fit_verdict(plan: CapacityPlan) -> list[str]:
    left = (plan.gpu.memory - plan.memory.expected) / _GIB
    if plan.fits is None:
        said = f"states fit, and leave {left:.1f} GiB; whether activations fit is unknown"
        return [*wrap_indented(said), *wrap_indented(plan.unknown)]
    if not plan.fits:
        return [
            f"  {-left:.1f} GiB too much",
            *(wrap_indented(f"of its states alone; {plan.unknown}") if plan.setup is None else []),
        ]
    is_tight = plan.memory.high > plan.gpu.memory
    tight = "; code that keeps copies of activations may not" if is_tight else ""
    return wrap_indented(f"fits, {left:.1f} GiB are left{tight}")


def _format_step_time(plan: CapacityPlan, rates: StepRates) -> list[str]:
    said = "predicted" if plan.time is not None else "as measured"
    if plan.time is not None and plan.setup is not None and plan.setup.fused:
        said += " with torch.compile (--kernels plain: without)"
    said += ", calibrated" if plan.calibration is not None else ""
    speed = f"{rates.tokens_per_s_per_gpu:,.0f} tokens/s per GPU"
    sentences = [
        f"{rates.step_s:.4g} s {said}",
        f"MFU {format_percent(rates.mfu)}, HFU {format_percent(rates.hfu)}; {speed}",
    ]
    if rates.attention_share > _MUCH_ATTENTION:
        sentences.append(
            f"{format_whole_percent(rates.attention_share)} of the operations are attention, which "
            "both count in full; with half of it, as its mask leaves, MFU is "
            f"{format_percent(rates.mfu_masked)}"
        )
    if plan.time is not None:
        shares = ", ".join(
            f"{_PARTS[name]} {format_whole_percent(getattr(plan.time, name) / plan.time.total)}"
            for name in field_names(plan.time)
        )
        sentences.append(shares)
    return format_labelled_lines("step", *sentences)


_LABELS = {"context": "CUDA context"}
"""What is not called as its field of the JSON: `context` would be taken for an axis."""
_PARTS = {
    "compute": "computing",
    "exposed": "exposed communication",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer",
}


def _format_bill(plan: CapacityPlan) -> list[str]:
    bill, tokens = plan.bill, plan.tokens
    if bill is None or tokens is None:
        return []
    between, days = plan.training_days_range, [format_days(bill.days)]
    if between is not None and plan.experience is not None:
        words = f"{format_days_range(*between)} by experience, {days[0]} as predicted:"
        days = [words, plan.experience.said]
    by_rule = " (default: 20 per parameter)" if "--tokens" in plan.defaults else ""
    lost = (
        f"{format_percent(bill.lost_share)} of the time for saves and failures, as often as in "
        "Llama 3's training (419 in 54 days of 16,384 GPUs)"
    )
    lines = format_labelled_lines(
        "training",
        f"{format_large_number(tokens)} tokens{by_rule}, {bill.steps:,} steps",
        *days,
        f"{_format_amount_for_days_range(plan, bill.gpu_hours, '{:,.0f}'.format)} GPU hours; {lost}",
    )
    energy = _format_amount_for_days_range(plan, bill.energy_j, format_energy)
    lines += format_labelled_lines("energy", f"{energy} with nodes and cooling, at full load throughout")
    if bill.cost is not None:
        cost = _format_amount_for_days_range(plan, bill.cost, "{:,.0f}".format)
        lines += format_labelled_lines("cost", f"{cost} in the currency of --price-per-gpu-hour")
    if bill.carbon_kg is not None:
        lines += format_labelled_lines(
            "carbon", f"{_format_amount_for_days_range(plan, bill.carbon_kg, format_mass)} CO2"
        )
    return lines


def _format_amount_for_days_range(plan: CapacityPlan, predicted: float, text: Callable[[float], str]) -> str:
    """Return an amount for the days by experience, from least to most; else as predicted."""
    if plan.bill is None or plan.training_days_range is None:
        return text(predicted)
    return " to ".join(text(predicted * days / plan.bill.days) for days in plan.training_days_range)


def format_search_result(found: FoundLayouts, words: Sequence[str]) -> str:
    """Return the fastest layouts, those that need less memory, and the plan of the fastest.

    `words` plan the same model on the same GPUs.
    """
    if found.best is None:
        return "\n".join(_explain_that_no_layout_fits(found))
    best = found.fitting[0]
    fits = "layout fits" if len(found.fitting) == 1 else "layouts fit"
    lines = [
        f"{len(found.fitting)} {fits}, with {_format_batch(best, found.best)}",
        "",
        "the fastest:",
        *_format_layout_table(found.fitting[:SHOWN]),
    ]
    if len(found.smaller) > 1:
        lines += ["", "less memory for more time:", *_format_layout_table(found.smaller[:SHOWN])]
    lines += ["", "the fastest one:", "", format_plan(found.best)]
    again = ["hpckit", "plan", *words, *best.launch.options]
    lines += ["", "the fastest one is planned again by", *wrap_command(again)]
    return "\n".join(lines)


def _format_batch(best: PlannedSetup, plan: CapacityPlan) -> str:
    rows = format_count(best.setup.global_batch, "sequence")
    words = f"batches of {rows} of {best.setup.sequence} tokens"
    chosen = explain_defaulted_batch_options(plan.defaults)
    return f"{words}\n {chosen}" if chosen else words


def _explain_that_no_layout_fits(found: FoundLayouts) -> list[str]:
    """Return how far off the smallest layout is, and what would help."""
    one = found.smallest
    if one is None:
        return ["no layout fits"]
    gpu, needs = one.setup.gpu, one.memory.expected / _GIB
    room = gpu.memory / _GIB
    lines = [
        f"no layout of {one.setup.gpus} x {gpu.name} fits",
        f"  the smallest needs {needs:.1f} of {room:.1f} GiB, {needs - room:.1f} GiB too much",
        *wrap_indented(format_layout_and_batch(one.setup)),
    ]
    if found.help:
        lines += ["", "what would help", *(line for advice in found.help for line in wrap_indented(advice))]
    return lines


def _format_layout_table(rows: Sequence[PlannedSetup]) -> list[str]:
    head = f"  {'step':>9} {'days':>7} {'memory':>9} {'micro':>5} {'recompute':>9}  layout"
    lines = [head]
    for one, days in zip(rows, format_days_column([row.days for row in rows]), strict=True):
        start = (
            f"  {one.time.total:>7.2f} s {days:>7} {one.memory.expected / _GIB:>5.1f} GiB "
            f"{one.setup.micro_batch:>5} {one.setup.recompute.value:>9}  "
        )
        first, *others = _wrap_layout(one.setup, WIDTH - len(start))
        if one.launch.limits:
            others.append("(hpckit cannot run it)")
        lines += [f"{start}{first}", *(f"{'':{len(start)}}{more}" for more in others)]
    return lines


def _wrap_layout(setup: TrainingSetup, width: int) -> list[str]:
    parts = str(setup.layout).split(" x ")
    if setup.stages_per_rank > 1:
        parts.append(f"stages_per_rank {setup.stages_per_rank}")
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f" x {part}"
        else:
            lines.append(f"x {part}")
    return lines
