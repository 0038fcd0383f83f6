"""The GPUs of the job, described once outside of sampling: the one reading for all who ask.

Doctor, inspections, `bench comm` and the binding of ranks to CPUs ask here. GPUs of AMD are
sampled, but not described: that was never run on AMD hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.model.environment.facts import DriverFacts, GpuFacts
from hpckit.model.telemetry.vocabulary import GpuTrouble
from hpckit.observe.gpu_choice import CUDA, read_gpus_given_to_run
from hpckit.observe.nvml.backend import describe_nvidia_driver
from hpckit.observe.sysfs import read_small_file
from hpckit.values import replace

_LOST = frozenset({GpuTrouble.lost, GpuTrouble.reset_required})


def read_driver_and_gpus(
    environ: Mapping[str, str], root: Path = Path("/"), *, lost: bool = False
) -> DriverFacts:
    """Return the driver and the job's GPUs; all unknown if the driver cannot say.

    GPUs that do not answer are among them with `lost`. Without a driver of NVIDIA there are no GPUs
    of it; where AMD's driver is loaded, the GPUs are unknown.
    """
    driver = describe_nvidia_driver(read_gpus_given_to_run(environ))
    if driver.version == "" and (root / "dev/kfd").exists():
        return DriverFacts()
    if lost or driver.gpus is None:
        return driver
    return replace(driver, gpus=tuple(gpu for gpu in driver.gpus if not _LOST & {*gpu.troubles}))


def pci_sysfs_folder(root: Path, address: str) -> Path:
    """Return the folder of a PCI device in /sys, which writes the domain with four digits.

    NVML writes eight of them.
    """
    return root / "sys/bus/pci/devices" / address.lower()[-len("0000:00:00.0") :]


def read_gpu_cpus(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[frozenset[int], ...]:
    """Return the CPUs next to each GPU of the job, as CUDA numbers the GPUs for a process.

    Empty sets are unknown. No GPU, or no answer of the driver, is an empty tuple.
    """
    gpus = _order_like_cuda(read_driver_and_gpus(environ).gpus or (), environ.get(CUDA, ""))
    lists = [read_small_file(pci_sysfs_folder(root, gpu.pci) / "local_cpulist") for gpu in gpus]
    return tuple(parse_cpu_list(text or "") for text in lists)


def _order_like_cuda(found: Sequence[GpuFacts], visible: str) -> Sequence[GpuFacts]:
    """Return GPUs as CUDA_VISIBLE_DEVICES orders them, if it names all of them."""
    words = [word.strip().lower() for word in visible.split(",")]
    names = [{str(gpu.index), gpu.uuid.lower()} for gpu in found]
    places = [at for own in names for at, word in enumerate(words) if word in own]
    if len(places) != len(found) or len({*places}) < len(found):
        return found
    return [gpu for _, gpu in sorted(zip(places, found, strict=True), key=lambda pair: pair[0])]


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers of a list of the kernel such as `0-15,32-47`; none if it is no list."""
    found: set[int] = set()
    for piece in filter(None, text.split(",")):
        first, _, last = piece.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            return frozenset()
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
