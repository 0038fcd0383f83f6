"""What is wrong with one node, by what its driver and its host say of GPUs and of itself. Pure.

What also concerns `doctor --env` is judged by planning.compatibility.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpckit.model.counted import format_byte_size, format_count, format_ranges
from hpckit.model.environment.facts import (
    AskedOfNode,
    EnvironmentComparison,
    EnvironmentFacts,
    FolderRole,
    GpuFacts,
)
from hpckit.model.environment.health import HealthFinding, HealthVerdict, NodeHealth, XidSeen
from hpckit.model.telemetry.vocabulary import GpuTrouble
from hpckit.planning.compatibility.judge import find_environment_problems

FATAL_XIDS = frozenset({48, 56, 57, 58, 62, 64, 65, 69, 73, 74, 79, 80, 81, 95, 119, 120})
"""XID errors after which a GPU cannot be trusted until it is reset or exchanged: those that Azure's
node health checks take for fatal, without the ones that a later reset settles (63, 68, 92), and
with 95, an error of memory that is not contained (NVIDIA, "XID Errors")."""
DOUBTFUL_XIDS = frozenset({63, 68, 92, 94})
"""They announce a repair at the next reset, or concern one program alone."""

FOREIGN_BYTES = 500 * 2**20
"""Memory in use before a run starts: contexts and daemons of the system stay below it."""
FOREIGN_SHARE = 0.05
"""Of a GPU's memory: a run that is planned to fill it would run out."""

_TROUBLES: Mapping[GpuTrouble, tuple[str, HealthVerdict, str]] = {
    GpuTrouble.lost: ("gpu lost", HealthVerdict.crit, "does not answer its driver"),
    GpuTrouble.reset_required: ("gpu lost", HealthVerdict.crit, "answers nothing until a reset"),
    GpuTrouble.remap_pending: ("remap", HealthVerdict.crit, "needs a reset to replace memory rows"),
    GpuTrouble.remap_failed: ("remap", HealthVerdict.crit, "could not replace a memory row"),
    GpuTrouble.advised_reset: ("advice", HealthVerdict.crit, "has to be reset, says its driver"),
    GpuTrouble.advised_reboot: ("advice", HealthVerdict.crit, "needs a reboot, says its driver"),
    GpuTrouble.advised_drain: (
        "advice",
        HealthVerdict.crit,
        "should not exchange data with its neighbours, says its driver",
    ),
    GpuTrouble.advised_drain_and_reset: (
        "advice",
        HealthVerdict.crit,
        "should start no new work, says its driver",
    ),
    GpuTrouble.advised_other: ("advice", HealthVerdict.warn, "needs attention, says its driver"),
}
UsualValues = Mapping[tuple[str, str], int]
"""What most GPUs of a name have: active `nvlinks`, lanes of PCIe, whole watts they may take."""
_POWER_APART = 0.02
_TELL_POWER = "ask the administrators: its power limit was lowered, or its power supply is short"
_TELL = "tell the administrators: only they can reset or exchange it"


def find_gpu_problems(
    gpus: Sequence[GpuFacts],
    xids: Sequence[XidSeen],
    node: str,
    usual: UsualValues,
    *,
    shared: bool,
    power_cap_w: float | None = None,
) -> Iterator[HealthFinding]:
    """Yield what is wrong with the GPUs of a node.

    Parameters: `shared`: other runs may use the same GPUs, so that their processes and memory are
    no finding. `power_cap_w` is what the site lets a GPU take.
    """
    for gpu in gpus:
        for trouble in gpu.troubles:
            check, verdict, words = _TROUBLES[trouble]
            yield _build_gpu_finding(check, verdict, gpu, node, words, _TELL)
        if gpu.ecc_uncorrected:
            errors = format_count(gpu.ecc_uncorrected, "uncorrectable memory error")
            words = f"has had {errors} since the driver was loaded"
            yield _build_gpu_finding("ecc", HealthVerdict.crit, gpu, node, words, _TELL)
        yield from _find_nvlink_and_pcie_problems(gpu, node, usual)
        yield from _find_power_limit_problem(gpu, node, usual, power_cap_w)
        if not (shared or gpu.mig):
            yield from _find_foreign_gpu_use(gpu, node)
    for xid in dict.fromkeys(xids):
        if xid.code in FATAL_XIDS | DOUBTFUL_XIDS:
            yield HealthFinding(
                check="xid",
                verdict=HealthVerdict.crit if xid.code in FATAL_XIDS else HealthVerdict.warn,
                gpu=xid.uuid,
                message=f"{xid.uuid or 'a GPU'} on {node} reported XID {xid.code}",
                hint=_TELL,
            )


def find_usual_gpu_values(gpus: Sequence[GpuFacts]) -> UsualValues:
    """Return what most GPUs of the same name have; of several such values the largest."""
    counts: Counter[tuple[str, str, int]] = Counter()
    for gpu in gpus:
        watts = None if gpu.power_limit_w is None else round(gpu.power_limit_w)
        has = {"nvlinks": gpu.nvlinks, "pcie_width": gpu.pcie_width, "power_limit_w": watts}
        counts.update((name, gpu.name, value) for name, value in has.items() if value is not None)
    by_count = sorted(counts.items(), key=lambda one: (one[1], one[0][2]))
    return {(name, gpu): value for (name, gpu, value), _ in by_count}


def _find_nvlink_and_pcie_problems(gpu: GpuFacts, node: str, usual: UsualValues) -> Iterator[HealthFinding]:
    links = usual.get(("nvlinks", gpu.name))
    if links is not None and gpu.nvlinks is not None and gpu.nvlinks < links:
        words = f"has {format_count(gpu.nvlinks, 'active NVLink')}; others of its kind have {links}"
        yield _build_gpu_finding("nvlink", HealthVerdict.crit, gpu, node, words, _TELL)
    width, able, peers = gpu.pcie_width, gpu.pcie_width_max, usual.get(("pcie_width", gpu.name))
    if width is not None and able is not None and width < able:
        words = f"uses {width} of {able} lanes of PCIe"
        crit = peers is not None and peers > width
        verdict = HealthVerdict.crit if crit else HealthVerdict.warn
        yield _build_gpu_finding("pcie", verdict, gpu, node, words, _TELL)


def _find_power_limit_problem(
    gpu: GpuFacts, node: str, usual: UsualValues, power_cap_w: float | None
) -> Iterator[HealthFinding]:
    limit, others = gpu.power_limit_w, usual.get(("power_limit_w", gpu.name))
    if limit is None:
        return
    if others is not None and power_cap_w is not None:
        others = min(others, round(power_cap_w))
    if others is not None and limit < others * (1 - _POWER_APART):
        words = f"may take {limit:g} W, others of its kind {others} W: every rank would wait for it"
        yield _build_gpu_finding("power", HealthVerdict.warn, gpu, node, words, _TELL_POWER)
    elif power_cap_w is not None and limit > power_cap_w * (1 + _POWER_APART):
        words = f"may take {limit:g} W; cluster.power_cap_w is {power_cap_w:g}"
        hint = "nothing has set it: ask the administrators, or for the option of sbatch that does "
        hint += "(cluster.power_cap_option)"
        yield _build_gpu_finding("power", HealthVerdict.warn, gpu, node, words, hint)


def _find_foreign_gpu_use(gpu: GpuFacts, node: str) -> Iterator[HealthFinding]:
    used, whole = gpu.memory_used_bytes or 0, gpu.memory_bytes or 0
    large = used > max(FOREIGN_BYTES, FOREIGN_SHARE * whole)
    verdict = HealthVerdict.crit if large else HealthVerdict.warn
    hint = "left by an earlier job, or from another job: ask the administrators to end it"
    if gpu.processes:
        ids = ", ".join(map(str, gpu.processes[:5]))
        words = f"is used by {format_count(len(gpu.processes), 'other process')} ({ids})"
        words += f", with {format_byte_size(used)}" if used else ""
        yield _build_gpu_finding("gpu processes", verdict, gpu, node, words, hint)
    elif large:
        words = f"has {format_byte_size(used)} of {format_byte_size(whole)} in use before the run starts"
        yield _build_gpu_finding("gpu memory", verdict, gpu, node, words, hint)


def _build_gpu_finding(
    check: str, verdict: HealthVerdict, gpu: GpuFacts, node: str, words: str, hint: str
) -> HealthFinding:
    return HealthFinding(check, verdict, f"GPU {gpu.index} on {node} {words}", hint, gpu.uuid)


LEAST_SHARED = 64 * 2**20
"""Bytes free in /dev/shm below which ranks of a node cannot be expected to start: NCCL takes up to
tens of megabytes for each pair of GPUs, and a DataLoader passes its batches through it."""
SLOW_WRITE_S = 5.0
"""Of a small file: shared file systems take milliseconds, overloaded ones seconds."""
AVAILABLE_SHARE = 0.9
"""Of the memory that was asked for: less is free where something else took it."""
_JUDGED_HERE = frozenset({"memory"})


def find_host_problems(health: NodeHealth, node: str, asked: AskedOfNode) -> Iterator[HealthFinding]:
    """Yield what is wrong with a node apart from its GPUs."""
    yield from _find_environment_problems(health.environment, asked)
    yield from _find_full_shared_memory(health, node)
    yield from _find_host_memory_shortage(health, node, asked)
    yield from _find_run_folder_write_problem(health, node)
    if asked.nodes > 1 and health.unresolved:
        yield HealthFinding(
            check="names",
            verdict=HealthVerdict.crit,
            message=f"{node} does not know the address of {', '.join(health.unresolved)}",
            hint="its DNS, or its /etc/hosts, lacks what other nodes have",
        )
    if health.far_gpus:
        yield HealthFinding(
            check="numa",
            verdict=HealthVerdict.warn,
            message=f"the job has no CPU on {node} next to GPU {format_ranges(health.far_gpus)}: "
            "data takes the way through the other socket",
            hint="ask Slurm for CPUs next to GPUs (resources.additional_parameters.gres_flags="
            "enforce-binding), or for whole nodes (resources.exclusive=true)",
        )


def _find_environment_problems(facts: EnvironmentFacts, asked: AskedOfNode) -> Iterator[HealthFinding]:
    comparison = EnvironmentComparison(here=facts, node=None, asked=asked)
    for finding in find_environment_problems(comparison):
        if finding.key in _JUDGED_HERE:
            continue
        yield HealthFinding(
            check=finding.key,
            verdict=HealthVerdict.crit if finding.is_error else HealthVerdict.warn,
            message=finding.message,
            hint=finding.hint,
        )


def _find_full_shared_memory(health: NodeHealth, node: str) -> Iterator[HealthFinding]:
    found = health.environment.find_file_system(FolderRole.shared_memory)
    if found is None or found.free_bytes is None or found.size_bytes is None:
        return
    if found.free_bytes < min(LEAST_SHARED, found.size_bytes / 2):
        yield HealthFinding(
            check=found.role,
            verdict=HealthVerdict.crit,
            message=f"{found.path} on {node} has {format_byte_size(found.free_bytes)} of "
            f"{format_byte_size(found.size_bytes)} free: ranks and DataLoader workers need more",
            hint=f"`ls -l {found.path}` there shows whose files fill it; earlier jobs leave some",
        )


def _find_host_memory_shortage(health: NodeHealth, node: str, asked: AskedOfNode) -> Iterator[HealthFinding]:
    wanted, granted = asked.memory_bytes, health.environment.memory_bytes
    if wanted is None:
        return
    if granted is not None and granted < wanted:
        yield HealthFinding(
            check="memory",
            verdict=HealthVerdict.crit,
            message=f"{node} grants {format_byte_size(granted)} of memory, and resources.mem_gb "
            f"asks for {format_byte_size(wanted)}",
            hint="lower resources.mem_gb, or choose nodes with more memory",
        )
    elif health.available_bytes is not None and health.available_bytes < AVAILABLE_SHARE * wanted:
        yield HealthFinding(
            check="memory",
            verdict=HealthVerdict.warn,
            message=f"{node} has {format_byte_size(health.available_bytes)} of memory free, and "
            f"resources.mem_gb asks for {format_byte_size(wanted)}",
            hint="other jobs, or files in /dev/shm, take the rest",
        )


def _find_run_folder_write_problem(health: NodeHealth, node: str) -> Iterator[HealthFinding]:
    if health.write_problem:
        yield HealthFinding(
            check="run folder",
            verdict=HealthVerdict.crit,
            message=f"{node} cannot write into the run's folder: {health.write_problem}",
            hint="its mount may be read-only, stale or full there",
        )
    elif health.write_s is not None and health.write_s > SLOW_WRITE_S:
        yield HealthFinding(
            check="run folder",
            verdict=HealthVerdict.warn,
            message=f"{node} took {health.write_s:.1f} s to write a small file into the run's folder",
            hint="the file system is overloaded, or its connection there is bad",
        )
