"""All that will not work, or may not, between two machines and a run. Pure."""

from __future__ import annotations

from hpckit.model.environment.comparison import EnvironmentComparison
from hpckit.model.finding import Finding, Severity
from hpckit.planning.compatibility.cuda import bindings_findings, cuda_findings
from hpckit.planning.compatibility.host import host_findings
from hpckit.planning.compatibility.networks import network_findings
from hpckit.planning.compatibility.sides import side_findings


def judge_environment(comparison: EnvironmentComparison) -> tuple[Finding, ...]:
    """Return the findings, errors first; the key of each is the name of a fact.

    What is unknown gives no finding.
    """
    found = [
        *cuda_findings(comparison),
        *side_findings(comparison),
        *host_findings(comparison),
        *network_findings(comparison),
        *bindings_findings(comparison),
    ]
    return tuple(sorted(found, key=lambda one: one.severity is not Severity.error))
