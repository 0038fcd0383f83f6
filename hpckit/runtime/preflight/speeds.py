"""How fast the devices of a node compute, and whether they compute the same: processes of torch.

One process for each GPU, or one for the CPUs of a node without, all at the same time, as in
training. This module imports no torch; the processes run `device_speed.py`.
"""

from __future__ import annotations

import json
import subprocess  # noqa: TID251  # torch may crash or hang: each device gets a process of its own
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.model.plain import from_plain
from hpckit.model.preflight.health import DeviceSpeed

MODULE = "hpckit.runtime.preflight.device_speed"
MARK = "hpckit-speed:"
_SHOWN = 300


def measure_speeds(
    environ: Mapping[str, str], gpus: Sequence[str], *, cpus: int, limit_s: float
) -> tuple[DeviceSpeed, ...]:
    """Return the speed of each of these GPUs (UUIDs); without any, of the CPUs.

    Parameter `cpus`: how many ranks share the CPUs. Takes `limit_s` seconds at most.
    """
    deadline = time.monotonic() + limit_s
    names = gpus or ("cpu",)
    with tempfile.TemporaryDirectory(prefix="hpckit-", ignore_cleanup_errors=True) as folder:
        store = [str(len(names)), str(Path(folder) / "store")]
        started = [
            (
                name,
                start_device(environ, [name, str(cpus), f"{limit_s / 2:.1f}", str(rank), *store]),
            )
            for rank, name in enumerate(names)
        ]
        return tuple(end_device(name, process, deadline) for name, process in started)


def start_device(
    environ: Mapping[str, str], words: Sequence[str], module: str = MODULE
) -> subprocess.Popen[str]:
    """Start what measures a device; `words` are its arguments, the device's name first."""
    name = words[0]
    own = {**environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if name != "cpu":
        own["CUDA_VISIBLE_DEVICES"] = name
    words = [sys.executable, "-P", "-m", module, *words]
    return subprocess.Popen(
        words,
        env=own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )


def end_device(name: str, process: subprocess.Popen[str], deadline: float) -> DeviceSpeed:
    """Return the last that a process told of a device until then, and end it."""
    answers, problem = end_process(process, deadline, MARK)
    try:
        return from_plain(DeviceSpeed, json.loads(answers[-1]))
    except LookupError:
        return DeviceSpeed(device=name, name="", problem=problem)
    except (ValueError, TypeError) as error:
        unread = f"its answer cannot be read: {error}"
        return DeviceSpeed(device=name, name="", problem=unread)


def end_process(
    process: subprocess.Popen[str], deadline: float, mark: str
) -> tuple[list[str], str]:
    """End a process at this time; return its lines with a mark, without it, and its last words."""
    try:
        said, complained = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        complained = "did not answer in time"
    last = (complained.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    lines = [line.removeprefix(mark) for line in said.splitlines() if line.startswith(mark)]
    return lines, last[:_SHOWN]
