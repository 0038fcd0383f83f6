"""Satellites whose nodes are being drained: the run leaves them at a boundary.

A drained node of the run's own job is decided on in planning.recovery.boundary: without a spare the
run stays, or asks for a new attempt. A satellite costs a restart at most, so that it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpckit.model import events
from hpckit.model.states import DrainAction
from hpckit.runtime.clock import now
from hpckit.runtime.supervisor.elastic.resizing import Resizing


@dataclass(frozen=True, slots=True, kw_only=True)
class SatelliteDrains:
    """Lets satellites go whose nodes are being drained."""

    resizing: Resizing
    record: Callable[[events.Event], None]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of satellites, to be asked about with those of the run's own job."""
        peers = self.resizing.agents.peers.values()
        return tuple(peer.node for peer in peers if peer.satellite is not None)

    def leave(self, found: Mapping[str, str], *, saved: bool) -> Mapping[str, str]:
        """Let drained satellites go once the run has saved; return the other nodes of `found`.

        The nodes of the satellite's job are left together, as they came together.
        """
        agents = self.resizing.agents
        brought = {peer.node: peer for peer in agents.peers.values() if peer.satellite is not None}
        for node in found if saved else ():
            peer = brought.get(node)
            if peer is None or peer.satellite is None or peer.leaving:
                continue
            why = f" ({found[node]})" if found[node] else ""
            agents.dismiss(peer.satellite, f"{node} is being drained{why}")
            told = events.NodeDraining(
                at=now(), node=node, reason=found[node], action=DrainAction.leave
            )
            self.record(told)
            self.resizing.resize()
        return {node: why for node, why in found.items() if node not in brought}
