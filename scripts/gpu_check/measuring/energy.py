"""The energy of a load of known length: NVML's counter, power times time, and hpckit's record."""

from __future__ import annotations

import bisect
import importlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_check.scene import NotRunError, Scene, failure_words

_EVERY_S = 0.05
_SETTLES_S = 2.0
"""How long power, which NVML averages over a second, takes to be that of a load."""
_LOAD_S = 12
_ENERGY_FIELD = 83
"""Millijoules since the driver was loaded."""


@dataclass(slots=True)
class PowerLog:
    """Readings of one GPU: seconds of the clock, watts, joules of the energy counter."""

    at: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)

    def read(self, nvml: Any, handle: Any, done: threading.Event) -> None:
        """Read until done."""
        while not done.wait(_EVERY_S):
            watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            joules = energy_j(nvml, handle)
            self.at.append(time.time())
            self.watts.append(watts)
            self.joules.append(joules)

    def between(self, began: float, ended: float) -> dict[str, float]:
        """Return seconds, joules of the counter and watts times seconds between two moments."""
        inside = [place for place, at in enumerate(self.at) if began <= at <= ended]
        points = [(self.at[place], self.watts[place]) for place in inside]
        return {
            "seconds": points[-1][0] - points[0][0],
            "counter_j": self.joules[inside[-1]] - self.joules[inside[0]],
            "power_times_time_j": area(points),
        }

    def counter_at(self, moment: float) -> float | None:
        """Return the counter at a moment, on the line between two readings; None outside."""
        place = bisect.bisect_left(self.at, moment)
        if not 0 < place < len(self.at):
            return None
        before, after = self.at[place - 1], self.at[place]
        share = (moment - before) / (after - before)
        return self.joules[place - 1] + share * (self.joules[place] - self.joules[place - 1])


def area(points: Sequence[tuple[float, float]]) -> float:
    """Return the area below straight lines between points."""
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))


def measure_energy(scene: Scene) -> dict[str, Any]:
    """Launch a load, and read the GPU beside it."""
    nvml, handle = _opened()
    log, done = PowerLog(), threading.Event()
    thread = threading.Thread(target=log.read, args=(nvml, handle, done), daemon=True)
    thread.start()
    time.sleep(1)
    launched = scene.launch(
        *("experiment=function", "entry_point=gpu_work:load", f"+seconds={_LOAD_S}"),
        *("preflight=off", "name=energy"),
    )
    time.sleep(_SETTLES_S)
    done.set()
    thread.join()
    run = launched.runs()[0]
    measured: dict[str, Any] = {"failure": failure_words(run), "recorded": run["energy"]}
    measured["readings"] = len(log.at)
    measured["whole"] = log.between(log.at[0], log.at[-1])
    metrics = launched.metrics()[0]
    if "load_began" in metrics:
        began, ended = metrics["load_began"] + _SETTLES_S, metrics["load_ended"] - 0.2
        measured["load"] = log.between(began, ended)
        measured["load_s"] = metrics["load_ended"] - metrics["load_began"]
    window = recorded_window(launched.attempt())
    edges = [log.counter_at(one) for one in window or ()]
    if window and None not in edges:
        measured["window_s"] = window[1] - window[0]
        measured["window_counter_j"] = edges[1] - edges[0]  # type: ignore[operator]
    measured["telemetry"] = run["telemetry"]
    return measured


def energy_j(nvml: Any, handle: Any) -> float:
    """Return NVML's energy counter, in joules, by its field; raises the bindings' NVMLError."""
    (told,) = nvml.nvmlDeviceGetFieldValues(handle, [_ENERGY_FIELD])
    if told.nvmlReturn:
        raise nvml.NVMLError(told.nvmlReturn)
    return int(told.value.ullVal) / 1000


def _opened() -> tuple[Any, Any]:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        energy_j(nvml, handle)
    except Exception as error:  # noqa: BLE001  # without NVML there is nothing to compare
        raise NotRunError(f"NVML tells no energy here: {error}") from None
    return nvml, handle


def recorded_window(attempt: Path) -> tuple[float, float] | None:
    """Return when hpckit's telemetry of an attempt begins and ends; None without rows."""
    rows = list(_rows(attempt))
    if not rows:
        return None
    return min(row[0] for row in rows), max(row[1] for row in rows)


def _rows(attempt: Path) -> Iterator[tuple[float, float]]:
    for file in attempt.glob("telemetry*/**/*.jsonl"):
        yield from _rows_of(file)
    for file in attempt.glob("telemetry-*.jsonl"):
        yield from _rows_of(file)


def _rows_of(file: Path) -> Iterator[tuple[float, float]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record.get("kind") in {"row", "total"}:
            yield tuple(  # type: ignore[misc]
                datetime.fromisoformat(record[edge]).timestamp() for edge in ("start", "end")
            )
