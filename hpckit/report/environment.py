"""What `hpckit doctor --env` prints: a table of facts, then findings; or one JSON object. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hpckit.model.counted import format_byte_size, format_count
from hpckit.model.environment.facts import (
    EnvironmentComparison,
    EnvironmentFacts,
    FileSystemFacts,
    FolderRole,
)
from hpckit.model.finding import Finding
from hpckit.model.plain import attributes_to_json, to_plain
from hpckit.report.text import Page, TextTable


def render_environment_page(comparison: EnvironmentComparison, findings: Sequence[Finding]) -> Page:
    """Return the table of facts that differ or that findings are about, and the findings.

    Of one machine alone all facts are shown.
    """
    rows, told = _build_fact_rows(comparison), {finding.key for finding in findings} | _ALWAYS
    shown = [(name, here, node) for name, here, node in rows if name in told or node is None or here != node]
    page: list[TextTable | str] = [_build_facts_table(comparison, shown)]
    if alike := len(rows) - len(shown):
        page.append(f"{format_count(alike, 'more fact')} alike on both sides; --json has all")
    for finding in findings:
        page.append(f"{finding.severity}: {finding.message}")
        page += [f"  {line}" for line in finding.hint.splitlines()]
    if not findings:
        page.append("no problem was found")
    return page


def _build_facts_table(comparison: EnvironmentComparison, rows: Sequence[_Fact]) -> TextTable:
    places: tuple[str, ...] = ("HERE",)
    if comparison.node is not None:
        node = comparison.node.host.upper()
        places = ("HERE", "NODE" if node == "HERE" else node)
    cells = tuple((name, here, there or "")[: 1 + len(places)] for name, here, there in rows)
    return TextTable(header=("FACT", *places), rows=cells, flexible=places)


def environment_to_json(comparison: EnvironmentComparison, findings: Sequence[Finding]) -> dict[str, object]:
    """Return the object of `doctor --env --json`."""
    clock, node, token = comparison.clock, comparison.node, comparison.token
    return {
        **{side: _facts_to_json(getattr(comparison, side)) for side in ("here", "node")},
        **attributes_to_json(comparison, "asked"),
        "clock_offset_s": None if clock is None else [clock.least_s, clock.most_s],
        "same_output_folder": None if node is None or token is None else node.token == token,
        "findings": [
            attributes_to_json(finding, "level=severity fact=key value message hint") for finding in findings
        ],
        "works": not any(finding.is_error for finding in findings),
    }


def _facts_to_json(facts: EnvironmentFacts | None) -> Any:
    plain, names = to_plain(facts), "name memory_bytes capability mig"
    if facts and facts.driver.gpus:
        plain["driver"]["gpus"] = [attributes_to_json(gpu, names) for gpu in facts.driver.gpus]
    return plain


T = TypeVar("T")

UNKNOWN = "unknown"
NONE = "none"
_ALWAYS = frozenset({"host", "torch", "driver", "GPUs"})
"""Rows that are shown although both sides agree: what people look for first."""


_Fact = tuple[str, str, str | None]
"""The name of a fact, and what it is here and on the node, None if there is one machine alone."""


def _build_fact_rows(comparison: EnvironmentComparison) -> list[_Fact]:
    here = _format_facts(comparison.here)
    node = None if comparison.node is None else _format_facts(comparison.node)
    rows: list[_Fact] = [
        (name, here.get(name, NONE), None if node is None else node.get(name, NONE))
        for name in dict.fromkeys([*here, *(node or {})])
    ]
    if (clock := comparison.clock) is not None:
        rows.append(("clock", "0", f"{clock.least_s:+.1f} to {clock.most_s:+.1f} s"))
    return rows


def _format_facts(facts: EnvironmentFacts) -> dict[str, str]:
    torch, driver, network, limits = facts.torch, facts.driver, facts.network, facts.limits
    without = NONE if facts.slurm.version == "" else UNKNOWN
    containers = {True: "yes", False: "no", None: without}
    return {
        "host": facts.host,
        "system": facts.system,
        "kernel": facts.kernel,
        "CPUs": _format_or_unknown(facts.cpus, lambda one: f"{one:g}"),
        "memory": _format_or_unknown(facts.memory_bytes, format_byte_size),
        "Python": facts.python.version,
        "Python at": facts.python.executable,
        "hpckit": facts.python.hpckit,
        "old pynvml": facts.python.old_pynvml or NONE,
        "torch": _format_torch(facts),
        "torch CUDA": _format_or_unknown(torch.cuda, str),
        "torch NCCL": _format_or_unknown(torch.nccl, str),
        "torch NCCL at": _format_or_unknown(torch.nccl_library, str),
        "torch architectures": _format_or_unknown(torch.architectures, " ".join),
        "torch import": _format_or_unknown(torch.import_s, lambda one: f"{one:.1f} s"),
        "driver": _format_or_unknown(driver.version, str),
        "driver CUDA": NONE if driver.version == "" else _format_or_unknown(driver.cuda, str),
        "GPUs": _format_gpus(facts),
        "InfiniBand": _format_or_unknown(network.infiniband_ports, lambda up: f"{up} up" if up else NONE),
        "EFA": _format_or_unknown(network.efa_devices, lambda one: str(one or NONE)),
        "NCCL plugins": " ".join(network.net_plugins) or NONE,
        "libfabric": network.libfabric or NONE,
        "limit nofile": _format_limit(limits.nofile),
        "limit memlock": _format_limit(limits.memlock, format_byte_size),
        "limit nproc": _format_limit(limits.nproc),
        "limit stack": _format_limit(limits.stack, format_byte_size),
        **{system.role.value: _format_file_system(system) for system in facts.file_systems},
        "Slurm": _format_or_unknown(facts.slurm.version, str),
        "srun --container-image": containers[facts.slurm.container_image],
        **facts.variables,
    }


def _format_or_unknown(value: T | None, words: Callable[[T], str]) -> str:
    return UNKNOWN if value is None else words(value) or NONE


def _format_torch(facts: EnvironmentFacts) -> str:
    torch = facts.torch
    if torch.installed is False:
        return NONE
    return torch.version or ("cannot be imported" if torch.problem else UNKNOWN)


def _format_gpus(facts: EnvironmentFacts) -> str:
    gpus = facts.driver.gpus
    if gpus is None:
        return UNKNOWN
    kinds = Counter(
        ", ".join(
            [
                gpu.name,
                *([] if gpu.memory_bytes is None else [format_byte_size(gpu.memory_bytes)]),
                *([] if gpu.capability is None else [f"capability {gpu.capability}"]),
                *(["MIG"] if gpu.mig else []),
            ]
        )
        for gpu in gpus
    )
    return "; ".join(f"{count} x {kind}" for kind, count in kinds.items()) or NONE


def _format_file_system(found: FileSystemFacts) -> str:
    parts = [found.path, found.kind or "type unknown"]
    if found.size_bytes is not None and found.free_bytes is not None:
        parts.append(f"{format_byte_size(found.free_bytes)} of {format_byte_size(found.size_bytes)} free")
    on_disk = found.role is not FolderRole.shared_memory
    if on_disk and found.inodes and found.free_inodes is not None:
        parts.append(f"{100 * found.free_inodes // found.inodes}% of inodes free")
    if found.writable is False:
        parts.append("not writable")
    return ", ".join(parts)


def _format_limit(limit: int | None, words: Callable[[int], str] = str) -> str:
    return "unlimited" if limit is not None and limit < 0 else _format_or_unknown(limit, words)
