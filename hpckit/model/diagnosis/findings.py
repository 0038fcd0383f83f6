"""What telemetry and the record say of a run, together."""

from __future__ import annotations

from dataclasses import dataclass

from hpckit.model.diagnosis.verdict import Diagnosis
from hpckit.model.telemetry.energy import EnergyBill
from hpckit.model.telemetry.usage import RunTelemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFindings:
    """What a run used of its nodes, what that says, and what it comes to.

    `gpus_asked` is how many GPUs it asked for.
    """

    diagnosis: Diagnosis
    telemetry: RunTelemetry
    energy: EnergyBill
    gpus_asked: int = 0

    @property
    def gpus_unmeasured(self) -> bool:
        """Whether it asked for GPUs, and none of them was measured."""
        return self.gpus_asked > 0 and not self.energy.energy.gpu_s
