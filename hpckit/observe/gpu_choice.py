"""Which GPUs of a node a run was given. If that is unknown, it is never all of them. Pure.

The environment of a run's ranks says it: Slurm's variables and CUDA's, and what the run asked for.
`runtime.run_variables` makes it, and agents, inspections and ranks all have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass

CUDA, ROCR = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
VISIBLE = (CUDA, "HIP_VISIBLE_DEVICES", ROCR)
_OTHERS = ("GPU_DEVICE_ORDINAL", "NVIDIA_VISIBLE_DEVICES")
"""Of OpenCL and of containers."""
_JOB = "SLURM_JOB_ID"
OF_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Numbers of the node's GPUs by PCI address, as NVML counts them; also where those are hidden."""

SLOT_GPUS = "HPCKIT_SLOT_GPUS"
"""For a run that shares its job: the places of its GPUs among the job's, from 0."""
GPUS_ASKED = "HPCKIT_GPUS_ASKED"
"""How many GPUs of each node the run asked for, 0 too; WHOLE_NODE; empty if it said nothing."""
WHOLE_NODE = "all"
"""The job shares its nodes with no other: Slurm gives it all their GPUs, asked for or not."""

HOW_TO_ASK = (
    "ask for a GPU (resources=one_gpu); where Slurm does not count GPUs, for whole nodes "
    "(resources.exclusive=true)"
)
"""For a run that was given no GPU, and wants one."""

_NONE = frozenset({"", "-1", "nodevfiles", "void", "none"})
_SAYS_NOTHING = frozenset({"", "all", "void"})
"""Of NVIDIA_VISIBLE_DEVICES: images set `all`; `void` goes with GPUs that came by other ways."""
_NUMBERS = lazy_pattern(r"(\d+)(?:-(\d+))?\Z")
_UUID = lazy_pattern(r"(?:GPU|MIG)-", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChoice:
    """The GPUs a run was given, by UUID (or the beginning of one) or number; none without either.

    `whole_node`: all of them are. `named` is how many GPUs the job may use: if the driver shows no more, all
    it shows are the job's, whatever their numbers outside. A run that shares its job has only some of these:
    their `places` among the job's. `parts` are the UUIDs of MIG devices, if the job has those alone.
    """

    uuids: tuple[str, ...] = ()
    numbers: frozenset[int] = frozenset()
    named: int = 0
    places: frozenset[int] | None = None
    parts: tuple[str, ...] = ()
    whole_node: bool = False

    def __bool__(self) -> bool:
        return bool(self.whole_node or self.named or self.uuids or self.parts)

    def includes_mig_device(self, uuid: str) -> bool:
        """Return whether a MIG device is one of `parts`."""
        return _matches_uuid_prefix(uuid, self.parts)

    def includes_gpu(self, index: int, uuid: str, count: int) -> bool:
        """Return whether the GPU with this number of NVML, of `count`, is the run's.

        With `parts` it may be: its MIG devices decide.
        """
        if 0 < count <= self.named:
            return self.places is None or index in self.places
        if self.uuids:
            return _matches_uuid_prefix(uuid, self.uuids)
        return self.whole_node or bool(self.parts) or index in self.numbers

    def may_include_gpu(self, index: int, count: int, found: int) -> bool:
        """Return whether a GPU that does not say its UUID may be the run's.

        `found` is how many of its GPUs are known: named by UUID, it has no others.
        """
        if self.uuids or self.parts:
            return found < len(self.uuids or self.parts[:1])
        return self.includes_gpu(index, "", count)


def _matches_uuid_prefix(uuid: str, names: Sequence[str]) -> bool:
    return any(uuid.lower().startswith(name.lower()) for name in names)


def read_gpus_given_to_run(environ: Mapping[str, str]) -> GpuChoice:
    """Return which GPUs a run with this environment of its ranks was given.

    Slurm's word counts first; then what variables show. Where none says anything, a run that asked
    for as many GPUs as there are has those. A run outside of jobs that asked for nothing has
    all GPUs of this machine. Any other run has none.
    """
    shown, asked = _list_visible_gpus(environ), environ.get(GPUS_ASKED, "")
    by_slurm = next(filter(None, (_parse_number_list(environ.get(name, "")) for name in OF_SLURM)), ())
    places = _parse_number_list(environ.get(SLOT_GPUS, ""))
    if asked == "0" and not by_slurm:
        return GpuChoice()
    if asked == WHOLE_NODE and not places:
        return GpuChoice(whole_node=True)
    names = tuple(name for name in shown or () if _UUID.match(name))
    if names:
        parts = any(name.upper().startswith("MIG-") for name in names)
        return GpuChoice(parts=names) if parts else GpuChoice(uuids=names)
    if by_slurm or shown is not None:
        return _choose_gpus_by_index(
            by_slurm or _parse_number_list(",".join(shown or ())), places if by_slurm else ()
        )
    named = int(asked) if asked.isdecimal() else 0
    return GpuChoice(named=named, whole_node=not asked and _JOB not in environ)


def _list_visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs that variables show, as they name them; None if no variable says anything.

    HIP counts among what ROCr shows.
    """
    given = {name: environ[name].strip() for name in (*VISIBLE, *_OTHERS) if name in environ}
    if given.get("NVIDIA_VISIBLE_DEVICES", "").lower() in _SAYS_NOTHING:
        given.pop("NVIDIA_VISIBLE_DEVICES", None)
    if not given:
        return None
    first = tuple(_split_until_no_gpu(next(iter(given.values()))))
    of_rocr = tuple(_split_until_no_gpu(given.get(ROCR, "")))
    places = _parse_number_list(",".join(first))
    if not places or first == of_rocr or max(places) >= len(of_rocr):
        return first
    return tuple(of_rocr[place] for place in places)


def _split_until_no_gpu(text: str) -> Iterator[str]:
    """Yield the words of a list until one that is no GPU: CUDA sees none after it."""
    for word in (part.strip() for part in text.split(",")):
        if word.lower() in _NONE:
            return
        yield word


def _choose_gpus_by_index(numbers: Sequence[int], places: Sequence[int]) -> GpuChoice:
    """Return those of a job's GPUs that have these places among them; all without any."""
    job = frozenset(numbers)
    if not places or max(places) >= len(numbers):
        return GpuChoice(numbers=job, named=len(job))
    own = frozenset(numbers[place] for place in places)
    return GpuChoice(numbers=own, named=len(job), places=frozenset(places))


def _parse_number_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `0,2-3`; nothing of what is none."""
    found = filter(None, (_NUMBERS.match(word.strip()) for word in text.split(",")))
    spans = (range(int(match_[1]), int(match_[2] or match_[1]) + 1) for match_ in found)
    return tuple(number for span in spans for number in span)
