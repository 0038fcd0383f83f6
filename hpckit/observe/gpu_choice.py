"""Which GPUs of a node are the job's: Slurm does not hide the others everywhere. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_OF_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Numbers of the node's GPUs by PCI address, as NVML counts them; also where those are hidden."""

SLOT_GPUS = "HPCKIT_SLOT_GPUS"
"""For a run that shares its job: the places of its GPUs among the job's, from 0."""

_NONE = frozenset({"", "-1", "nodevfiles", "void", "none"})
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?\Z")
_UUID = re.compile(r"(?:GPU|MIG)-", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChoice:
    """The job's GPUs, by UUID (or the beginning of one), or by number; all without either.

    `named` is how many GPUs the job may use: if the driver shows no more, all it shows are the
    job's, whatever their numbers outside. A run that shares its job has only some of these: their
    `places` among the job's. `parts` are the UUIDs of MIG devices, if the job has those alone.
    """

    uuids: tuple[str, ...] = ()
    numbers: frozenset[int] | None = None
    named: int | None = None
    places: frozenset[int] | None = None
    parts: tuple[str, ...] = ()

    def includes_part(self, uuid: str) -> bool:
        """Return whether a MIG device is one of `parts`."""
        return _is_named(uuid, self.parts)

    def includes(self, index: int, uuid: str, count: int) -> bool:
        """Return whether the GPU with this number of NVML, of `count`, is the job's."""
        if self.named is not None and 0 < count <= self.named:
            return self.places is None or index in self.places
        if self.uuids:
            return _is_named(uuid, self.uuids)
        return self.numbers is None or index in self.numbers

    def may_include(self, index: int, count: int, found: int) -> bool:
        """Return whether a GPU that does not say its UUID may be the job's.

        `found` is how many of the job's GPUs are known: named by UUID, it has no others.
        """
        return found < len(self.uuids) if self.uuids else self.includes(index, "", count)


def _is_named(uuid: str, names: Sequence[str]) -> bool:
    """Return whether one of the names is a UUID, or the beginning of it."""
    return any(uuid.lower().startswith(one.lower()) for one in names)


def gpu_choice(environ: Mapping[str, str]) -> GpuChoice:
    """Return which GPUs are the job's, by the variables of Slurm and CUDA.

    MIG devices are parts of a GPU that only the driver can name: then any GPU may have one.
    """
    visible = environ.get(_VISIBLE)
    words = None if visible is None else [word.strip() for word in visible.split(",")]
    if words is not None and words[0].lower() in _NONE:
        return GpuChoice(numbers=frozenset())
    if words is not None and any(_UUID.match(word) for word in words):
        if any(word.upper().startswith("MIG-") for word in words):
            return GpuChoice(parts=tuple(word for word in words if word))
        return GpuChoice(uuids=tuple(words), named=len(words))
    places = tuple(_numbers(environ.get(SLOT_GPUS, "")))
    for name in _OF_SLURM:
        numbers = tuple(_numbers(environ.get(name, "")))
        if numbers:
            return _chosen(numbers, places)
    numbers = tuple(_numbers(visible or ""))
    return _chosen(numbers, ()) if numbers else GpuChoice()


def _chosen(numbers: Sequence[int], places: Sequence[int]) -> GpuChoice:
    """Return those of a job's GPUs that have these places among them; all without any."""
    job = frozenset(numbers)
    if not places or max(places) >= len(numbers):
        return GpuChoice(numbers=job, named=len(job))
    own = frozenset(numbers[place] for place in places)
    return GpuChoice(numbers=own, named=len(job), places=frozenset(places))


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers of a list such as `0,2-3`; nothing of what is none."""
    for word in text.split(","):
        found = _NUMBERS.match(word.strip())
        if found:
            first = int(found[1])
            yield from range(first, int(found[2] or first) + 1)
