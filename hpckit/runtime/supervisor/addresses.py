"""The addresses by which the nodes of a round reach each other."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.runtime.channel.listen import LOOPBACK, is_loopback
from hpckit.runtime.supervisor.agents import Peer


def master_host(members: Sequence[Peer]) -> str:
    """Return the address by which the nodes of a round reach the node of rank 0."""
    first = members[0]
    return LOOPBACK if len(members) == 1 else address_of(first, members) or first.node


def address_of(member: Peer, members: Sequence[Peer]) -> str:
    """Return the address by which the other members reach the node of one; empty if none is known.

    The address from which its agent connects is the one that routes between nodes. An agent on
    this host connects over loopback; then it is the address by which another agent reaches us.
    """
    others = (peer.channel.here for peer in members if peer is not member)
    return next(
        (address for address in (member.channel.peer, *others) if not is_loopback(address)), ""
    )
