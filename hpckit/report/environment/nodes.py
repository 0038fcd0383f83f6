"""The history of nodes as a table, or as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from hpckit.model.counted import counted
from hpckit.model.nodes.incident import NodeIncident, NodeStanding
from hpckit.model.plain import to_plain
from hpckit.patterns import lazy_pattern
from hpckit.report.text import Page, TextTable

_FORM = "%m-%d %H:%M"
_NUMBER = lazy_pattern(r"\d+")
_UNTOLD = (
    "{} may be left out: a tenth of a partition's nodes at most, or one of four to nine (Slurm did "
    "not tell which it has)"
)

Used = Mapping[str, str] | None
"""What planning.nodes.standing says; None without an answer of Slurm."""


def nodes_page(standings: Sequence[NodeStanding], used: Used, now: datetime) -> Page:
    """Return a line for each node with incidents, the worst first; times in the zone of `now`.

    `used` says why launches use nodes nevertheless; null if Slurm did not tell which it has.
    """
    if not standings:
        return ["nothing has happened on any node in the last 30 days"]
    rows = tuple(
        (
            standing.node,
            _avoided(standing, used, now),
            ", ".join(
                f"{count} {kind}"
                for kind, count in Counter(i.kind for i in standing.incidents).items()
            ),
            standing.incidents[-1].at.astimezone(now.tzinfo).strftime(_FORM),
            " ".join(standing.incidents[-1].message.split()),
        )
        for standing in standings
    )
    bad = [standing for standing in standings if standing.avoided_until is not None]
    out = f"{sum(not (used or {}).get(standing.node) for standing in bad)} left out of new launches"
    known = out if used is not None or not bad else _UNTOLD.format(len(bad))
    return [
        TextTable(
            header=("NODE", "LAUNCHES", "INCIDENTS", "LATEST", "WHAT"),
            rows=rows,
            flexible=("WHAT",),
        ),
        f"{counted(len(standings), 'node')} with incidents in 30 days, {known}",
    ]


def node_page(standing: NodeStanding, used: Used, now: datetime) -> Page:
    """Return the incidents of one node, the latest last; those of one loop are one line."""
    rows = tuple(
        (
            alike[-1].at.astimezone(now.tzinfo).strftime(_FORM),
            str(len(alike)) if len(alike) > 1 else "",
            alike[-1].kind.value,
            alike[-1].run,
            " ".join(alike[-1].message.split()),
        )
        for alike in _loops(standing.incidents)
    )
    header = ("LATEST", "TIMES", "WHAT", "RUN", "MESSAGE")
    return [
        TextTable(header=header, rows=rows, flexible=("MESSAGE",)),
        f"{standing.node}: launches {_avoided(standing, used, now)}",
    ]


def _loops(incidents: Sequence[NodeIncident]) -> list[list[NodeIncident]]:
    """Return the incidents in groups of what happened alike to one run, by their latest."""
    groups: dict[tuple[str, str, str], list[NodeIncident]] = {}
    for incident in incidents:
        groups.setdefault(
            (incident.kind, incident.run, _NUMBER.sub("#", incident.message)), []
        ).append(incident)
    return sorted(groups.values(), key=lambda alike: alike[-1].at)


def _avoided(standing: NodeStanding, used: Used, now: datetime) -> str:
    until = standing.avoided_until
    if until is None:
        return "use it"
    if why := (used or {}).get(standing.node):
        return f"use it: {why}"
    may = "" if used is not None else "may "
    return f"{may}leave it out until {until.astimezone(now.tzinfo):{_FORM}}"


def nodes_document(standings: Sequence[NodeStanding], used: Used) -> dict[str, object]:
    """Return the object of `nodes --json`."""
    found = []
    for standing in standings:
        avoided, why = standing.avoided_until is not None, (used or {}).get(standing.node)
        left_out = None if used is None and avoided else avoided and not why
        found.append({**to_plain(standing), "left_out": left_out, "why_used": why or None})
    return {"nodes": found}
