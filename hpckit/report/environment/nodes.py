"""The history of nodes as a table, or as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from hpckit.model.counted import counted
from hpckit.model.nodes.incident import NodeStanding
from hpckit.model.plain import to_plain
from hpckit.report.text import Page, TextTable

_FORM = "%m-%d %H:%M"


def nodes_page(standings: Sequence[NodeStanding], now: datetime) -> Page:
    """Return a line for each node with incidents, the worst first; times in the zone of `now`."""
    if not standings:
        return ["nothing has happened on any node in the last 30 days"]
    rows = tuple(
        (
            one.node,
            _avoided(one, now),
            ", ".join(
                f"{count} {kind}" for kind, count in Counter(i.kind for i in one.incidents).items()
            ),
            one.incidents[-1].at.astimezone(now.tzinfo).strftime(_FORM),
            one.incidents[-1].message,
        )
        for one in standings
    )
    bad = sum(one.avoided_until is not None for one in standings)
    return [
        TextTable(
            header=("NODE", "LAUNCHES", "INCIDENTS", "LATEST", "WHAT"),
            rows=rows,
            flexible=("WHAT",),
        ),
        f"{counted(len(standings), 'node')} with incidents in 30 days, {bad} avoided",
    ]


def node_page(standing: NodeStanding, now: datetime) -> Page:
    """Return all incidents of one node, the latest last."""
    rows = tuple(
        (one.at.astimezone(now.tzinfo).strftime(_FORM), one.kind.value, one.run, one.message)
        for one in standing.incidents
    )
    return [
        TextTable(header=("AT", "WHAT", "RUN", "MESSAGE"), rows=rows, flexible=("MESSAGE",)),
        f"{standing.node}: launches {_avoided(standing, now)}",
    ]


def _avoided(standing: NodeStanding, now: datetime) -> str:
    until = standing.avoided_until
    return "use it" if until is None else f"avoid it until {until.astimezone(now.tzinfo):{_FORM}}"


def nodes_document(standings: Sequence[NodeStanding]) -> dict[str, object]:
    """Return the object of `nodes --json`."""
    return {"nodes": [to_plain(one) for one in standings]}
