"""Promises of planning.diagnosis.evidence: which network NCCL uses, in its own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.planning.diagnosis.diagnose import diagnose_run
from hpckit.planning.diagnosis.evidence import HostUse, NcclTransport, RunEvidence, parse_nccl_log

HEAD = "n1:4711:4711 [0] NCCL INFO "
INFINIBAND = [
    "NCCL version 2.27.5+cuda12.9",
    f"{HEAD}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.0.1<0>",
    f"{HEAD}Using network IB",
    f"{HEAD}Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    f"{HEAD}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    f"{HEAD}Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
]
SOCKETS = [
    f"{HEAD}Failed to open libibverbs.so[.1]",
    f"{HEAD}NET/Socket : Using [0]eth0:10.0.0.1<0>",
    f"{HEAD}Initialized NET plugin Socket",
    f"{HEAD}Assigned NET plugin Socket to comm",
    f"{HEAD}Using network Socket",
    f"{HEAD}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
    f"{HEAD}Channel 00 : 0[0] -> 2[2] via SHM/direct/direct",
]


def test_infiniband_is_told() -> None:
    """The network, and NCCL's version."""
    found = parse_nccl_log(INFINIBAND)
    assert found == NcclTransport(network="IB", version="2.27.5+cuda12.9")
    assert not found.uses_sockets


def test_sockets_are_told_with_the_reason() -> None:
    """What NCCL could not open is part of the answer."""
    found = parse_nccl_log(SOCKETS)
    assert found.uses_sockets
    assert found.reason == "Failed to open libibverbs.so[.1]"


@pytest.mark.parametrize("network", ["AWS Libfabric", "IBext_v8", "NCCL_OFI"])
def test_plugins_are_networks_of_their_own(network: str) -> None:
    """A plugin's name is kept, and it is no socket."""
    found = parse_nccl_log([f"{HEAD}Using network {network}"])
    assert found.network == network.split(maxsplit=1)[0]
    assert not found.uses_sockets


@given(st.lists(st.text(max_size=80)))
def test_any_text_is_read(lines: list[str]) -> None:
    """Other lines, cut or damaged ones, say nothing."""
    found = parse_nccl_log(lines)
    assert found.network is None


def test_sockets_beside_infiniband_are_a_verdict() -> None:
    """Slow for nothing: said with NCCL's own reason, and only if there is InfiniBand."""

    def kinds(lines: list[str], ports: int | None) -> list[str]:
        host = HostUse(node="n1", seconds=60, samples=12, infiniband_ports=ports)
        evidence = RunEvidence(hosts=(host,), nccl=parse_nccl_log(lines))
        return [f"{one.kind} {one.message}" for one in diagnose_run(evidence)]

    (words,) = kinds(SOCKETS, 2)
    assert words.startswith("communication_bound NCCL connects the nodes over sockets")
    assert "libibverbs" in words
    assert kinds(SOCKETS, 0) == kinds(SOCKETS, None) == kinds(INFINIBAND, 2) == []
