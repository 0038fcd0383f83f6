"""Whether limits, memory and file systems of a node suffice. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.model.counted import size_text
from hpckit.model.environment.comparison import EnvironmentComparison
from hpckit.model.environment.facts import EnvironmentFacts, FileSystemFacts
from hpckit.model.environment.roles import FolderRole
from hpckit.model.finding import Finding, error, warning

GIB = 2**30
LEAST_FILES = 4096
"""Of open files: the usual default of 1024 is spent by DataLoader workers, which pass each tensor
as a descriptor (torch.multiprocessing, "Sharing strategies"), and by sockets of NCCL."""
LEAST_SHM = GIB
"""Bytes of /dev/shm, through which DataLoader workers pass batches; containers get 64 MiB by
default (docker run --shm-size)."""
LEAST_FREE_OUTPUT = 10 * GIB
LEAST_FREE = GIB
"""Bytes: a checkpoint of a small model, and what other programs write beside it."""
LEAST_INODES = 0.01
_LOCAL = frozenset({"ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "rootfs"})
"""Types of file systems that belong to one node alone."""


def host_findings(comparison: EnvironmentComparison) -> Iterator[Finding]:
    """Yield what a run may run out of on its node."""
    facts = comparison.runs
    yield from _memory(comparison)
    yield from _open_files(facts)
    yield from _shared_memory(facts)
    for one in facts.file_systems:
        if one.role != FolderRole.shared_memory:
            yield from _room(one, facts.host)
    yield from _output_folder(facts)
    yield from _home(comparison)


def _memory(comparison: EnvironmentComparison) -> Iterator[Finding]:
    granted, asked = comparison.runs.memory_bytes, comparison.asked.memory_bytes
    if granted is not None and asked is not None and granted < asked:
        yield warning(
            "memory",
            granted,
            f"{comparison.runs.host} grants {size_text(granted)} of memory, and "
            f"resources.mem_gb asks for {size_text(asked)}",
            "lower resources.mem_gb, or choose nodes with more memory",
        )


def _open_files(facts: EnvironmentFacts) -> Iterator[Finding]:
    limit = facts.limits.nofile
    if limit is not None and 0 <= limit < LEAST_FILES:
        yield warning(
            "limit nofile",
            limit,
            f"a process on {facts.host} may have {limit} files open at most; DataLoader workers "
            f"and NCCL may need {LEAST_FILES} or more",
            "the site raises the hard limit (`ulimit -Hn`; for jobs LimitNOFILE of slurmd)",
        )


def _shared_memory(facts: EnvironmentFacts) -> Iterator[Finding]:
    found = facts.file_system(FolderRole.shared_memory)
    if found is not None and found.size_bytes is not None and found.size_bytes < LEAST_SHM:
        yield warning(
            found.role,
            found.size_bytes,
            f"{found.path} of {facts.host} has {size_text(found.size_bytes)}; DataLoader workers "
            f"pass batches through it, and end with a bus error when it is full",
            "a container needs --ipc=host or a larger --shm-size; else use fewer workers",
        )


def _room(found: FileSystemFacts, host: str) -> Iterator[Finding]:
    least = LEAST_FREE_OUTPUT if found.role == FolderRole.output else LEAST_FREE
    if found.free_bytes is not None and found.free_bytes < least:
        yield warning(
            found.role,
            found.free_bytes,
            f"{found.path} ({found.role}) on {host} has {size_text(found.free_bytes)} free, "
            f"less than {size_text(least)}",
            "make room (`hpckit clean` shows what can go), or choose another folder",
        )
    if found.inodes and found.free_inodes is not None:
        share = found.free_inodes / found.inodes
        if share < LEAST_INODES:
            yield warning(
                found.role,
                found.free_inodes,
                f"{found.path} ({found.role}) on {host} has {found.free_inodes} of "
                f"{found.inodes} inodes left ({share:.1%}): soon no file can be made",
                "remove small files, or choose another folder",
            )


def _output_folder(facts: EnvironmentFacts) -> Iterator[Finding]:
    found = facts.file_system(FolderRole.output)
    if found is not None and found.writable is False:
        yield error(
            found.role,
            found.path,
            f"{found.path} (output_dir) cannot be written on {facts.host}",
            "choose a folder that is yours and that compute nodes mount for writing: output_dir, "
            "or $HPCKIT_OUTPUTS",
        )


def _home(comparison: EnvironmentComparison) -> Iterator[Finding]:
    if comparison.node is None:
        return
    here = comparison.here.file_system(FolderRole.home)
    there = comparison.node.file_system(FolderRole.home)
    if here is None or there is None or there.kind not in _LOCAL or here.kind is None:
        return
    # Of the same type and size, it may be one that both sides have, as in containers of one host.
    if (here.kind, here.size_bytes) != (there.kind, there.size_bytes):
        yield warning(
            there.role,
            there.kind,
            f"the home folder on {comparison.node.host} is on a disk of that node "
            f"({there.kind}), and not the one here ({here.kind}): environments, caches and "
            "settings in it are others there",
            "keep the Python of runs, data and caches (HF_HOME, TORCH_HOME) on a file system that "
            "all nodes share",
        )
