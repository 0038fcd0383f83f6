"""What NVML says of the job's GPUs, asked once outside of sampling.

NVML is opened here alone, for the doctor, inspections, `bench comm` and the binding of ranks to
CPUs. What a GPU or a driver does not say is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpckit.model.environment.facts import DriverFacts, GpuFacts
from hpckit.model.nodes.links import GpuLinks
from hpckit.model.preflight.health import GpuHealth, PcieLink
from hpckit.model.telemetry.vocabulary import GpuCounter, GpuGauge, GpuTrouble, nameless_gpu
from hpckit.observe.gpu_choice import CUDA, gpu_choice
from hpckit.observe.nvml.bindings import (
    RESET_REQUIRED,
    DriverLostError,
    GpuLostError,
    load_bindings,
    means_no_driver,
)
from hpckit.observe.nvml.device import NvmlGpu, attach_gpu
from hpckit.observe.sysfs import numa_node, read_small
from hpckit.values import dataclass, replace

T = TypeVar("T")
_Ask = Callable[..., Any]
"""Calls a function of NVML, by its name, for a GPU, with more arguments; None if refused."""

_MOST_NVLINKS = 18
"""Of a GPU: Hopper and Blackwell have 18, earlier ones fewer."""


class NvmlSilentError(Exception):
    """NVML does not answer; `no_driver`: as there is no driver of NVIDIA."""

    def __init__(self, *, no_driver: bool = False) -> None:
        super().__init__("NVML does not answer")
        self.no_driver = no_driver


@contextmanager
def opened_nvml() -> Iterator[Any]:
    """Yield NVML, initialised until the end of the block.

    Raises NvmlSilentError if it cannot be opened, or if a call in the block fails.
    """
    try:
        nvml = load_bindings()
    except ImportError as error:
        raise NvmlSilentError from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlSilentError(no_driver=means_no_driver(nvml, int(error.value))) from error
    try:
        yield nvml
    except (nvml.NVMLError, DriverLostError) as error:
        raise NvmlSilentError from error
    finally:
        _tried(nvml, nvml.nvmlShutdown)


def _tried(nvml: Any, call: Callable[[], T]) -> T | None:
    """Return what NVML answers; None if this driver or this GPU does not."""
    try:
        return call()
    except nvml.NVMLError:
        return None


@dataclass(frozen=True, slots=True)
class _JobGpu:
    """A GPU of the job; it can be asked as long as NVML is open."""

    nvml: Any
    handle: Any
    index: int
    uuid: str

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return what a function of NVML says of this GPU."""
        return _tried(self.nvml, lambda: getattr(self.nvml, function)(self.handle, *arguments))

    def name(self) -> str:
        return self.ask("nvmlDeviceGetName") or "unknown"

    def capability(self) -> str | None:
        """Return its compute capability, such as `9.0`."""
        found = self.ask("nvmlDeviceGetCudaComputeCapability")
        return found and f"{found[0]}.{found[1]}"

    def part_names(self) -> Iterator[str]:
        """Yield the UUIDs of its MIG devices."""
        for place in range(self.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
            part = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
            name = part and _tried(self.nvml, partial(self.nvml.nvmlDeviceGetUUID, part))
            yield from [str(name)] if name else []


def _job_gpus(nvml: Any, environ: Mapping[str, str]) -> tuple[_JobGpu, ...] | None:
    """Return the run's GPUs; None if NVML cannot count GPUs."""
    count = _tried(nvml, nvml.nvmlDeviceGetCount)
    if count is None:
        return None
    choice, found = gpu_choice(environ), list[_JobGpu]()
    for index in range(count):
        handle = _tried(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, index))
        uuid = handle and _tried(nvml, partial(nvml.nvmlDeviceGetUUID, handle))
        if handle and uuid and choice.includes(index, uuid, count):
            gpu = _JobGpu(nvml, handle, index, str(uuid))
            if not choice.parts or any(map(choice.includes_part, gpu.part_names())):
                found.append(gpu)
    return tuple(found)


def read_driver(environ: Mapping[str, str], root: Path = Path("/")) -> DriverFacts:
    """Return the driver and the job's GPUs; all unknown if NVML cannot say.

    Without a driver of NVIDIA there are no GPUs of it; where AMD's driver is loaded, the GPUs are
    unknown.
    """
    try:
        with opened_nvml() as nvml:
            supported = _tried(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
            gpus = _job_gpus(nvml, environ)
            return DriverFacts(
                version=_tried(nvml, nvml.nvmlSystemGetDriverVersion),
                cuda=supported and f"{supported // 1000}.{supported % 1000 // 10}",
                gpus=None if gpus is None else tuple(map(_gpu_facts, gpus)),
            )
    except NvmlSilentError as error:
        if error.no_driver and not (root / "dev/kfd").exists():
            return DriverFacts(version="", gpus=())
        return DriverFacts()


def _gpu_facts(gpu: _JobGpu) -> GpuFacts:
    memory, mig = gpu.ask("nvmlDeviceGetMemoryInfo"), gpu.ask("nvmlDeviceGetMigMode")
    return GpuFacts(
        name=gpu.name(),
        memory_bytes=None if memory is None else int(memory.total),
        capability=gpu.capability(),
        mig=None if mig is None else bool(mig[0]),
    )


def read_pcie_link(uuid: str) -> PcieLink | None:
    """Return what the link of the GPU with this UUID does now; None if NVML cannot say.

    GPUs lower it while they are idle, so ask during a transfer.

    ```python
    read_pcie_link("GPU-3f2a...")  # PcieLink(generation=5, generation_max=5, width=16, ...)
    ```
    """
    with suppress(NvmlSilentError), opened_nvml() as nvml:
        return _pcie_link(_JobGpu(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid), 0, uuid).ask)
    return None


def _pcie_link(ask: _Ask) -> PcieLink:
    return PcieLink(
        generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
    )


def _nvlinks(ask: _Ask) -> list[bool]:
    """Return whether each NVLink that the GPU knows of is up."""
    states = [ask("nvmlDeviceGetNvLinkState", link) for link in range(_MOST_NVLINKS)]
    return [bool(state) for state in states if state is not None]


def read_gpu_links(environ: Mapping[str, str], root: Path) -> tuple[GpuLinks, ...] | None:
    """Return the links of the job's GPUs; None if NVML cannot say."""
    with suppress(NvmlSilentError), opened_nvml() as nvml:
        gpus = _job_gpus(nvml, environ)
        return None if gpus is None else tuple(_gpu_links(gpu, root) for gpu in gpus)
    return None


def _gpu_links(gpu: _JobGpu, root: Path) -> GpuLinks:
    capability, links, pcie = gpu.capability(), _nvlinks(gpu.ask), _pcie_link(gpu.ask)
    info = gpu.ask("nvmlDeviceGetPciInfo")
    return GpuLinks(
        name=gpu.name(),
        capability=None if capability is None else float(capability),
        nvlinks=sum(links),
        # A GPU none of whose links is up has no bridge: nothing of it is down.
        nvlinks_down=links.count(False) if any(links) else 0,
        pcie_generation=pcie.generation,
        pcie_generation_max=pcie.generation_max,
        pcie_width=pcie.width,
        pcie_width_max=pcie.width_max,
        numa=None if info is None else numa_node(_pci_folder(root, str(info.busId))),
    )


def _pci_folder(root: Path, address: str) -> Path:
    """Return the folder of a PCI device in /sys, which writes the domain with four digits.

    NVML writes eight of them.
    """
    return root / "sys/bus/pci/devices" / address.lower()[-len("0000:00:00.0") :]


def read_gpu_cpus(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[frozenset[int], ...]:
    """Return the CPUs next to each GPU of the job, as CUDA numbers the GPUs for a process.

    Empty sets are unknown. No GPU, or no answer of the driver, is an empty tuple.
    """
    with suppress(NvmlSilentError), opened_nvml() as nvml:
        gpus = _in_order(_job_gpus(nvml, environ) or (), environ.get(CUDA, ""))
        addresses = [str(nvml.nvmlDeviceGetPciInfo(gpu.handle).busId) for gpu in gpus]
        lists = [read_small(_pci_folder(root, address) / "local_cpulist") for address in addresses]
        return tuple(parse_cpus(text or "") for text in lists)
    return ()


def _in_order(found: Sequence[_JobGpu], visible: str) -> Sequence[_JobGpu]:
    """Return GPUs as CUDA_VISIBLE_DEVICES orders them, if it names all of them."""
    words = [word.strip().lower() for word in visible.split(",")]
    names = [{str(gpu.index), gpu.uuid.lower()} for gpu in found]
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


def read_gpu_health(environ: Mapping[str, str]) -> tuple[GpuHealth, ...] | None:
    """Return the health of each GPU of the job; None if NVML cannot say, or not of NVIDIA."""
    try:
        with opened_nvml() as nvml:
            return tuple(_all_healths(nvml, environ))
    except NvmlSilentError as error:
        return () if error.no_driver else None


def _all_healths(nvml: Any, environ: Mapping[str, str]) -> list[GpuHealth]:
    choice, count = gpu_choice(environ), int(nvml.nvmlDeviceGetCount())
    found: list[GpuHealth] = []
    for index in range(count):
        try:
            gpu = attach_gpu(nvml, index, gpm=False)
        except GpuLostError as error:
            if choice.may_include(index, count, len(found)):
                found.append(_lost(index, error.code))
            continue
        if gpu.keep_chosen(choice, count):
            found.append(_health(gpu))
        gpu.close()
    return found


def _lost(index: int, code: int) -> GpuHealth:
    trouble = GpuTrouble.reset_required if code == RESET_REQUIRED else GpuTrouble.lost
    return GpuHealth(uuid=nameless_gpu(index), index=index, troubles=(trouble,))


def _health(gpu: NvmlGpu) -> GpuHealth:
    facts, calls = gpu.facts, gpu.calls
    try:
        sample = gpu.sample(counters=True, xids=0)[0]
        used = sample.gauges.get(GpuGauge.memory_used_bytes)
        errors = sample.counters.get(GpuCounter.ecc_uncorrected)
        links = _nvlinks(calls.call)
        return GpuHealth(
            uuid=facts.uuid,
            index=facts.index,
            name=facts.name,
            memory_bytes=facts.memory_bytes,
            memory_used_bytes=None if used is None else int(used),
            processes=calls.ask("processes", _processes),
            ecc_uncorrected=None if errors is None else int(errors),
            troubles=tuple(sorted(sample.troubles)),
            pcie_width=calls.call("nvmlDeviceGetCurrPcieLinkWidth"),
            pcie_width_max=calls.call("nvmlDeviceGetMaxPcieLinkWidth"),
            nvlinks=sum(links) if links else None,
            power_limit_w=sample.gauges.get(GpuGauge.power_limit_w),
            mig=bool(gpu.parts),
        )
    except GpuLostError as error:
        return replace(_lost(facts.index, error.code), uuid=facts.uuid, name=facts.name)


def _processes(nvml: Any, handle: Any) -> tuple[int, ...]:
    return tuple(
        int(nvmlDeviceGetComputeRunningProcess.pid)
        for nvmlDeviceGetComputeRunningProcess in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    )
