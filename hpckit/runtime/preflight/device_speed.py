"""Measures one device with torch: products of matrices, copies, and whether results are exact.

Run as `python -P -m hpckit.runtime.preflight.device_speed NAME CPUS SECONDS RANK COUNT FILE`, by
speeds.py. NAME is the UUID of the one visible GPU, or `cpu`. It prints what it measured alone, then
that again with what all COUNT processes of the node add together, who meet in the file.

With NAME PLACE ORDER it adds with the same device of other nodes, one node after the other. PLACE
is its number among the node's devices, ORDER a MeasurePairs as JSON. It prints the bandwidth of
each pair, or why there is none.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from hpckit.model.environment.facts import GpuFacts
from hpckit.model.environment.health import DeviceSpeed
from hpckit.model.messages import MeasurePairs
from hpckit.model.plain import from_plain, to_plain
from hpckit.observe.nvml.backend import read_pcie_link
from hpckit.observe.sysfs import read_small_file
from hpckit.runtime.preflight.speeds import MARK
from hpckit.values import replace

_SIZE = {"cuda": 8192, "cpu": 1024}
"""Rows of the square matrices: large enough to be bound by arithmetic."""
_COPY_BYTES = {"cuda": 2**30, "cpu": 2**27}
_TRANSFER_BYTES = 2**28
_SUM_BYTES = {"cuda": 2**28, "cpu": 2**22}
_SUMS = 6
_REPEATS = 9
_LARGEST = 8
"""Whole numbers from -8 to 8: their products, summed 8192 times, are exact in 32 bits of a float,
so that every right device has the same bits, in whatever order it adds."""

_DONE = "done"
_POLL_S = 0.05
_SHOWN = 200


def measure_device(name: str, cpus: int, limit_s: float) -> DeviceSpeed:
    """Return the speed of the device; the medians of up to nine repeats within `limit_s`."""
    kind = "cpu" if name == "cpu" else "cuda"
    if kind == "cpu":
        torch.set_num_threads(max(1, cpus))
    device = torch.device(kind)
    share_s = limit_s / 4
    flops, checksum, repeats = _measure_matmul(device, share_s)
    copied = _measure_memory_bandwidth(device, share_s)
    there = back = link = None
    if kind == "cuda":
        there, back, link = _measure_host_transfers(device, name, share_s)
    return DeviceSpeed(
        device=name,
        name=torch.cuda.get_device_name() if kind == "cuda" else read_cpu_model(),
        matmul_flops=flops,
        checksum=checksum,
        repeats=repeats,
        copy_bytes_s=copied,
        to_device_bytes_s=there,
        to_host_bytes_s=back,
        pcie=link,
    )


def read_cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of this node's CPUs, by which they are compared; `cpu` if it is unknown."""
    lines = (read_small_file(cpuinfo) or "").split("\n\n")[0].splitlines()
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    parts = [said.get("CPU implementer"), said.get("CPU part")]
    return said.get("model name") or " ".join(filter(None, parts)) or "cpu"


def _measure_matmul(device: torch.device, limit_s: float) -> tuple[float, str, bool]:
    size = _SIZE[device.type]
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randint(-_LARGEST, _LARGEST + 1, (size, size), generator=generator)
        .to(torch.float32)
        .to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        for _ in range(2)
    )
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    seconds = _measure_median_s(lambda: left @ right, device, limit_s)
    digests = {_digest_product(left, right) for _ in range(2)}
    return 2 * size**3 / seconds, min(digests), len(digests) == 1


def _digest_product(left: Any, right: Any) -> str:
    """Return the digest of sums over rows, in 64 bits: exact, whatever the order of addition."""
    product = left.to(torch.float32) @ right.to(torch.float32)
    sums = product.to(torch.float64).sum(dim=1).to(torch.int64).cpu()
    return hashlib.sha256(sums.numpy().tobytes()).hexdigest()[:16]


def _measure_memory_bandwidth(device: torch.device, limit_s: float) -> float:
    """Return bytes per second of a copy within the device's memory: each is read and written."""
    source = torch.ones(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _measure_median_s(lambda: target.copy_(source), device, limit_s)


def _measure_host_transfers(
    device: torch.device, name: str, limit_s: float
) -> tuple[float, float, GpuFacts | None]:
    host = torch.empty(_TRANSFER_BYTES, dtype=torch.uint8).pin_memory()
    on_device = torch.empty(_TRANSFER_BYTES, dtype=torch.uint8, device=device)
    there = _measure_median_s(lambda: on_device.copy_(host, non_blocking=True), device, limit_s)
    back = _measure_median_s(lambda: host.copy_(on_device, non_blocking=True), device, limit_s)
    for _ in range(_REPEATS):
        on_device.copy_(host, non_blocking=True)
    link = read_pcie_link(name)
    wait_for_device(device)
    return _TRANSFER_BYTES / there, _TRANSFER_BYTES / back, link


def measure_all_reduce(device: torch.device, place: int, count: int, file: str, limit_s: float) -> float:
    """Return the bus bandwidth of a sum over all devices of the node, in bytes per second.

    Collective: each process calls it. Raises RuntimeError if not all do within `limit_s`.
    Source: nccl-tests, PERFORMANCE.md: 2 (n - 1) / n of the bytes in the time of one sum.
    """
    dist.init_process_group(
        choose_backend(device),
        init_method=f"file://{file}",
        rank=place,
        world_size=count,
        timeout=timedelta(seconds=limit_s),
    )
    return measure_bandwidth_and_leave_group(device, count)


def choose_backend(device: torch.device) -> str:
    """Return what processes of this device add with."""
    return "nccl" if device.type == "cuda" else "gloo"


def measure_bandwidth_and_leave_group(device: torch.device, count: int) -> float:
    """Return the bus bandwidth of sums over the present process group, and leave it.

    Collective: each of `count` processes calls it. Raises RuntimeError.
    """
    summed = torch.ones(_SUM_BYTES[device.type] // 4, device=device)
    times = [measure_seconds(lambda: dist.all_reduce(summed), device) for _ in range(_SUMS)]
    dist.destroy_process_group()
    seconds = statistics.median(times[1:])  # the first one connects
    return 2 * (count - 1) / count * summed.numel() * 4 / seconds


def _measure_median_s(work: Callable[[], object], device: torch.device, limit_s: float) -> float:
    began, times = time.monotonic(), list[float]()
    measure_seconds(work, device)
    while len(times) < _REPEATS and (not times or time.monotonic() - began < limit_s):
        times.append(measure_seconds(work, device))
    return statistics.median(times)


def measure_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a piece of work on a device that has nothing else to do."""
    wait_for_device(device)
    began = time.perf_counter()
    work()
    wait_for_device(device)
    return time.perf_counter() - began


def wait_for_device(device: torch.device) -> None:
    """Wait until a GPU has done what it was told; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_pair_bandwidths(
    order: MeasurePairs, place: int, device: torch.device, store: Store
) -> Iterator[tuple[int, float | None, str]]:
    """Yield the number of each pair with its bus bandwidth in bytes per second, or its problem.

    A pair that fails costs its share of the time, and the next one begins all the same.
    """
    count = len(order.devices)
    limit = timedelta(seconds=order.limit_s / max(1, len(order.pairs)))
    for number, _, is_first in order.pairs:
        try:
            dist.init_process_group(
                choose_backend(device),
                store=PrefixStore(f"pair-{number}", store),
                rank=place if is_first else count + place,
                world_size=2 * count,
                timeout=limit,
            )
            yield number, measure_bandwidth_and_leave_group(device, 2 * count), ""
        except RuntimeError as error:
            if dist.is_initialized():
                dist.destroy_process_group()
            yield number, None, str(error).strip().splitlines()[0][:_SHOWN]


def _measure_links_to_other_nodes(device: torch.device, place: int, text: str) -> None:
    order = from_plain(MeasurePairs, json.loads(text))
    deadline = time.monotonic() + order.limit_s
    if device.type == "cpu":
        torch.set_num_threads(1)
    serves = order.serves and place == 0
    store = TCPStore(
        order.host,
        order.port,
        is_master=serves,
        timeout=timedelta(seconds=order.limit_s),
        wait_for_workers=False,
    )
    for answer in measure_pair_bandwidths(order, place, device, store):
        _print_answer(answer)
    store.add(_DONE, 1)
    # Pairs of other nodes need the store as long as they measure.
    while serves and time.monotonic() < deadline and store.add(_DONE, 0) < order.everyone:
        time.sleep(_POLL_S)


def main(arguments: list[str]) -> int:
    """Measure and print."""
    name, first, *more = arguments
    device = torch.device("cpu" if name == "cpu" else "cuda")
    if len(more) == 1:
        _measure_links_to_other_nodes(device, int(first), more[0])
        return 0
    limit, place, count, file = more
    limit_s = float(limit)
    speed = measure_device(name, int(first), limit_s)
    _print_answer(to_plain(speed))
    if int(count) > 1:
        rate = measure_all_reduce(device, int(place), int(count), file, limit_s / 2)
        _print_answer(to_plain(replace(speed, all_reduce_bytes_s=rate)))
    return 0


def _print_answer(answer: object) -> None:
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
