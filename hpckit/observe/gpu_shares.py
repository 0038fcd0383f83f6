"""Which share of a GPU is a run's own: runs on one machine divide its energy and its price.

Nothing of this machine allocates GPUs, so runs of different launches may have one together. Each
notes itself in a folder that only its user can write. Runs of other users are not known.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpckit.model.telemetry.vocabulary import GpuDevice
from hpckit.record.process import alive, start_mark, this_host
from hpckit.values import dataclass, field


def notes_folder(root: Path = Path("/dev/shm")) -> Path:  # noqa: S108  # who owns it is checked
    """Return the folder of this user on this machine: gone when it is booted, and never shared."""
    return root / f"hpckit-gpus-{os.geteuid()}"


@dataclass(slots=True, kw_only=True)
class GpuShares:
    """Counts seconds of GPUs that are a run's own. `notes`: where runs of this machine are noted.

    Null where a scheduler gives GPUs to one job only. `by_parts`: the run has some MIG devices of a
    GPU alone, so its share of the GPU is that of their slices.
    """

    notes: Path | None
    by_parts: bool = False
    _own_s: dict[str, float] = field(default_factory=dict, init=False)
    _shares: dict[str, float] = field(default_factory=dict, init=False)
    _counted_at: float | None = field(default=None, init=False)

    def count(self, devices: Iterable[GpuDevice], at: float) -> Mapping[str, float]:
        """Return each whole GPU's own seconds until now, by UUID; empty if all are the run's.

        `at` is the time of a clock that nobody sets.
        """
        if self.notes is None and not self.by_parts:
            return {}
        passed, self._counted_at = at - (self._counted_at or at), at
        some = list(devices)
        for whole in (gpu for gpu in some if gpu.parent is None):
            parts = [gpu for gpu in some if gpu.parent == whole.uuid and self.by_parts]
            share = _of_slices(whole, parts) / self._holders((parts or [whole])[0].uuid)
            # Others come and go between two samples: on average in the middle.
            mean = (self._shares.get(whole.uuid, share) + share) / 2
            self._own_s[whole.uuid] = self._own_s.get(whole.uuid, 0.0) + passed * mean
            self._shares[whole.uuid] = share
        return self._own_s

    def close(self) -> None:
        """Note that this run has no GPU any more."""
        for uuid in self._own_s if self.notes is not None else ():
            with suppress(OSError):
                self._note(uuid).unlink()

    def _holders(self, uuid: str) -> int:
        """Return how many runs of this user have a GPU; note this one, and forget ended ones."""
        if self.notes is None:
            return 1
        try:
            own = self._note(uuid)
            own.touch(mode=0o600)
            found = {own, *own.parent.glob(f"{uuid}.*.*")}
        except OSError:
            return 1
        ended = {claim for claim in found - {own} if not _is_alive(claim.name)}
        for claim in ended:
            with suppress(OSError):
                claim.unlink()
        return len(found - ended)

    def _note(self, uuid: str) -> Path:
        assert self.notes is not None, "asked only where runs are noted"  # noqa: S101
        self.notes.mkdir(mode=0o700, exist_ok=True)
        found = self.notes.lstat()
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if not private or found.st_uid != os.geteuid():
            raise PermissionError(f"{self.notes} is not this user's alone")
        return self.notes / f"{uuid}.{os.getpid()}.{start_mark(os.getpid())}"


def _of_slices(whole: GpuDevice, parts: Sequence[GpuDevice]) -> float:
    own = sum(part.slices or 0 for part in parts)
    return min(own / whole.slices, 1.0) if own and whole.slices else 1.0


def _is_alive(name: str) -> bool:
    _, pid, mark = name.rsplit(".", 2)
    return pid.isdecimal() and alive(this_host(), int(pid), mark) is True
