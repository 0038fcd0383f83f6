"""NVML asked once about the job's GPUs, outside of sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpckit.observe.gpu_choice import gpu_choice
from hpckit.observe.nvml.bindings import load_bindings

T = TypeVar("T")

MOST_NVLINKS = 18
"""Of a GPU: Hopper and Blackwell have 18, earlier ones fewer."""


def tried(nvml: Any, call: Callable[[], T]) -> T | None:
    """Return what NVML answers; None if this driver or this GPU does not."""
    try:
        return call()
    except nvml.NVMLError:
        return None


@contextmanager
def opened_nvml() -> Iterator[Any | None]:
    """Yield NVML, initialised until the end of the block; None without it or without a driver."""
    try:
        nvml = load_bindings()
    except ImportError:
        yield None
        return
    if tried(nvml, lambda: (nvml.nvmlInit(), True)) is None:
        yield None
        return
    try:
        yield nvml
    finally:
        tried(nvml, nvml.nvmlShutdown)


def job_handles(nvml: Any, environ: Mapping[str, str]) -> Mapping[tuple[int, str], Any] | None:
    """Return the handles of the run's GPUs by number and UUID; None if NVML cannot count GPUs."""
    count = tried(nvml, nvml.nvmlDeviceGetCount)
    if count is None:
        return None
    choice, found = gpu_choice(environ), {}
    for index in range(count):
        handle = tried(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, index))
        uuid = handle and tried(nvml, partial(nvml.nvmlDeviceGetUUID, handle))
        if handle and uuid and choice.includes(index, uuid, count):
            names = _part_names(nvml, handle) if choice.parts else ()
            if not choice.parts or any(map(choice.includes_part, names)):
                found[index, str(uuid)] = handle
    return found


def _part_names(nvml: Any, handle: Any) -> Iterator[str]:
    for place in range(tried(nvml, partial(nvml.nvmlDeviceGetMaxMigDeviceCount, handle)) or 0):
        part = tried(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place))
        name = part and tried(nvml, partial(nvml.nvmlDeviceGetUUID, part))
        yield from [str(name)] if name else []


def pci_folder(root: Path, address: str) -> Path:
    """Return the folder of a PCI device in /sys, which writes the domain with four digits.

    NVML writes eight of them.
    """
    return root / "sys/bus/pci/devices" / address.lower()[-len("0000:00:00.0") :]
