"""A node's report on its health, and the verdict. None is unknown: nothing follows from it."""

from __future__ import annotations

from enum import StrEnum

from hpckit.model.environment.facts import EnvironmentFacts, GpuFacts
from hpckit.model.settings import PreflightLevel
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class XidSeen:
    """An XID error of a GPU that the sampler of this attempt has seen."""

    uuid: str | None
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """What a device computed: a GPU by its UUID, or `cpu`.

    `matmul_flops` in floating point operations per second, `copy_bytes_s` and the rates between
    host and device in bytes per second. `checksum` is a digest of the exact result of a product of
    matrices of whole numbers, `repeats` whether a second one gave the same. `all_reduce_bytes_s` is
    the bus bandwidth of a sum over all GPUs of the node. `pcie` is the GPU's link while data went
    to it. `problem` says what went wrong, if something did.
    """

    device: str
    name: str
    matmul_flops: float | None = None
    checksum: str | None = None
    repeats: bool | None = None
    copy_bytes_s: float | None = None
    to_device_bytes_s: float | None = None
    to_host_bytes_s: float | None = None
    all_reduce_bytes_s: float | None = None
    pcie: GpuFacts | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """All that a node tells at an inspection.

    `unresolved` are the names of other hosts that it does not know. `write_s` is how long a small file in the
    run's folder took to be written, `write_problem` why it was not. `available_bytes` is the memory that is
    free for a run. `far_gpus` are the GPUs, as the job numbers them, next to which it has no CPU.
    """

    environment: EnvironmentFacts
    gpus: tuple[GpuFacts, ...] | None = None
    unresolved: tuple[str, ...] = ()
    write_s: float | None = None
    write_problem: str = ""
    available_bytes: int | None = None
    xids: tuple[XidSeen, ...] = ()
    speeds: tuple[DeviceSpeed, ...] = ()
    far_gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRate:
    """The bus bandwidth of sums over all devices of a node and of another one, in bytes per second.

    Null if they could not add, with the problem.
    """

    partner: str
    bytes_s: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """The answer of a node, as its supervisor received it.

    Its clock is ahead of the supervisor's by `ahead_least_s` to `ahead_most_s` seconds. `problem`
    says why there is no `health`. `pairs` is what it measured with its neighbours.
    """

    node: str
    health: NodeHealth | None = None
    ahead_least_s: float = 0.0
    ahead_most_s: float = 0.0
    problem: str = ""
    pairs: tuple[PairRate, ...] = ()


class HealthVerdict(StrEnum):
    """Whether a node can train."""

    ok = "ok"
    """nothing was found"""
    warn = "warn"
    """it can train; something may cost time, or fail later"""
    crit = "crit"
    """it cannot train, or its results cannot be trusted: it is avoided"""
    unknown = "unknown"
    """the inspection gave no answer; nothing is concluded from that"""


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One thing that is wrong with a node.

    `check` names what was inspected: `ecc`, `nvlink`, `driver`, `shared memory` ... `gpu` is the
    UUID of the GPU, if it is about one. `hint` says what to do.
    """

    check: str
    verdict: HealthVerdict
    message: str
    hint: str = ""
    gpu: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInspection:
    """The verdict on one node: that of its worst finding."""

    node: str
    level: PreflightLevel
    verdict: HealthVerdict
    findings: tuple[HealthFinding, ...] = ()

    @property
    def critical_findings_text(self) -> str:
        """The critical findings in words; empty without any."""
        crit = [finding.message for finding in self.findings if finding.verdict is HealthVerdict.crit]
        return "; ".join(crit)
