"""Verdicts as text and as JSON. Pure."""

from __future__ import annotations

from typing import Any

from hpckit.model.diagnosis.verdict import Diagnosis, Straggler, Verdict, VerdictSeverity
from hpckit.model.plain import to_plain

_DIGITS = 6


def verdict_lines(found: Diagnosis | None) -> list[str]:
    """Return the verdicts on a run as lines, each with its remedy below it."""
    if found is None:
        return []
    return [f"\n{_head(one)}: {one.message}\n  {one.remedy}" for one in found.verdicts]


def _head(one: Verdict) -> str:
    words = one.kind.replace("_", " ")
    return words if one.severity is VerdictSeverity.info else f"{words} ({one.severity})"


def diagnosis_object(found: Diagnosis | None) -> dict[str, Any]:
    """Return the fields `verdicts` and `stragglers` of a run; empty lists if nothing is known."""
    known = found or Diagnosis()
    return {
        "verdicts": [_verdict_object(one) for one in known.verdicts],
        "stragglers": [_straggler_object(one) for one in known.stragglers],
    }


def _verdict_object(one: Verdict) -> dict[str, Any]:
    return dict(to_plain(one))


def _straggler_object(one: Straggler) -> dict[str, Any]:
    plain = dict(to_plain(one))
    return {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in plain.items()
    }
