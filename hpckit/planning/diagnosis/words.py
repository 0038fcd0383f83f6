"""Numbers of verdicts as words, and verdicts from their loss. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from hpckit.model.diagnosis.verdict import EvidenceValue, Verdict, VerdictKind, VerdictSeverity
from hpckit.model.moment import format_time_span
from hpckit.model.plain import LONGEST_S
from hpckit.planning.diagnosis.thresholds import Thresholds
from hpckit.values import replace

MOST_NAMED = 4
_GB = 1e9
_MINUTE_S = 60
_TENTH = 0.1

MORE_CPUS = (
    "Ask for more CPUs for each rank (resources.cpus_per_task), or for whole nodes "
    "(resources.exclusive=true) if other jobs use them."
)
"""The remedy where tasks wait for CPUs."""


def format_percentage(value: float) -> str:
    """Return a share of 1 in two digits: `41 %`, `4.2 %`."""
    if abs(value) < _TENTH:
        return f"{value * 100:.1f} %"
    return f"{value * 100:.0f} %"


def format_duration(seconds: float) -> str:
    """Return a duration: `0.82 s`, `12 s`, `2 h 10 min`."""
    if seconds >= _MINUTE_S:
        return format_time_span(timedelta(seconds=min(seconds, LONGEST_S)))
    return f"{seconds:.2g} s"


def format_gigabytes(size: float) -> str:
    """Return a size in gigabytes: `42 GB`, `1.5 GB`."""
    return f"{size / _GB:.0f} GB" if size >= 10 * _GB else f"{size / _GB:.1f} GB"


def round_known_evidence(values: Mapping[str, EvidenceValue]) -> dict[str, EvidenceValue]:
    """Return evidence without values that are unknown, numbers in six significant digits."""
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }


def build_verdict_rated_by_loss(
    kind: VerdictKind, loss: float, words: tuple[str, str], limits: Thresholds, **found: EvidenceValue
) -> Verdict:
    """Return a verdict whose severity follows from its loss; `words` are message and remedy."""
    small = VerdictSeverity.medium if loss >= limits.medium_loss else VerdictSeverity.low
    severity = VerdictSeverity.high if loss >= limits.high_loss else small
    lost = round(min(max(loss, 0.0), 1.0), 4)
    return replace(build_verdict_without_loss(kind, severity, words, **found), loss=lost)


def build_verdict_without_loss(
    kind: VerdictKind, severity: VerdictSeverity, words: tuple[str, str], **found: EvidenceValue
) -> Verdict:
    """Return a verdict that says nothing about lost time; `words` are message and remedy."""
    message, remedy = words
    return Verdict(
        kind=kind, severity=severity, message=message, remedy=remedy, evidence=round_known_evidence(found)
    )
