"""The result of a check of a launch: findings, expected starts, and the estimated cost."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from hpckit.model.parallel.model_check import CheckedModel
from hpckit.values import dataclass


class Severity(StrEnum):
    """An `error` refuses the launch; a `warning` is printed, and the launch continues."""

    error = "error"
    warning = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that will not work (error) or may not work (warning).

    `key` and `value` are the configuration's. `message` says what is wrong and what is allowed,
    `hint` what to do.
    """

    severity: Severity
    key: str
    value: str
    message: str
    hint: str = ""

    @property
    def is_error(self) -> bool:
        """Whether it keeps a launch from starting."""
        return self.severity is Severity.error


def build_error_finding(key: str, value: object, message: str, hint: str = "") -> Finding:
    """Return a finding that refuses the launch."""
    return Finding(severity=Severity.error, key=key, value=str(value), message=message, hint=hint)


def build_warning_finding(key: str, value: object, message: str, hint: str = "") -> Finding:
    """Return a finding that is only printed."""
    return Finding(severity=Severity.warning, key=key, value=str(value), message=message, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStart:
    """When Slurm would start a job that is submitted now: a forecast, not a promise.

    `at` is null if Slurm gave no time.
    """

    job_index: int
    at: datetime | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The most that all runs together can take if each uses its whole time limit once.

    Hours of GPUs, and hours of CPUs of the runs without GPUs. Null: a time limit is not known.
    """

    gpu_hours: float | None
    cpu_hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The whole result of a check; `unchecked` lists what could not be checked, and why.

    `notices` are the transports of notices, whose addresses are well-formed. `layouts` are those of
    the runs in words, if they are more than plain data parallelism; `models` are those that were
    checked in them. `preemption` says what becomes of preempted jobs.
    """

    findings: tuple[Finding, ...]
    starts: tuple[ExpectedStart, ...]
    estimate: CostEstimate
    unchecked: tuple[str, ...]
    notices: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    models: tuple[CheckedModel, ...] = ()
    preemption: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that refuse the launch."""
        return tuple(finding for finding in self.findings if finding.is_error)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are only printed."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.warning)
