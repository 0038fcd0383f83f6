"""What the inspection of nodes found, as lines for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hpckit.model.counted import counted
from hpckit.model.preflight.verdict import HealthVerdict, NodeInspection

_SHOWN = 8


def preflight_lines(inspections: Sequence[NodeInspection]) -> Iterator[str]:
    """Yield a line on all nodes, and one for each finding: `preflight: 3 of 4 nodes ok`."""
    if not inspections:
        return
    counts = Counter(one.verdict for one in inspections)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in HealthVerdict if counts[verdict])
    yield f"preflight ({inspections[0].level}): {counted(len(inspections), 'node')}: {told}"
    found = [each for one in inspections for each in one.findings]
    for each in found[:_SHOWN]:
        yield f"  {each.verdict}: {each.message}"
    if len(found) > _SHOWN:
        yield f"  and {counted(len(found) - _SHOWN, 'more finding')}; --json has all"
