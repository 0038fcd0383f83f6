"""Inspects this node when its supervisor asks: by a process of its own, which may be ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

from hpckit.model import messages
from hpckit.model.cluster.gpus_asked import count_cpus_per_rank
from hpckit.model.environment.health import NodeHealth, PairRate, XidSeen
from hpckit.model.launch import LaunchConfig
from hpckit.model.plain import from_plain, to_plain
from hpckit.planning.preflight.judge import list_node_requirements
from hpckit.record.launches import configured_checkpoint_dir
from hpckit.record.layout import RunPaths
from hpckit.runtime.clock import now
from hpckit.runtime.environ import copy_environment
from hpckit.runtime.preflight.probe import ProbeOrder
from hpckit.runtime.preflight.speeds import MARK
from hpckit.version import __version__

_END_S = 2.0
_SHOWN = 200


def build_node_inspection_order(order: messages.Inspect, settings: LaunchConfig, run: RunPaths) -> ProbeOrder:
    """Return what the process is to look at."""
    base = configured_checkpoint_dir(settings.checkpoint)
    return ProbeOrder(
        level=order.level,
        limit_s=order.limit_s,
        folder=str(run.folder),
        checkpoints=None if base is None else str(base),
        names=order.names,
        needs_torch=list_node_requirements(settings).needs_torch,
        again=order.again,
        hpckit=__version__,
        devices=settings.resources.tasks_per_node * count_cpus_per_rank(settings.resources),
    )


async def inspect_node(
    order: messages.Inspect, probe: ProbeOrder, xids: Iterable[XidSeen]
) -> messages.Inspected:
    """Return the answer of this node, at the latest when the order's time is over."""
    began_at, began = now(), asyncio.get_running_loop().time()
    told, problem = await _ask_preflight_process("probe", to_plain(probe), probe.limit_s)
    try:
        health = None if told is None else from_plain(NodeHealth, told)
    except (LookupError, ValueError, TypeError) as error:
        health, problem = None, f"its inspection failed: {error}"
    return messages.Inspected(
        inspection=order.inspection,
        began_at=began_at,
        took_s=round(asyncio.get_running_loop().time() - began, 4),
        health=health,
        xids=tuple(xids),
        problem=problem,
    )


async def measure_rates_with_paired_nodes(order: messages.MeasurePairs) -> messages.PairsMeasured:
    """Return how fast this node adds with others, at the latest when the order's time is over."""
    told, problem = await _ask_preflight_process("speeds", to_plain(order), order.limit_s)
    try:
        rates = {number: (rate, why) for number, rate, why in told or ()}
    except (ValueError, TypeError):
        rates, problem = {}, "its measurement cannot be read"
    pairs = []
    for number, partner, _ in order.pairs:
        rate, why = rates.get(number, (None, problem))
        pairs.append(PairRate(partner=partner, bytes_s=rate, problem=why))
    return messages.PairsMeasured(inspection=order.inspection, pairs=tuple(pairs))


async def _ask_preflight_process(module: str, order: object, limit_s: float) -> tuple[Any, str]:
    """Return what a process of `runtime.preflight` answers to an order; None with the problem."""
    words = (sys.executable, "-P", "-m", f"hpckit.runtime.preflight.{module}")
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, env=copy_environment(), process_group=0
        )
    except OSError as error:
        return None, f"its inspection could not be started: {error.strerror or error}"
    talking = asyncio.ensure_future(process.communicate(json.dumps(order).encode()))
    await asyncio.wait({talking}, timeout=limit_s)
    if not talking.done():
        await _kill_inspection(process, talking)
        return None, f"no answer within {limit_s:g} s"
    said, complained = talking.result()
    lines = [line for line in said.decode(errors="replace").splitlines() if line.startswith(MARK)]
    try:
        return json.loads(lines[-1].removeprefix(MARK)), ""
    except (LookupError, ValueError):
        last = complained.decode(errors="replace").strip().splitlines()[-1:]
        return None, f"its inspection failed: {''.join(last)[:_SHOWN]}"


async def _kill_inspection(process: asyncio.subprocess.Process, talking: asyncio.Future[Any]) -> None:
    """End an inspection and what it has started; one that a driver holds may stay."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.wait({talking}, timeout=_END_S)
    talking.cancel()
