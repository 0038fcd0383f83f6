"""Adds with the same device of other nodes, one node after the other, by torch.

Run as `python -P -m hpckit.runtime.preflight.device_pairs NAME PLACE ORDER`, by pair_probe.py.
NAME is the UUID of the one visible GPU, or `cpu`, PLACE its number among the node's devices; ORDER
is a MeasurePairs as JSON. It prints the bandwidth of each pair, or why there is none.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from hpckit.model.plain import from_plain
from hpckit.runtime.channel.messages import MeasurePairs
from hpckit.runtime.preflight.device_speed import backend_of, measure_group
from hpckit.runtime.preflight.pair_probe import MARK

_DONE = "done"
_POLL_S = 0.05
_SHOWN = 200


def measure_pairs(
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
                backend_of(device),
                store=PrefixStore(f"pair-{number}", store),
                rank=place if is_first else count + place,
                world_size=2 * count,
                timeout=limit,
            )
            yield number, measure_group(device, 2 * count), ""
        except RuntimeError as error:
            if dist.is_initialized():
                dist.destroy_process_group()
            yield number, None, str(error).strip().splitlines()[0][:_SHOWN]


def main(arguments: list[str]) -> int:
    """Measure and print."""
    name, number_here, text = arguments
    place, order = int(number_here), from_plain(MeasurePairs, json.loads(text))
    device = torch.device("cpu" if name == "cpu" else "cuda")
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
    for number, rate, problem in measure_pairs(order, place, device, store):
        sys.stdout.write(MARK + json.dumps([number, rate, problem]) + "\n")
        sys.stdout.flush()
    store.add(_DONE, 1)
    # Pairs of other nodes need the store as long as they measure.
    while serves and time.monotonic() < deadline and store.add(_DONE, 0) < order.everyone:
        time.sleep(_POLL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
