"""What the ranks of one node need to know of their run, and their variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from hpckit.model.failure import Cause
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.model.plan import SecretVariables
from hpckit.model.rank import RankInfo
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths, RunPaths
from hpckit.runtime.channel import messages
from hpckit.runtime.channel.pace import BEAT_S, pace_s
from hpckit.runtime.run_variables import run_variables


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
        """Return the environment that all ranks of this node share."""
        index, cost = int(self.run.folder.name), order.save_cost
        # Without it, gloo listens on the address of the host's name, which other hosts reach.
        defaults = {"GLOO_SOCKET_IFNAME": "lo"} if order.num_nodes == 1 else {}
        return {
            **defaults,
            **run_variables(self.launch, index, self.settings, self.secrets, environ),
            "TORCHELASTIC_RUN_ID": self.run.folder.name,
            "TORCHELASTIC_MAX_RESTARTS": str(self.settings.recovery.restarts.get(Cause.signal, 0)),
            "HPCKIT_ATTEMPT_DIR": str(self.attempt.folder),
            "HPCKIT_ROUND": str(order.round),
            "HPCKIT_MTBF_HOURS": str(order.mtbf_hours),
            "HPCKIT_SAVE_COST": "" if cost is None else json.dumps(to_plain(cost)),
        }
