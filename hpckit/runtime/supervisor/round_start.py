"""The orders that start a round: which ranks each node has, and where rank 0's store listens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from hpckit.model.cluster.nodes import compress_nodes
from hpckit.model.goodput import SaveCost
from hpckit.runtime.channel import messages
from hpckit.runtime.channel.listen import LOOPBACK, is_loopback
from hpckit.runtime.supervisor.agents import Peer
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrders:
    """What the members of a round are told; `port` is reserved on the first one."""

    number: int
    members: Sequence[Peer]
    tasks_per_node: int
    port: int
    between_failures: timedelta
    save_cost: SaveCost | None

    def orders(self) -> Iterator[tuple[int, messages.StartRound]]:
        """Yield the node rank of each member, and its order."""
        nodes = compress_nodes(one.node for one in self.members)
        for place, peer in enumerate(self.members):
            yield (
                peer.node_rank,
                messages.StartRound(
                    round=self.number,
                    nodes=nodes,
                    address=_address(peer, self.members),
                    node_rank=place,
                    first_rank=place * self.tasks_per_node,
                    local_world_size=self.tasks_per_node,
                    world_size=self.tasks_per_node * len(self.members),
                    num_nodes=len(self.members),
                    master_addr=master_host(self.members),
                    master_port=self.port,
                    mtbf_hours=self.between_failures / timedelta(hours=1),
                    save_cost=self.save_cost,
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
