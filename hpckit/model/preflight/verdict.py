"""What an inspection says of a node."""

from __future__ import annotations

from enum import StrEnum

from hpckit.model.preflight.settings import PreflightLevel
from hpckit.values import dataclass


class HealthVerdict(StrEnum):
    """Whether a node can train."""

    ok = "ok"
    """nothing was found"""
    warn = "warn"
    """it can train; something may cost time, or fail later"""
    crit = "crit"
    """it cannot train, or its results cannot be trusted: it is avoided"""
    unknown = "unknown"
    """the inspection gave no answer; nothing is concluded from that"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """One thing that is wrong with a node.

    `check` names what was inspected: `ecc`, `nvlink`, `driver`, `shared memory` ... `gpu` is the
    UUID of the GPU, if it is about one. `hint` says what to do.
    """

    check: str
    verdict: HealthVerdict
    message: str
    hint: str = ""
    gpu: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInspection:
    """The verdict on one node: that of its worst finding."""

    node: str
    level: PreflightLevel
    verdict: HealthVerdict
    findings: tuple[HealthFinding, ...] = ()

    @property
    def reason(self) -> str:
        """The critical findings in words; empty without any."""
        crit = [
            finding.message for finding in self.findings if finding.verdict is HealthVerdict.crit
        ]
        return "; ".join(crit)
