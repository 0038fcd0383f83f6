"""Measures how fast this node adds with others, and prints it: started by the node's agent.

One process for each device, all at the same time, as in training. Run as
`python -P -m hpckit.runtime.preflight.pair_probe` with a MeasurePairs as JSON on its standard
input. Imports no torch itself.
"""

from __future__ import annotations

import json
import subprocess  # noqa: TID251  # torch may crash or hang: each device gets a process of its own
import sys
import time
from collections.abc import Mapping, Sequence

from hpckit.model.plain import from_plain, to_plain
from hpckit.runtime.channel.messages import MeasurePairs
from hpckit.runtime.environ import environment
from hpckit.runtime.preflight.speeds import end_process, start_device
from hpckit.values import replace

MARK = "hpckit-pair:"
"""What is imported may print, too."""
MODULE = "hpckit.runtime.preflight.device_pairs"
_SPARE_S = 1.0


Measured = tuple[int, float | None, str]
"""The number of a pair, its bus bandwidth in bytes per second, and the problem if there is none."""


def measure_node(order: MeasurePairs, environ: Mapping[str, str]) -> list[Measured]:
    """Return what the node's devices measured with each other node, at the latest in time."""
    deadline = time.monotonic() + order.limit_s
    text = json.dumps(to_plain(replace(order, limit_s=order.limit_s - _SPARE_S)))
    started = [
        start_device(environ, [name, str(place), text], MODULE)
        for place, name in enumerate(order.devices)
    ]
    told = [_said(process, deadline) for process in started]
    return [_together(number, told) for number, _, _ in order.pairs]


def _said(process: subprocess.Popen[str], deadline: float) -> dict[int, Measured]:
    """Return what a device measured by the number of each pair, and end its process."""
    answers, problem = end_process(process, deadline, MARK)
    found: dict[int, Measured] = {-1: (-1, None, problem)}
    for number, rate, why in map(json.loads, answers):
        found[number] = (number, rate, why)
    return found


def _together(number: int, told: Sequence[Mapping[int, Measured]]) -> Measured:
    """Return a pair's result: one that all devices share, unless one of them has none."""
    results = [answer.get(number) or (number, *answer[-1][1:]) for answer in told]
    return next((result for result in results if result[1] is None), results[0])


def main() -> int:
    """Read an order, measure, print."""
    order = from_plain(MeasurePairs, json.load(sys.stdin))
    sys.stdout.write(MARK + json.dumps(measure_node(order, environment())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
