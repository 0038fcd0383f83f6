"""Events about nodes, with the base of all events."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.environment.health import HealthVerdict, NodeInspection
from hpckit.model.node_setup import ContainerCheck
from hpckit.model.settings import PreflightLevel
from hpckit.model.states import DrainAction
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str] = ""
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJoined(Event):
    """The agent of a node reported to the supervisor.

    `switches` are those above the node, `satellite` is the job that brings it.
    """

    kind: ClassVar[str] = "agent_joined"
    node: str
    node_rank: int
    pid: int
    switches: tuple[str, ...] = ()
    satellite: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SatelliteLeft(Event):
    """The node of a satellite job left, as announced; `reason` says why."""

    kind: ClassVar[str] = "satellite_left"
    node: str
    satellite: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    """The agent of a node stopped reporting, or its connection ended."""

    kind: ClassVar[str] = "node_lost"
    node: str
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDraining(Event):
    """A node of the round is being drained, for the administrator's `reason`.

    `action` is what the run does about it. The event is recorded again when that changes.
    """

    kind: ClassVar[str] = "node_draining"
    node: str
    reason: str
    action: DrainAction


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerFound(Event):
    """A rank of the round is slower than its peers: for the first time, or much more than before.

    `straggler` says by how much, on which node and with which GPU.
    """

    kind: ClassVar[str] = "straggler_found"
    round: int
    straggler: Straggler


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesInspected(Event):
    """Agents inspected their nodes, before a round or after a failure.

    Of the nodes in `fine` nothing was found; `troubled` has the others. The agents of `lost` fell
    silent meanwhile.
    """

    kind: ClassVar[str] = "nodes_inspected"
    level: PreflightLevel
    took_s: float
    fine: tuple[str, ...]
    troubled: tuple[NodeInspection, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def inspections(self) -> tuple[NodeInspection, ...]:
        """All nodes, those with findings first."""
        fine = (NodeInspection(node=node, level=self.level, verdict=HealthVerdict.ok) for node in self.fine)
        return *self.troubled, *fine


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerChecked(Event):
    """What an agent found in its container before its ranks started."""

    kind: ClassVar[str] = "container_checked"
    node: str
    found: ContainerCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged(Event):
    """Data was brought to a node: `how` is copied, tree, kept, mounted or linked."""

    kind: ClassVar[str] = "staged"
    node: str
    name: str
    bytes: int
    seconds: float
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOut(Event):
    """New results of a node were copied to the run's folder."""

    kind: ClassVar[str] = "staged_out"
    node: str
    name: str
    bytes: int
    seconds: float
