"""The orders that start a round: which ranks each node has, and where rank 0's store listens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.goodput import SaveCost
from hpckit.runtime.channel import messages
from hpckit.runtime.channel.listen import LOOPBACK, is_loopback
from hpckit.runtime.supervisor.agents import Peer


def start_orders(
    members: Sequence[Peer],
    *,
    number: int,
    tasks_per_node: int,
    port: int,
    between_failures: timedelta,
    save_cost: SaveCost | None,
) -> Iterator[tuple[int, messages.StartRound]]:
    """Yield the node rank of each member, and its order; `port` is reserved on the first one."""
    nodes = compress_nodes(member.node for member in members)
    for place, peer in enumerate(members):
        yield (
            peer.node_rank,
            messages.StartRound(
                round=number,
                nodes=nodes,
                address=_address(peer, members),
                node_rank=place,
                first_rank=place * tasks_per_node,
                local_world_size=tasks_per_node,
                world_size=tasks_per_node * len(members),
                num_nodes=len(members),
                master_addr=master_host(members),
                master_port=port,
                mtbf_hours=between_failures / timedelta(hours=1),
                save_cost=save_cost,
            ),
        )


def master_host(members: Sequence[Peer]) -> str:
    """Return the address by which the nodes of a round reach the node of rank 0."""
    first = members[0]
    return LOOPBACK if len(members) == 1 else _address(first, members) or first.node


def _address(member: Peer, members: Sequence[Peer]) -> str:
    """Return the address by which the other members reach the node of one; empty if none is known.

    The address from which its agent connects is the one that routes between nodes. An agent on
    this host connects over loopback; then it is the address by which another agent reaches us.
    """
    others = (one.channel.here for one in members if one is not member)
    return next((one for one in (member.channel.peer, *others) if not is_loopback(one)), "")
