"""Which CPUs of this node are next to each of the job's GPUs: by PCI address, from /sys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.observe.gpu_choice import CUDA
from hpckit.observe.nvml.job_gpus import job_handles, opened_nvml, pci_folder
from hpckit.observe.sysfs import read_small


def read_gpu_cpus(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[frozenset[int], ...]:
    """Return the CPUs next to each GPU of the job, as CUDA numbers the GPUs for a process.

    Empty sets are unknown. No GPU, or no answer of the driver, is an empty tuple.
    """
    with opened_nvml() as nvml:
        if nvml is None:
            return ()
        try:
            folders = [pci_folder(root, address) for address in _addresses(nvml, environ)]
        except nvml.NVMLError:
            return ()
    return tuple(parse_cpus(read_small(one / "local_cpulist") or "") for one in folders)


def _addresses(nvml: Any, environ: Mapping[str, str]) -> list[str]:
    found = [
        (index, uuid, str(nvml.nvmlDeviceGetPciInfo(handle).busId))
        for (index, uuid), handle in (job_handles(nvml, environ) or {}).items()
    ]
    return [address for _, _, address in _in_order(found, environ.get(CUDA, ""))]


def _in_order(
    found: Sequence[tuple[int, str, str]], visible: str
) -> Sequence[tuple[int, str, str]]:
    """Return GPUs as CUDA_VISIBLE_DEVICES orders them, if it names all of them."""
    words = [word.strip().lower() for word in visible.split(",")]
    names = [{str(index), uuid.lower()} for index, uuid, _ in found]
    places = [at for own in names for at, word in enumerate(words) if word in own]
    if len(places) != len(found) or len({*places}) < len(found):
        return found
    return [one for _, one in sorted(zip(places, found, strict=True), key=lambda pair: pair[0])]


def parse_cpus(text: str) -> frozenset[int]:
    """Return the numbers of a list of the kernel such as `0-15,32-47`; none if it is no list."""
    found: set[int] = set()
    for piece in filter(None, text.split(",")):
        first, _, last = piece.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            return frozenset()
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
