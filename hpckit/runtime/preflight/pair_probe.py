"""Measures how fast this node adds with others, and prints it: started by the node's agent.

One process for each device, all at the same time, as in training. Run as
`python -P -m hpckit.runtime.preflight.pair_probe` with a PairOrder as JSON on its standard input.
Imports no torch itself.
"""

from __future__ import annotations

import json
import subprocess  # noqa: TID251  # torch may crash or hang: each device gets a process of its own
import sys
import time
from collections.abc import Mapping, Sequence

from hpckit.model.plain import from_plain, to_plain
from hpckit.runtime.environ import environment
from hpckit.runtime.preflight.pair_order import MARK, DeviceOrder, PairOrder
from hpckit.runtime.preflight.speeds import start_device

MODULE = "hpckit.runtime.preflight.device_pairs"
_SPARE_S = 1.0
_SHOWN = 200

Measured = tuple[int, float | None, str]
"""The number of a pair, its bus bandwidth in bytes per second, and the problem if there is none."""


def measure_node(order: PairOrder, environ: Mapping[str, str]) -> list[Measured]:
    """Return what the node's devices measured with each other node, at the latest in time."""
    deadline = time.monotonic() + order.limit_s
    started = [
        start_device(environ, [name, json.dumps(to_plain(_part(order, place)))], MODULE)
        for place, name in enumerate(order.devices)
    ]
    told = [_said(one, deadline) for one in started]
    return [_together(number, told) for number, _ in order.pairs]


def _part(order: PairOrder, place: int) -> DeviceOrder:
    return DeviceOrder(
        limit_s=order.limit_s - _SPARE_S,
        place=place,
        devices=len(order.devices),
        pairs=order.pairs,
        host=order.host,
        port=order.port,
        serves=order.serves,
        everyone=order.everyone,
    )


def _said(process: subprocess.Popen[str], deadline: float) -> dict[int, Measured]:
    """Return what a device measured by the number of each pair, and end its process."""
    try:
        said, complained = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        complained = "did not answer in time"
    found: dict[int, Measured] = {}
    for line in said.splitlines():
        if line.startswith(MARK):
            number, rate, problem = json.loads(line.removeprefix(MARK))
            found[number] = (number, rate, problem)
    last = (complained.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    found[-1] = (-1, None, last[:_SHOWN])
    return found


def _together(number: int, told: Sequence[Mapping[int, Measured]]) -> Measured:
    """Return a pair's result: one that all devices share, unless one of them has none."""
    results = [one.get(number) or (number, *one[-1][1:]) for one in told]
    return next((one for one in results if one[1] is None), results[0])


def main() -> int:
    """Read an order, measure, print."""
    order = from_plain(PairOrder, json.load(sys.stdin))
    sys.stdout.write(MARK + json.dumps(measure_node(order, environment())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
