"""What a search for layouts found, as text: tables, and the plan of the fastest layout. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.model.capacity.plan import CapacityPlan, FoundLayouts, PlannedSetup
from hpckit.model.capacity.setup import TrainingSetup
from hpckit.model.counted import counted
from hpckit.report.capacity.machine import SHOWN
from hpckit.report.capacity.text import chosen_for_you, plan_text, setup_text
from hpckit.report.capacity.units import WIDTH, command_lines, day_column, indented

_GIB = 2**30


def search_text(found: FoundLayouts, words: Sequence[str]) -> str:
    """Return the fastest layouts, those that need less memory, and the plan of the fastest.

    `words` plan the same model on the same GPUs.
    """
    if found.best is None:
        return "\n".join(_nothing_lines(found))
    best = found.fitting[0]
    fits = "layout fits" if len(found.fitting) == 1 else "layouts fit"
    lines = [
        f"{len(found.fitting)} {fits}, with {_batch(best, found.best)}",
        "",
        "the fastest:",
        *_table(found.fitting[:SHOWN]),
    ]
    if len(found.smaller) > 1:
        lines += ["", "less memory for more time:", *_table(found.smaller[:SHOWN])]
    lines += ["", "the fastest one:", "", plan_text(found.best)]
    again = ["hpckit", "plan", *words, *best.launch.options]
    lines += ["", "the fastest one is planned again by", *command_lines(again)]
    return "\n".join(lines)


def _batch(best: PlannedSetup, plan: CapacityPlan) -> str:
    rows = counted(best.setup.global_batch, "sequence")
    words = f"batches of {rows} of {best.setup.sequence} tokens"
    chosen = chosen_for_you(plan.defaults)
    return f"{words}\n {chosen}" if chosen else words


def _nothing_lines(found: FoundLayouts) -> list[str]:
    """Return how far off the smallest layout is, and what would help."""
    one = found.smallest
    if one is None:
        return ["no layout fits"]
    gpu, needs = one.setup.gpu, one.memory.expected / _GIB
    room = gpu.memory / _GIB
    lines = [
        f"no layout of {one.setup.gpus} x {gpu.name} fits",
        f"  the smallest needs {needs:.1f} of {room:.1f} GiB, {needs - room:.1f} GiB too much",
        *indented(setup_text(one.setup)),
    ]
    if found.help:
        lines += ["", "what would help", *(line for one in found.help for line in indented(one))]
    return lines


def _table(rows: Sequence[PlannedSetup]) -> list[str]:
    head = f"  {'step':>9} {'days':>7} {'memory':>9} {'micro':>5} {'recompute':>9}  layout"
    lines = [head]
    for one, days in zip(rows, day_column([row.days for row in rows]), strict=True):
        start = (
            f"  {one.time.total:>7.2f} s {days:>7} {one.memory.expected / _GIB:>5.1f} GiB "
            f"{one.setup.micro_batch:>5} {one.setup.recompute.value:>9}  "
        )
        first, *others = _layout_lines(one.setup, WIDTH - len(start))
        if one.launch.limits:
            others.append("(hpckit cannot run it)")
        lines += [f"{start}{first}", *(f"{'':{len(start)}}{more}" for more in others)]
    return lines


def _layout_lines(setup: TrainingSetup, width: int) -> list[str]:
    """Return a layout in lines of this width, broken between its axes."""
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
