"""What an agent looks at in its container before ranks start; and why it did not come to that.

It takes some milliseconds, and imports no torch. A problem is what no rank could run with; what may only be
slow, or fail later, is a warning. If an agent ended early, its image is asked for the reason from outside.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import subprocess  # noqa: TID251  # the container's program, a second time
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from hpckit.errors import ContainerError
from hpckit.model.cluster.gpus_asked import requested_gpus_per_node
from hpckit.model.launch import DeviceKind, LaunchConfig
from hpckit.model.node_setup import ContainerCheck, ContainerInside
from hpckit.observe.sysfs import find_infiniband_ports, list_folder, read_small_file
from hpckit.patterns import lazy_pattern
from hpckit.record.launches import Launch, configured_checkpoint_dir

_PATIENCE_S = 20.0
_OLDEST = (3, 11)
_NAMED = "hpckit-python"
_ASK = f"import sys; print('{_NAMED}', *sys.version_info[:2])"

_NAME_PYTHON = (
    "name the image's Python: container.python=PATH (3.11 or later); a command: container.inside=command"
)
_HINTS = {
    "/dev/fuse": "take an unpacked folder as image, or ask for a /dev/fuse that users may open",
    "Requesting capability": "as root without all capabilities: container.options=[--userns], or --no-privs",
    "user namespace": "ask for user namespaces, or for a runtime that is installed setuid",
    "could not create character device": "pack the image again without its /dev: mksquashfs … -e dev",
    "exec format error": "the image is for another architecture than the node",
    "can't mkdir": "make this folder in the image; newer Charliecloud: container.options=[--write-fake]",
    "mount source": "this node has no such folder: container.mounts, cluster.container_mounts",
    **dict.fromkeys(("executable file not found", "No such file or directory"), _NAME_PYTHON),
}
"""What runtimes print, and what to do."""

_VERSION = lazy_pattern(r"^__version__ = '([^']*)'", re.MULTILINE)
_CUDA = lazy_pattern(r"^(cuda|hip)(?:: .*)? = '([^']*)'", re.MULTILINE)
_GIB = 2**30
_LITTLE_MEMLOCK = 64 * 2**20
"""The usual limit is 8 MiB or less, and 64 MiB are too few for one GPU's buffers."""


def check_container(*, launch: Launch, index: int, settings: LaunchConfig) -> ContainerCheck | None:
    """Return what an agent finds in its container; None if it is in none.

    Raises ContainerError if no rank could run there.
    """
    container = launch.find_container(index)
    if container is None or settings.container.inside is ContainerInside.command:
        return None
    began, root = time.monotonic(), Path("/")
    torch, cuda = read_torch_version()
    problem, hint = find_problem(container.image, settings, torch, cuda, root)
    if problem:
        raise ContainerError(problem, hint=hint)
    return ContainerCheck(
        python=platform.python_version(),
        torch=torch,
        cuda=cuda,
        warnings=tuple(_find_warnings(launch, settings, cuda, root)),
        seconds=round(time.monotonic() - began, 4),
    )


def read_torch_version() -> tuple[str, str]:
    """Return the version of torch, and of CUDA or ROCm which it is built for, without importing it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "", ""
    text = read_small_file(Path(spec.origin).with_name("version.py")) or ""
    version = _VERSION.search(text)
    built = {found[1]: found[2] for found in _CUDA.finditer(text)}
    words = "".join(f"{'CUDA' if kind == 'cuda' else 'ROCm'} {number}" for kind, number in built.items())
    return version[1] if version else "unknown", words


def find_problem(image: str, settings: LaunchConfig, torch: str, cuda: str, root: Path) -> tuple[str, str]:
    """Return what no rank could run with, and what to do; empty if nothing."""
    if settings.entry_point is None:
        return "", ""  # a command brings what it needs
    asked = requested_gpus_per_node(settings.resources)
    on_gpus = asked and settings.runtime.device is not DeviceKind.cpu and (root / "dev/nvidiactl").exists()
    if not torch:
        return f"{image} has no torch for its {settings.container.python}", (
            "take an image that has it, or name the Python that does: container.python=…"
        )
    if on_gpus and not cuda:
        return f"torch {torch} in {image} is built without CUDA, and {asked} GPUs a node are asked for", (
            "take an image whose torch is built for the GPUs, or resources=cpu"
        )
    if on_gpus and cuda.startswith("CUDA") and not _can_load("libcuda.so.1"):
        return f"{asked} GPUs a node are asked for, and none is usable in {image}: it has no libcuda.so.1", (
            "container.gpu=nvidia; under pyxis also container.env.NVIDIA_DRIVER_CAPABILITIES=compute,utility "
            "and container.env.NVIDIA_VISIBLE_DEVICES=all"
        )
    return "", ""


def _find_warnings(launch: Launch, settings: LaunchConfig, cuda: str, root: Path) -> Iterator[str]:
    driver = _read_driver_cuda() if cuda.startswith("CUDA") else None
    if driver is not None and driver[0] < int(cuda.removeprefix("CUDA ").partition(".")[0]):
        yield (
            f"the driver is for CUDA {driver[0]}.{driver[1]}, and torch in the image for {cuda}: take an "
            "older image, or one with the package cuda-compat"
        )
    yield from find_network_warnings(settings, root)
    for folder in ("/dev/shm", tempfile.gettempdir()):  # noqa: S108  # only its size is read
        seen = os.statvfs(folder)
        if (size := seen.f_blocks * seen.f_frsize) < _GIB:
            yield f"{folder} has {size >> 20} MiB in the container, and loaders and NCCL may need more"
    if not (root / "etc/hosts").exists():
        yield "the container has no /etc/hosts: nodes may not find each other by name"
    saves = configured_checkpoint_dir(settings.checkpoint)
    for key, path in (("checkpoint.dir", saves), ("the project", Path(launch.code.working_dir))):
        if path is not None and not path.exists():
            yield f"{key} is not in the container: {path}; add it: container.mounts=[{path}]"


def find_network_warnings(settings: LaunchConfig, root: Path) -> Iterator[str]:
    """Yield why networks between nodes would be slow from inside."""
    fabric = settings.cluster.fabric
    if fabric == "infiniband" or (fabric is None and find_infiniband_ports(root)):
        if not _can_load("libibverbs.so.1"):
            yield "InfiniBand is not usable: the image has no libibverbs.so.1, and NCCL falls back to sockets"
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if 0 <= limit < _LITTLE_MEMLOCK:
            yield f"locked memory is limited to {limit >> 10} KiB, too little for RDMA: raise it for slurmd"
    if (fabric == "slingshot" or list_folder(root / "sys/class/cxi")) and not _can_load("libfabric.so.1"):
        yield "Slingshot is not usable: the image has no libfabric.so.1; name the site's: container.mounts"


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _read_driver_cuda() -> tuple[int, int] | None:
    """Return the version of CUDA that the driver offers; None without one."""
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else (number.value // 1000, number.value % 1000 // 10)


def explain_failed_start(image: str, python: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise ContainerError if these words start no Python that an agent can use."""
    try:
        done = subprocess.run(
            [*python, "-c", _ASK],
            env=dict(environ),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or f"it took longer than {_PATIENCE_S:g} s"
        raise ContainerError(f"{Path(python[0]).name} does not start {image}: {why}") from error
    versions = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(_NAMED)]
    if not versions:
        said = (done.stderr or done.stdout).strip().splitlines()
        text = "; ".join(said[-3:]) or f"exit code {done.returncode}"
        hint = next((hint for mark, hint in _HINTS.items() if mark.lower() in text.lower()), "")
        failed = f"{python[-1]} does not start in" if hint == _NAME_PYTHON else f"{python[0]} does not start"
        raise ContainerError(f"{failed} {image}: {text}", hint=hint)
    found = tuple(map(int, versions[-1]))
    if found < _OLDEST:
        raise ContainerError(
            f"{python[-1]} in {image} is {'.'.join(map(str, found))}, and agents need 3.11 or later",
            hint="take another image or container.python, or for a command container.inside=command",
        )
