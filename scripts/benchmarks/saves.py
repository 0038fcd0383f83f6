"""What saving costs: standstill as a share of time, and bandwidth compared with `dd conv=fsync`.

A run with a state of 256 MiB on this machine; the disk's own speed is measured within the same
minutes.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from benchmarks.commands import run, wait_until
from benchmarks.scene import Scene

_WIDTH = 4729
"""The width of a square of floats: with Adam's two moments, 3 x 4 x 4729² bytes are 256 MiB."""
_STEPS = 120
_REPEATS = 3
_DISK_REPEATS = 7
_KEEP = 3
_MIB = 2**20


def bench_saves(folder: Path) -> None:
    """Do three runs of two minutes, a step a second, that save as often as `auto` says."""
    print("run  saves  interval  stall  stall share  torch.save  MiB/s   dd MiB/s  share of dd")
    rows = [_one(folder, number) for number in range(_REPEATS)]
    for name, values in (
        ("stall share %", [row[0] for row in rows]),
        ("background, of dd %", [row[1] for row in rows]),
        ("waited for, of dd %", [row[2] for row in rows]),
    ):
        print(f"{name:20} median {median(values):.2f}, {min(values):.2f} to {max(values):.2f}")


def _one(folder: Path, number: int) -> tuple[float, float, float]:
    """Return, in percent, the share of standstill, and two speeds as shares of the disk's."""
    scene = Scene(folder=folder / f"run-{number}", steps=_STEPS, step_s=1.0, width=_WIDTH).prepare()
    disk = _dd(folder, 256)
    scene.launch("cluster=local", "resources=cpu_pair", f"checkpoint.mtbf_hours={1 / 6:.4f}")
    wait_until(lambda: scene.status()["state"] not in {"pending", "running"}, 600, every_s=20)
    disk += _dd(folder, 256)
    account = scene.status()["goodput"]
    saved = scene.events("checkpoint_saved")
    speeds = [one["size"] / _MIB / one["duration_s"] for one in saved]
    speed, waited = median(speeds[:-1]), speeds[-1]
    background = [one["stall_s"] for one in saved[:-1]]  # the last one ends the run, which waits for it
    running = account["wall_s"] - account["queue_s"] - account["start_s"] - saved[-1]["stall_s"]
    share, stall = sum(background) / running * 100, median(background)
    print(
        f"{number:3}  {len(saved):5}  {account['measured']['interval_s']:6.1f} s  {stall:4.2f} s"
        f"  {share:9.2f} %  {_torch_save_s(folder):8.2f} s  {speed:5.0f}   {median(disk):8.0f}"
        f"  {speed / median(disk) * 100:8.0f} %",
        flush=True,
    )
    for one in saved:
        print(f"     step {one['step']}: stall {one['stall_s']:.3f} s, all {one['duration_s']:.2f} s")
    return share, speed / median(disk) * 100, waited / median(disk) * 100


def _dd(folder: Path, size_mib: int) -> list[float]:
    """Return MiB/s of writing and flushing a file of this size; the first two are left out.

    Three files are kept, as with checkpoints: on a thinly provisioned disk, a file that gets the
    space that the last one has just freed is written up to six times as fast.
    """
    speeds, kept = [], []
    for number in range(_DISK_REPEATS):
        target = folder / f"dd-{number}.bin"
        words = ["dd", "if=/dev/zero", f"of={target}", "bs=4M", f"count={size_mib // 4}"]
        began = time.perf_counter()
        run([*words, "conv=fsync"])
        speeds.append(size_mib / (time.perf_counter() - began))
        kept.append(target)
        if len(kept) > _KEEP:
            kept.pop(0).unlink()
    for target in kept:
        target.unlink()
    return speeds[2:]


def _torch_save_s(folder: Path) -> float:
    """Return how long `torch.save` of the same state blocks, without any fsync."""
    import torch  # noqa: PLC0415

    state = [torch.zeros(_WIDTH, _WIDTH) for _ in range(3)]
    times = []
    for _ in range(3):
        began = time.perf_counter()
        torch.save(state, folder / "state.pt")
        times.append(time.perf_counter() - began)
    return median(times)
