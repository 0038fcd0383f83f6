"""How fast the devices of a node compute, and add with other nodes; whether results are the same.

One process of torch for each GPU, or one for the CPUs of a node without, all at the same time, as
in training: `device_speed.py`. This module imports no torch. The node's agent runs it as
`python -P -m hpckit.runtime.preflight.speeds`, with a MeasurePairs as JSON on its standard input.
"""

from __future__ import annotations

import json
import subprocess  # noqa: TID251  # torch may crash or hang: each device gets a process of its own
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.model.environment.health import DeviceSpeed
from hpckit.model.messages import MeasurePairs
from hpckit.model.plain import from_plain, to_plain
from hpckit.runtime.environ import copy_environment
from hpckit.values import replace

MODULE = "hpckit.runtime.preflight.device_speed"
MARK = "hpckit-measured:"
"""Before an answer: what is imported may print, too."""
_SHOWN = 300
_SPARE_S = 1.0


def measure_device_speeds(
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
                start_device_measurement(environ, [name, str(cpus), f"{limit_s / 2:.1f}", str(rank), *store]),
            )
            for rank, name in enumerate(names)
        ]
        return tuple(end_measurement_and_read_speed(name, process, deadline) for name, process in started)


def start_device_measurement(environ: Mapping[str, str], words: Sequence[str]) -> subprocess.Popen[str]:
    """Start what measures a device; `words` are its arguments, the device's name first."""
    name = words[0]
    own = {**environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if name != "cpu":
        own["CUDA_VISIBLE_DEVICES"] = name
    words = [sys.executable, "-P", "-m", MODULE, *words]
    return subprocess.Popen(
        words,
        env=own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )


def end_measurement_and_read_speed(name: str, process: subprocess.Popen[str], deadline: float) -> DeviceSpeed:
    """Return the last that a process told of a device until then, and end it."""
    answers, problem = end_and_read_answers(process, deadline)
    try:
        return from_plain(DeviceSpeed, json.loads(answers[-1]))
    except LookupError:
        return DeviceSpeed(device=name, name="", problem=problem)
    except (ValueError, TypeError) as error:
        unread = f"its answer cannot be read: {error}"
        return DeviceSpeed(device=name, name="", problem=unread)


def end_and_read_answers(process: subprocess.Popen[str], deadline: float) -> tuple[list[str], str]:
    """End a process at this time; return its answers, and its last words."""
    try:
        said, complained = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        complained = "did not answer in time"
    last = (complained.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    lines = [line.removeprefix(MARK) for line in said.splitlines() if line.startswith(MARK)]
    return lines, last[:_SHOWN]


Measured = tuple[int, float | None, str]
"""The number of a pair, its bus bandwidth in bytes per second, and the problem if there is none."""


def measure_node_pairs(order: MeasurePairs, environ: Mapping[str, str]) -> list[Measured]:
    """Return what the node's devices measured with each other node, at the latest in time."""
    deadline = time.monotonic() + order.limit_s
    text = json.dumps(to_plain(replace(order, limit_s=order.limit_s - _SPARE_S)))
    started = [
        start_device_measurement(environ, [name, str(place), text])
        for place, name in enumerate(order.devices)
    ]
    told = [_read_pair_results(process, deadline) for process in started]
    return [_pick_pair_problem_or_result(number, told) for number, _, _ in order.pairs]


def _read_pair_results(process: subprocess.Popen[str], deadline: float) -> dict[int, Measured]:
    answers, problem = end_and_read_answers(process, deadline)
    found: dict[int, Measured] = {-1: (-1, None, problem)}
    for number, rate, why in map(json.loads, answers):
        found[number] = (number, rate, why)
    return found


def _pick_pair_problem_or_result(number: int, told: Sequence[Mapping[int, Measured]]) -> Measured:
    results = [answer.get(number) or (number, *answer[-1][1:]) for answer in told]
    return next((result for result in results if result[1] is None), results[0])


def main() -> int:
    """Read an order, measure, print."""
    order = from_plain(MeasurePairs, json.load(sys.stdin))
    sys.stdout.write(MARK + json.dumps(measure_node_pairs(order, copy_environment())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
