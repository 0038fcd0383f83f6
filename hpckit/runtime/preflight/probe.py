"""Inspects this node and prints what it found: a process of its own, started by the node's agent.

A driver that does not answer, or an import of torch that hangs, then costs this process and no
agent. Run as `python -P -m hpckit.runtime.preflight.probe` with an order as JSON on its standard
input. Imports no torch itself.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hpckit.model.environment.facts import FolderRole, GpuFacts, TorchFacts
from hpckit.model.environment.health import DeviceSpeed, NodeHealth
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.settings import PreflightLevel
from hpckit.observe.gpus import read_driver_and_gpus, read_gpu_cpus
from hpckit.observe.host import read_memory_bytes
from hpckit.observe.machine import read_machine_facts
from hpckit.observe.torch_probe import probe_torch
from hpckit.planning.compatibility.judge import list_nccl_and_cuda_variables
from hpckit.planning.jobs.cpu_binding import plan_cpu_binding
from hpckit.runtime.clock import now
from hpckit.runtime.environ import copy_environment
from hpckit.runtime.preflight.speeds import MARK, measure_device_speeds
from hpckit.values import dataclass

_AGAIN = 3
_AGAIN_S = 1.0
"""Processes of a job that has just ended, and their memory, take seconds to go."""
_SPARE_S = 1.0
_BUSY_BYTES = 2**28
_WRITTEN_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOrder:
    """What to inspect, within `limit_s` seconds.

    `folder` is the run's, `checkpoints` that of its state if it is another one. `names` are hosts
    that this node has to know. With `again`, what does not change while a job runs is left out.
    `devices` is how many ranks a node without GPUs has.
    """

    level: PreflightLevel
    limit_s: float
    folder: str
    checkpoints: str | None = None
    names: tuple[str, ...] = ()
    needs_torch: bool = False
    again: bool = False
    devices: int = 1
    hpckit: str = ""


def inspect_node(order: ProbeOrder, environ: Mapping[str, str]) -> NodeHealth:
    """Return what this node tells of its health."""
    began = time.monotonic()
    folder = Path(order.folder)
    folders = {FolderRole.output: folder}
    if order.checkpoints is not None:
        folders[FolderRole.checkpoints] = Path(order.checkpoints)
    torch = TorchFacts()
    if order.needs_torch and not order.again:
        torch = probe_torch(environ, patience_s=max(order.limit_s - 2 * _SPARE_S, _SPARE_S))
    machine = read_machine_facts(
        environ,
        folders,
        hpckit=order.hpckit,
        torch=torch,
        variables=list_nccl_and_cuda_variables(environ),
        at=now(),
    )
    write_s, problem = _measure_small_write(folder)
    speeds: tuple[DeviceSpeed, ...] = ()
    gpus = _read_gpus_after_idle_wait(environ)
    if order.level is PreflightLevel.medium and order.needs_torch:
        left = order.limit_s - (time.monotonic() - began) - _SPARE_S
        # On the GPUs, unless torch computes on CPUs here.
        computing = gpus if gpus and machine.torch.cuda else ()
        names = tuple(gpu.uuid for gpu in computing if not gpu.troubles)
        speeds = measure_device_speeds(environ, names, cpus=order.devices, limit_s=left)
    near = read_gpu_cpus(environ)
    free, granted = read_memory_bytes()["MemAvailable"], machine.memory_bytes
    return NodeHealth(
        environment=machine,
        gpus=gpus,
        unresolved=tuple(name for name in order.names if not _is_host_resolvable(name)),
        write_s=write_s,
        write_problem=problem,
        available_bytes=free if granted is None else min(free, granted),
        speeds=speeds,
        far_gpus=plan_cpu_binding(near, os.sched_getaffinity(0), len(near)).far,
    )


def _read_gpus_after_idle_wait(environ: Mapping[str, str]) -> tuple[GpuFacts, ...] | None:
    gpus = read_driver_and_gpus(environ, lost=True).gpus
    for _ in range(_AGAIN):
        used = (gpu.processes or (gpu.memory_used_bytes or 0) > _BUSY_BYTES for gpu in gpus or ())
        if not any(used):
            break
        time.sleep(_AGAIN_S)
        gpus = read_driver_and_gpus(environ, lost=True).gpus
    return gpus


def _measure_small_write(folder: Path) -> tuple[float | None, str]:
    file = folder / f".hpckit-{secrets.token_hex(8)}"
    began = time.monotonic()
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, b"\0" * _WRITTEN_BYTES)
            os.fsync(handle)
        finally:
            os.close(handle)
            file.unlink(missing_ok=True)
    except OSError as error:
        return None, error.strerror or str(error)
    return round(time.monotonic() - began, 4), ""


def _is_host_resolvable(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def main() -> int:
    """Read an order, inspect, print."""
    order = from_plain(ProbeOrder, json.load(sys.stdin))
    health = inspect_node(order, copy_environment())
    sys.stdout.write(MARK + json.dumps(to_plain(health)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
