"""What GPU memory was used for when it ran out: figures, and a snapshot for those who asked.

Does nothing on CPUs. What goes wrong here is left out: the failure itself is what counts.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from hpckit.errors import iterate_error_causes
from hpckit.record.layout import AttemptPaths, RoundPaths
from hpckit.record.store import PRIVATE_FILE, write_json
from hpckit.values import dataclass, field

if TYPE_CHECKING:
    from hpckit.runtime.rank.run import Run

REMEMBERED = 100_000
"""Latest allocations and releases that are remembered: some tens of megabytes."""

MOST_SNAPSHOTS = 4
"""Of one round and folder: memory runs out on all ranks at once, at the same place."""

MOST_BYTES = 1 << 29
"""Of one snapshot."""

_GB = 1e9


class SnapshotTooLargeError(Exception):
    """Raised while a snapshot is written that is larger than it may be."""


@dataclass(slots=True, kw_only=True)
class CudaMemory:
    """The GPU memory of one rank; `snapshot` is whether its history is to be remembered."""

    paths: RoundPaths
    rank: int
    device: torch.device
    snapshot: bool
    _remembers: bool = field(default=False, init=False)

    def record_allocations(self) -> None:
        """Remember from now on where memory is allocated, if asked to."""
        if not (self.snapshot and self.device.type == "cuda"):
            return
        try:
            torch.cuda.memory._record_memory_history(  # noqa: SLF001  # documented under this name
                max_entries=REMEMBERED, stacks="python"
            )
        except Exception as error:  # noqa: BLE001  # it is no reason to stop a rank
            sys.stderr.write(f"hpckit: the history of GPU memory is not recorded: {error}\n")
        else:
            self._remembers = True

    def record_out_of_memory(self, error: BaseException) -> str:
        """Write down what memory was used for, if the error says that it ran out.

        Return words for the message of the failure; empty if there is nothing to say.
        """
        kind = torch.cuda.OutOfMemoryError
        if self.device.type != "cuda" or not any(
            isinstance(cause, kind) for cause in iterate_error_causes(error)
        ):
            return ""
        try:
            figures = self._measure_gpu_memory_usage()
            write_json(self.paths.memory_report(self.rank), figures)
        except Exception as problem:  # noqa: BLE001  # CUDA may answer nothing any more
            return f"its memory usage is unknown: {type(problem).__name__}"
        words = (
            f"of {_format_gb(figures['total_bytes'])}, this rank had allocated "
            f"{_format_gb(figures['allocated_bytes'])} and reserved "
            f"{_format_gb(figures['reserved_bytes'])}; {_format_gb(figures['free_bytes'])} were "
            "free"
        )
        return f"GPU memory: {words}{self._write_snapshot()}"

    def _measure_gpu_memory_usage(self) -> dict[str, int]:
        free, total = torch.cuda.mem_get_info(self.device)
        return {
            "total_bytes": total,
            "free_bytes": free,
            "allocated_bytes": torch.cuda.memory_allocated(self.device),
            "most_allocated_bytes": torch.cuda.max_memory_allocated(self.device),
            "reserved_bytes": torch.cuda.memory_reserved(self.device),
            "most_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
        }

    def _write_snapshot(self) -> str:
        if not self._remembers:
            return " (observe.memory_snapshot=true shows what for)"
        file = self.paths.memory_snapshot(self.rank)
        try:
            if not _claim_snapshot_slot(file.parent):
                return f"; {MOST_SNAPSHOTS} other ranks have written snapshots"
            _write_snapshot_file(file)
        except SnapshotTooLargeError:
            return f"; its snapshot would be larger than {_format_gb(MOST_BYTES)}"
        except Exception as problem:  # noqa: BLE001  # as above
            return f"; its snapshot was not written: {type(problem).__name__}"
        return f"; pytorch.org/memory_viz shows what for: {file}"


def watch_cuda_memory(run: Run) -> CudaMemory:
    """Return what notes how a rank uses GPU memory; it remembers the history if asked to."""
    memory = CudaMemory(
        paths=AttemptPaths(run.attempt_folder).round(run.round),
        rank=run.rank,
        device=run.device,
        snapshot=bool(run.config.observe.get("memory_snapshot")),
    )
    memory.record_allocations()
    return memory


def _format_gb(size: int) -> str:
    return f"{size / _GB:.1f} GB"


def _claim_snapshot_slot(folder: Path) -> bool:
    for place in range(MOST_SNAPSHOTS):
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            os.close(os.open(folder / f".memory-{place}", flags, PRIVATE_FILE))
        except FileExistsError:
            continue
        return True
    return False


def _write_snapshot_file(file: Path) -> None:
    """Write the snapshot so that it is there as a whole or not at all."""
    part = file.with_name(f".{file.name}.{os.urandom(4).hex()}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    try:
        with os.fdopen(handle, "wb") as stream:
            # As torch.cuda.memory._dump_snapshot does, which knows no limit.
            snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001  # documented likewise
            pickle.Pickler(_Bounded(stream)).dump(snapshot)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


@dataclass(slots=True)
class _Bounded:
    """A stream that takes at most `MOST_BYTES`."""

    stream: IO[bytes]
    written: int = 0

    def write(self, data: Any) -> int:
        """Write, or raise SnapshotTooLargeError."""
        self.written += len(data)
        if self.written > MOST_BYTES:
            raise SnapshotTooLargeError
        return self.stream.write(data)
