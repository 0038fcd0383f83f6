"""Which restarts the policy still allows. Pure."""

from __future__ import annotations

from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Recovery
from hpckit.planning.recovery.ledger import Ledger


def exhausted(
    ledger: Ledger, failure: Failure, policy: Recovery, left_out: frozenset[str] = frozenset()
) -> str | None:
    """Return why the latest failure, which is in the ledger, ends the run; None if it does not.

    Empty if the policy allows no restart for such a failure: that needs no explanation.
    """
    if failure.checkpoint is not None:
        return None
    allowed = policy.restarts.get(failure.cause, 0)
    if allowed == 0:
        return ""
    # Announced ends reveal nothing about the run, even if they repeat; its time limit may.
    sent_away = failure.cause.planned and failure.cause is not Cause.time_limit
    count = 0 if sent_away else ledger.repeated()
    if count >= policy.max_identical_failures:
        return f"the same failure {count} times without getting further"
    spent = ledger.spent(failure.cause, left_out)
    if spent > allowed:
        return (
            f"{spent} failures of this kind without getting further; "
            f"recovery.restarts.{failure.cause} is {allowed}"
        )
    return None
