"""What `hpckit doctor --env` prints: a table of facts, then findings; or one JSON object. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hpckit.model.counted import counted, size_text
from hpckit.model.environment.facts import (
    EnvironmentComparison,
    EnvironmentFacts,
    FileSystemFacts,
    FolderRole,
)
from hpckit.model.finding import Finding
from hpckit.model.plain import plain_fields, to_plain
from hpckit.report.text import Page, TextTable


def environment_page(comparison: EnvironmentComparison, findings: Sequence[Finding]) -> Page:
    """Return the table of facts that differ or that findings are about, and the findings.

    Of one machine alone all facts are shown.
    """
    rows, told = _fact_rows(comparison), {finding.key for finding in findings} | _ALWAYS
    shown = [
        (name, here, node)
        for name, here, node in rows
        if name in told or node is None or here != node
    ]
    page: list[TextTable | str] = [_table(comparison, shown)]
    if alike := len(rows) - len(shown):
        page.append(f"{counted(alike, 'more fact')} alike on both sides; --json has all")
    for finding in findings:
        page.append(f"{finding.severity}: {finding.message}")
        page += [f"  {line}" for line in finding.hint.splitlines()]
    if not findings:
        page.append("nothing was found that would not work")
    return page


def _table(comparison: EnvironmentComparison, rows: Sequence[_Fact]) -> TextTable:
    places: tuple[str, ...] = ("HERE",)
    if comparison.node is not None:
        node = comparison.node.host.upper()
        places = ("HERE", "NODE" if node == "HERE" else node)
    cells = tuple((name, here, there or "")[: 1 + len(places)] for name, here, there in rows)
    return TextTable(header=("FACT", *places), rows=cells, flexible=places)


def environment_document(
    comparison: EnvironmentComparison, findings: Sequence[Finding]
) -> dict[str, object]:
    """Return the object of `doctor --env --json`."""
    clock, node, token = comparison.clock, comparison.node, comparison.token
    return {
        **{side: _machine(getattr(comparison, side)) for side in ("here", "node")},
        **plain_fields(comparison, "asked"),
        "clock_offset_s": None if clock is None else [clock.least_s, clock.most_s],
        "same_output_folder": None if node is None or token is None else node.token == token,
        "findings": [
            plain_fields(finding, "level=severity fact=key value message hint")
            for finding in findings
        ],
        "works": not any(finding.is_error for finding in findings),
    }


def _machine(facts: EnvironmentFacts | None) -> Any:
    plain, names = to_plain(facts), "name memory_bytes capability mig"
    if facts and facts.driver.gpus:
        plain["driver"]["gpus"] = [plain_fields(gpu, names) for gpu in facts.driver.gpus]
    return plain


T = TypeVar("T")

UNKNOWN = "unknown"
NONE = "none"
_ALWAYS = frozenset({"host", "torch", "driver", "GPUs"})
"""Rows that are shown although both sides agree: what people look for first."""


_Fact = tuple[str, str, str | None]
"""The name of a fact, and what it is here and on the node, None if there is one machine alone."""


def _fact_rows(comparison: EnvironmentComparison) -> list[_Fact]:
    here = _texts(comparison.here)
    node = None if comparison.node is None else _texts(comparison.node)
    rows: list[_Fact] = [
        (name, here.get(name, NONE), None if node is None else node.get(name, NONE))
        for name in dict.fromkeys([*here, *(node or {})])
    ]
    if (clock := comparison.clock) is not None:
        rows.append(("clock", "0", f"{clock.least_s:+.1f} to {clock.most_s:+.1f} s"))
    return rows


def _texts(facts: EnvironmentFacts) -> dict[str, str]:
    """Return the facts of a machine as text, by the names of their rows."""
    torch, driver, network, limits = facts.torch, facts.driver, facts.network, facts.limits
    without = NONE if facts.slurm.version == "" else UNKNOWN
    containers = {True: "yes", False: "no", None: without}
    return {
        "host": facts.host,
        "system": facts.system,
        "kernel": facts.kernel,
        "CPUs": _known(facts.cpus, lambda one: f"{one:g}"),
        "memory": _known(facts.memory_bytes, size_text),
        "Python": facts.python.version,
        "Python at": facts.python.executable,
        "hpckit": facts.python.hpckit,
        "old pynvml": facts.python.old_pynvml or NONE,
        "torch": _torch(facts),
        "torch CUDA": _known(torch.cuda, str),
        "torch NCCL": _known(torch.nccl, str),
        "torch NCCL at": _known(torch.nccl_library, str),
        "torch architectures": _known(torch.architectures, " ".join),
        "torch import": _known(torch.import_s, lambda one: f"{one:.1f} s"),
        "driver": _known(driver.version, str),
        "driver CUDA": NONE if driver.version == "" else _known(driver.cuda, str),
        "GPUs": _gpus(facts),
        "InfiniBand": _known(network.infiniband_ports, lambda up: f"{up} up" if up else NONE),
        "EFA": _known(network.efa_devices, lambda one: str(one or NONE)),
        "NCCL plugins": " ".join(network.net_plugins) or NONE,
        "libfabric": network.libfabric or NONE,
        "limit nofile": _limit(limits.nofile),
        "limit memlock": _limit(limits.memlock, size_text),
        "limit nproc": _limit(limits.nproc),
        "limit stack": _limit(limits.stack, size_text),
        **{system.role.value: _file_system(system) for system in facts.file_systems},
        "Slurm": _known(facts.slurm.version, str),
        "srun --container-image": containers[facts.slurm.container_image],
        **facts.variables,
    }


def _known(value: T | None, words: Callable[[T], str]) -> str:
    """Return a value in words; unknown for None, none for what is empty."""
    return UNKNOWN if value is None else words(value) or NONE


def _torch(facts: EnvironmentFacts) -> str:
    torch = facts.torch
    if torch.installed is False:
        return NONE
    return torch.version or ("cannot be imported" if torch.problem else UNKNOWN)


def _gpus(facts: EnvironmentFacts) -> str:
    gpus = facts.driver.gpus
    if gpus is None:
        return UNKNOWN
    kinds = Counter(
        ", ".join(
            [
                gpu.name,
                *([] if gpu.memory_bytes is None else [size_text(gpu.memory_bytes)]),
                *([] if gpu.capability is None else [f"capability {gpu.capability}"]),
                *(["MIG"] if gpu.mig else []),
            ]
        )
        for gpu in gpus
    )
    return "; ".join(f"{count} x {kind}" for kind, count in kinds.items()) or NONE


def _file_system(found: FileSystemFacts) -> str:
    parts = [found.path, found.kind or "type unknown"]
    if found.size_bytes is not None and found.free_bytes is not None:
        parts.append(f"{size_text(found.free_bytes)} of {size_text(found.size_bytes)} free")
    on_disk = found.role is not FolderRole.shared_memory
    if on_disk and found.inodes and found.free_inodes is not None:
        parts.append(f"{100 * found.free_inodes // found.inodes}% of inodes free")
    if found.writable is False:
        parts.append("not writable")
    return ", ".join(parts)


def _limit(limit: int | None, words: Callable[[int], str] = str) -> str:
    return "unlimited" if limit is not None and limit < 0 else _known(limit, words)
