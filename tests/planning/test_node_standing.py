"""Promises about the history of nodes: what counts, how it decays, and what launches leave out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from hpckit.model import events
from hpckit.model.environment.health import HealthFinding, HealthVerdict, NodeInspection
from hpckit.model.failure import Cause, Failure
from hpckit.model.nodes import IncidentKind, NodeIncident
from hpckit.model.settings import PreflightLevel
from hpckit.model.states import RoundAction
from hpckit.planning.nodes import (
    AVOIDED,
    HALF_LIFE,
    choose_nodes_to_avoid,
    extract_node_incidents,
    rate_nodes_by_incidents,
)

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def incident(node: str, ago: timedelta, kind: str = "unhealthy") -> NodeIncident:
    """Return an incident of some time ago."""
    return NodeIncident(node=node, at=NOW - ago, kind=IncidentKind(kind), run="a.0")


def inspected(bad: int, fine: int) -> events.NodesInspected:
    """Return an inspection that found some nodes to be bad."""
    finding = HealthFinding(check="ecc", verdict=HealthVerdict.crit, message="bad memory")
    return events.NodesInspected(
        at=NOW,
        level=PreflightLevel.fast,
        took_s=1.0,
        fine=tuple(f"f{place}" for place in range(fine)),
        troubled=tuple(
            NodeInspection(
                node=f"b{place}", level=PreflightLevel.fast, verdict=HealthVerdict.crit, findings=(finding,)
            )
            for place in range(bad)
        ),
    )


def ended(cause: Cause, node: str | None) -> events.RoundEnded:
    """Return the end of a round for which nodes are blamed, or none."""
    failure = Failure(cause=cause, message="why", node=node)
    return events.RoundEnded(
        at=NOW, round=0, first_step=None, step=None, action=RoundAction.end, failure=failure
    )


def test_events_that_blame_nodes_are_incidents() -> None:
    """Bad memory, a lost node, a straggler; what programs do themselves is none."""
    (bad,) = extract_node_incidents(inspected(1, 3), "a.0")
    assert (bad.node, bad.kind, bad.message, bad.run) == ("b0", "unhealthy", "bad memory", "a.0")
    assert [one.node for one in extract_node_incidents(ended(Cause.node_lost, "n1, n2"), "a.0")] == [
        "n1",
        "n2",
    ]
    assert [one.kind for one in extract_node_incidents(ended(Cause.straggler, "n1"), "a.0")] == ["straggler"]
    for cause in (Cause.exception, Cause.signal, Cause.hang, Cause.unhealthy):
        assert not list(extract_node_incidents(ended(cause, "n1"), "a.0"))


def test_node_that_is_lost_during_preflight_is_an_incident() -> None:
    """A spare takes its place, and no round fails; most nodes at once are nobody's fault."""
    (lost,) = extract_node_incidents(replace(inspected(0, 3), lost=("n9",)), "a.0")
    assert (lost.node, lost.kind) == ("n9", "lost")
    many = tuple(f"l{place}" for place in range(7))
    assert not list(extract_node_incidents(replace(inspected(0, 3), lost=many), "a.0"))


def test_many_nodes_at_once_are_nobodys_incident() -> None:
    """A network that fails, or a fault that most nodes share, says nothing of any node."""
    assert not list(extract_node_incidents(inspected(20, 3), "a.0"))
    assert not list(extract_node_incidents(ended(Cause.node_lost, None), "a.0"))


def test_unhealthy_node_is_avoided_for_three_days() -> None:
    """Then its weight has halved, and it gets another chance."""
    for ago, avoided in ((HOUR, True), (HALF_LIFE - HOUR, True), (HALF_LIFE + HOUR, False)):
        (found,) = rate_nodes_by_incidents([incident("n1", ago)], NOW)
        assert (found.avoided_until is not None) == avoided
    (fresh,) = rate_nodes_by_incidents([incident("n1", timedelta())], NOW)
    assert fresh.avoided_until == NOW + HALF_LIFE


def test_one_fault_that_strikes_many_runs_counts_once() -> None:
    """Two hundred runs lose a node together; a second loss on another day counts again."""
    together = [incident("n1", timedelta(minutes=place % 50), "lost") for place in range(200)]
    (found,) = rate_nodes_by_incidents(together, NOW)
    assert found.weight < 0.61
    assert len(found.incidents) == 200
    twice = [incident("n1", timedelta(0), "lost"), incident("n1", timedelta(days=1), "lost")]
    assert rate_nodes_by_incidents(twice, NOW)[0].weight > found.weight


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(-2, 40 * 24), st.sampled_from(IncidentKind)),
        max_size=30,
    ),
    st.integers(0, 100),
)
def test_avoided_nodes_are_few_known_bad_and_worst_first(
    drawn: list[tuple[str, int, IncidentKind]], others: int
) -> None:
    """Whatever happened: never more than a tenth, never a node that is wanted or unknown."""
    happened = [incident(node, timedelta(hours=hours), kind) for node, hours, kind in drawn]
    standings = rate_nodes_by_incidents(happened, NOW)
    known = {*"abcde", *(f"n{place}" for place in range(others))}
    left_out = choose_nodes_to_avoid(standings, known, {"a"})
    assert len(left_out) <= max(len(known) / 10, 1)
    assert {one.node for one in left_out} <= set("bcde")
    assert all(one.weight >= AVOIDED - 0.001 for one in left_out)
    assert sorted((one.weight for one in left_out), reverse=True) == [o.weight for o in left_out]
    for standing in standings:
        assert (standing.avoided_until is not None) == (standing.weight >= AVOIDED) or abs(
            standing.weight - AVOIDED
        ) < 0.001
