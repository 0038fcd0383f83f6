"""What `hpckit bench comm --json` prints: figures, promises, findings. Pure."""

from __future__ import annotations

from hpckit.model.finding import Severity
from hpckit.model.interconnect.kept import MeasuredShape
from hpckit.model.interconnect.measurement import InterconnectMeasurement
from hpckit.model.interconnect.verdict import InterconnectVerdict, OperationVerdict
from hpckit.model.plain import plain_fields, to_plain, without_nan


def interconnect_document(
    measured: InterconnectMeasurement, shape: MeasuredShape, verdict: InterconnectVerdict
) -> dict[str, object]:
    """Return the object; rates are bytes per second, times seconds, sizes bytes."""
    found = measured.search
    judged = {one.operation: one for one in verdict.operations}
    document: dict[str, object] = {
        "at": to_plain(measured.at),
        "shape": to_plain(shape),
        **plain_fields(measured, "hosts", "ranks_per_node", "torch", "nccl", "network", "seconds"),
        "operations": [
            {
                "operation": one.operation.value,
                "missing": one.missing or None,
                "ended": one.ended or None,
                "wrong_ranks": list(one.wrong_ranks),
                "times": to_plain(one.times),
                **_judged(judged.get(one.operation)),
            }
            for one in measured.operations
        ],
        "links": to_plain(measured.links),
        "search": to_plain(found),
        "slow_nodes": [measured.hosts[one] for one in found.found.nodes] if found else [],
        "slow_links": [
            [measured.hosts[one.first], measured.hosts[one.second]] for one in found.found.links
        ]
        if found
        else [],
        "findings": [
            {
                "level": one.severity.value,
                "subject": one.key,
                **plain_fields(one, "value", "message", "hint"),
            }
            for one in verdict.findings
        ],
        "healthy": not any(one.severity is Severity.error for one in verdict.findings),
    }
    plain: dict[str, object] = without_nan(document)
    return plain


def _judged(one: OperationVerdict | None) -> dict[str, object]:
    """Return what is concluded of an operation; null is unknown."""
    return {
        "bus_bytes_per_s": one and one.bus_bytes_per_s,
        "fit": None if one is None else to_plain(one.fit),
        "promise_bytes_per_s": one and one.promise.bytes_per_s,
        "promise": one and one.promise.words,
        "share": one and one.share,
        "earlier_bytes_per_s": one and one.earlier,
        "earlier_count": one.earlier_count if one else 0,
    }
