"""Promises of the order of nodes: neighbours of the layout are neighbours in the network."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.planning.recovery.node_choice import list_switches_above_node, sort_nodes_by_switches

NETWORKS = st.lists(st.sampled_from([("a", "1"), ("a", "2"), ("b", "1"), ("b", "3")]), max_size=20)


def named(network: list[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the switches of nodes by their names, in the order of an allocation."""
    return {f"n{number:02d}": path for number, path in enumerate(network)}


@given(network=NETWORKS)
def test_nodes_of_a_switch_stand_together_in_their_order(network: list[tuple[str, ...]]) -> None:
    """At each level; no node is lost, and within a switch the allocation's order stays."""
    switches = named(network)
    order = sort_nodes_by_switches(tuple(switches), switches)
    assert sorted(order) == sorted(switches)
    for level in (1, 2):
        runs = [key for key, _ in groupby(switches[node][:level] for node in order)]
        assert len(runs) == len(set(runs))
    for path in set(network):
        own = [node for node in order if switches[node] == path]
        assert own == sorted(own)


@given(network=NETWORKS, size=st.integers(2, 4), domain=st.sampled_from((1, 2)))
def test_as_many_replicas_as_can_be_are_within_a_switch(
    network: list[tuple[str, ...]], size: int, domain: int
) -> None:
    """Replicas that cross switches are made of what the switches leave over."""
    switches = named(network)
    order = sort_nodes_by_switches(tuple(switches), switches, replica_nodes=size, domain_nodes=domain)
    assert sorted(order) == sorted(switches)
    replicas = [order[at : at + size] for at in range(0, len(order), size)]
    within = [
        replica for replica in replicas if len(replica) == size and len({switches[n] for n in replica}) == 1
    ]
    assert len(within) == sum(network.count(path) // size for path in set(network))


def test_domains_stay_together_where_replicas_cannot() -> None:
    """Replicas of four nodes, in blocks of three: pairs joined by NVLink are not torn apart."""
    switches = named([("x",), ("y",), ("x",), ("y",), ("x",), ("y",)])
    order = sort_nodes_by_switches(tuple(switches), switches, replica_nodes=4, domain_nodes=2)
    assert order == ("n00", "n02", "n01", "n03", "n04", "n05")


def test_order_of_the_allocation_stays_where_switches_are_unknown() -> None:
    """A total order or none: one node without an address, and nothing is moved."""
    switches = named([("b",), (), ("a",)])
    assert sort_nodes_by_switches(("n02", "n00", "n01"), switches) == ("n02", "n00", "n01")


@pytest.mark.parametrize(
    ("address", "pattern", "switches"),
    [
        ("root.leaf2.n7", "switch.switch.node", ("root", "leaf2")),
        ("leaf.n7.cluster.org", "switch.node", ("leaf",)),
        ("n7.cluster.org", "node", ()),
        ("block3.n7", "block.node", ("block3",)),
        ("root.leaf2.n7", "", ("root", "leaf2")),
        ("n7", "", ()),
        ("", "", ()),
        ("x." * 1000, "", ()),
    ],
)
def test_address_of_a_node_is_read_by_its_pattern(
    address: str, pattern: str, switches: tuple[str, ...]
) -> None:
    """What Slurm sets for topology/tree, block and flat, also for node names with dots."""
    environ = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert list_switches_above_node(environ) == switches
    assert list_switches_above_node({}) == ()
