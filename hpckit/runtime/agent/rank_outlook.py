"""What the ranks of one node need to know of their run, and their variables."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hpckit.model.cluster.gpus_asked import cpus_of_task
from hpckit.model.failure import Cause
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.model.plan import SecretVariables
from hpckit.model.rank import RankInfo
from hpckit.planning.tracker import rank_variables_of_tracker
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths, RunPaths
from hpckit.runtime.channel import messages
from hpckit.runtime.channel.listen import needed_interface
from hpckit.runtime.channel.pace import BEAT_S, pace_s
from hpckit.runtime.environ import rank_variables, task_variables
from hpckit.runtime.run_variables import run_variables
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutlook:
    """What every rank of this node needs to know of its run."""

    launch: Launch
    run: RunPaths
    attempt: AttemptPaths
    settings: LaunchConfig
    secrets: SecretVariables
    node: str
    info: RankInfo

    def pace_s(self, least_s: float = BEAT_S) -> float:
        """Return the interval between this node's messages to the supervisor, in seconds."""
        limit_s = self.settings.runtime.node_timeout_s
        return pace_s(self.info.world_size, limit_s, least_s=least_s)

    def variables(self, environ: Mapping[str, str], order: messages.StartRound) -> dict[str, str]:
        """Return the environment that all ranks of this node share.

        It may ask the network for the name of this host: call it in a thread.
        """
        index, cost = int(self.run.folder.name), order.save_cost
        return {
            **_network(order),
            **run_variables(self.launch, index, self.settings, self.secrets, environ),
            "TORCHELASTIC_RUN_ID": self.run.folder.name,
            "TORCHELASTIC_MAX_RESTARTS": str(self.settings.recovery.restarts.get(Cause.signal, 0)),
            "HPCKIT_ATTEMPT_DIR": str(self.attempt.folder),
            "HPCKIT_ROUND": str(order.round),
            "HPCKIT_MTBF_HOURS": str(order.mtbf_hours),
            "HPCKIT_SAVE_COST": "" if cost is None else json.dumps(to_plain(cost)),
        }

    def identity(self, info: RankInfo, order: messages.StartRound) -> dict[str, str]:
        """Return the variables that say who a rank is: torch's, in a job a task's, a tracker's."""
        given = {**self.settings.env, **self.secrets.env}
        tracked = rank_variables_of_tracker(self.settings.tracker, info.rank, given)
        own = rank_variables(info) | tracked
        if self.launch.cluster.kind is ClusterKind.local:
            return own
        return own | task_variables(info, order.nodes, cpus_of_task(self.settings.resources))


def _network(order: messages.StartRound) -> dict[str, str]:
    """Return what tells gloo, and where it has to be told NCCL, by which interface ranks meet.

    Else gloo listens at the address of the host's name: on one node other hosts need not reach it,
    and on several nodes they have to.
    """
    if order.num_nodes == 1:
        return {"GLOO_SOCKET_IFNAME": "lo"}
    name = needed_interface(order.address) if order.address else None
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
