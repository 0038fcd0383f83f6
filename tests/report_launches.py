"""Launches for tests of reports: one with three failures, a sweep, and one with hostile names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

from cli_world import NOW, START, Desk, make_context

from hpckit.features.reporting.document import ReportDocument
from hpckit.features.reporting.gather import build_report
from hpckit.model import events
from hpckit.model.diagnosis.verdict import Straggler
from hpckit.model.failure import Cause, Failure
from hpckit.model.states import RoundAction, RunState
from hpckit.model.telemetry.json_form import encode_telemetry
from hpckit.model.telemetry.rank_steps import RankSteps
from hpckit.model.telemetry.vocabulary import (
    ClockReason,
    GaugeSpread,
    GpuCounter,
    GpuDevice,
    GpuGauge,
    GpuRow,
    GpuVendor,
    TelemetryRow,
    TelemetrySegment,
    TelemetryTotal,
)
from hpckit.record.launches import Launch
from hpckit.record.layout import AttemptPaths
from hpckit.record.store import append_event, append_json_lines, make_private_folder, write_json
from hpckit.views.freshness import Freshness

TRACEBACK = """\
Traceback (most recent call last):
  File "/site-packages/hpckit/runtime/rank/process.py", line 7, in main
    function(config, run)
  File "/home/me/train.py", line 41, in main
    loss = model(batch).mean()
RuntimeError: CUDA error: an illegal memory access was encountered
"""
ATTACK = "<img src=x onerror=\"document.title='owned'\"></script><script>alert(1)</script>%{x}${y}"
"""What no report may run, in a place where users may write."""

NODES = ("n1", "n2")
_OOM = Failure(cause=Cause.cuda_oom, message="CUDA out of memory", rank=1, node="n1", step=419)
_LOST = Failure(cause=Cause.node_lost, message="n2 is lost", node="n2", step=799)
_CRASH = Failure(
    cause=Cause.exception,
    message="RuntimeError: CUDA error: an illegal memory access was encountered",
    rank=3,
    node="n2",
    step=1199,
    traceback=TRACEBACK,
    signature="abc",
)
_SLOW = Straggler(
    rank=3,
    node="n2",
    gpu="GPU-n2-1",
    slower_by=0.28,
    own_s=1.85,
    peers_s=1.45,
    step_s=2.0,
    windows=9,
    judged=10,
)
_ROUNDS = ((1, 0, 0, 420, 2.0, _OOM), (1, 1, 300, 800, 2.5, _LOST), (2, 0, 600, 1200, 2.0, _CRASH))
"""Attempt, round, first step, end, seconds a step, and what ended it."""


def troubled_launch(desk: Desk) -> Launch:
    """Return a launch of one run on two nodes with two GPUs each, which failed three times."""
    launch = desk.freeze("llm", sweep=[("model=large", "lr=0.1")])
    desk.tell(launch, events.LocalStarted(at=START, host="elsewhere", pid=1, started="1"))
    at = START + timedelta(minutes=5)
    for attempt, number, first, end, step_s, failure in _ROUNDS:
        paths = launch.paths.run(0).attempt(attempt)
        if number == 0:
            at += timedelta(minutes=7)
            _begin(paths, attempt, at)
        at = _round(paths, number, (first, end), at, step_s, failure)
    return launch


def _begin(paths: AttemptPaths, attempt: int, at: datetime) -> None:
    make_private_folder(paths.folder)
    append_event(
        paths.events,
        events.AttemptStarted(
            at=at, attempt=attempt, job="41", restart_count=attempt - 1, host="n1", pid=1, started="1"
        ),
    )


def _round(
    paths: AttemptPaths, number: int, steps: tuple[int, int], at: datetime, step_s: float, failure: Failure
) -> datetime:
    """Write a round; return when it ended."""
    first, end = steps
    started = at + timedelta(seconds=30)
    append_event(paths.events, events.RoundStarted(at=started, round=number, world_size=4, nodes=NODES))
    begun = started + timedelta(seconds=60)
    append_event(paths.events, events.StepReached(at=begun, round=number, step=first))
    for step in range(first, end):
        moment = begun + timedelta(seconds=step_s * (step - first + 1))
        loss = 4 / math.sqrt(1 + step / 30) + 0.05 * math.sin(step * 1.7) + max(step - end + 150, 0) / 300
        row = {"at": moment.isoformat(), "round": number, "step": step, "loss": round(loss, 5)}
        append_json_lines(paths.metrics, row | {"lr": 0.1 * (1 - step / 2000)})
        if step % 100 == 99:
            append_event(
                paths.events,
                events.CheckpointSaved(
                    at=moment, round=number, step=step, size=1 << 30, stall_s=9, duration_s=20
                ),
            )
    over = begun + timedelta(seconds=step_s * (end - first) + 20)
    last = failure is _CRASH or failure is _LOST
    append_event(
        paths.events,
        events.RoundEnded(
            at=over,
            round=number,
            first_step=first,
            step=end - 1,
            action=RoundAction.end if last else RoundAction.new_round,
            failure=failure,
        ),
    )
    if last:
        state = RunState.failed if failure is _CRASH else RunState.interrupted
        append_event(paths.events, events.AttemptEnded(at=over, state=state, exit_code=1, failure=failure))
    write_json(paths.progress, {"round": number, "step": end - 1, "at": over.isoformat()})
    append_event(paths.events, events.StragglerFound(at=over, round=number, straggler=_SLOW))
    for node in NODES:
        _telemetry(paths, node, begun, over)
    return over


def _telemetry(paths: AttemptPaths, node: str, begin: datetime, end: datetime) -> None:
    """Write rows of a minute for two GPUs, one of which is idle every now and then."""
    file = paths.newest_telemetry_file(node)
    if not file.exists():
        append_json_lines(file, encode_telemetry(TelemetrySegment(node=node, start=begin, row_s=60)))
        for index in range(2):
            append_json_lines(file, encode_telemetry(_device(node, index)))
    rows = list(_rows(node, begin, end))
    for row in rows:
        append_json_lines(file, encode_telemetry(row))
    whole = TelemetryTotal(row=_row(node, begin, end, len(rows) * 12, 0.7))
    append_json_lines(file, encode_telemetry(whole))


def _device(node: str, index: int) -> GpuDevice:
    return GpuDevice(
        uuid=f"GPU-{node}-{index}",
        vendor=GpuVendor.nvidia,
        index=index,
        name="NVIDIA H100 80GB HBM3",
        memory_bytes=80 * 10**9,
    )


def _rows(node: str, begin: datetime, end: datetime) -> Iterator[TelemetryRow]:
    minutes = int((end - begin).total_seconds() // 60)
    for minute in range(minutes):
        at = begin + timedelta(minutes=minute)
        busy = 0.2 if node == "n2" and minute % 9 == 4 else 0.9 + 0.05 * math.sin(minute)
        yield _row(node, at, at + timedelta(minutes=1), 12, busy)


def _row(node: str, begin: datetime, end: datetime, samples: int, busy: float) -> TelemetryRow:
    seconds = (end - begin).total_seconds()
    gauges = {
        GpuGauge.busy_share: busy,
        GpuGauge.memory_used_bytes: 61e9,
        GpuGauge.power_w: 150 + 500 * busy,
        GpuGauge.temperature_c: 30 + 50 * busy,
    }
    spreads = {
        name: GaugeSpread(min=0.5 * one, mean=one, max=one, p95=one, count=samples)
        for name, one in gauges.items()
    }
    base = 2 * NODES.index(node)
    steps = max(int(seconds / 2), 1)
    return TelemetryRow(
        start=begin,
        end=end,
        gpus=tuple(
            GpuRow(
                uuid=f"GPU-{node}-{index}",
                samples=samples,
                gauges=spreads,
                counters={GpuCounter.energy_j: seconds * (150 + 500 * busy)},
                reasons={ClockReason.software_thermal: 0.25} if node == "n1" else {},
            )
            for index in range(2)
        ),
        ranks=tuple(
            RankSteps(
                rank=base + index,
                node="",
                gpu=f"GPU-{node}-{index}",
                steps=steps,
                seconds=2.0 * steps,
                data_s=0.7 * steps,
                checkpoint_s=0.05 * steps,
                waiting_s=(0.1 if base + index == 3 else 0.5) * steps,
                own_s=(1.85 if base + index == 3 else 1.45) * steps,
                phases={"forward": 0.5 * steps, "backward": 0.6 * steps},
            )
            for index in range(2)
        ),
    )


def swept_launch(desk: Desk, runs: int, *, steps: int = 60) -> Launch:
    """Return a sweep of so many completed runs; every fiftieth failed, from the eighth on."""
    words = [
        (f"lr={10 ** (-1 - index % 5)}", f"seed={index}", f"opt={('adam', 'sgd', 'lion')[index % 3]}")
        for index in range(runs)
    ]
    launch = desk.freeze("sweep", sweep=words)
    for index in range(runs):
        _swept_run(launch, index, steps)
    return launch


def _swept_run(launch: Launch, index: int, steps: int) -> None:
    paths = launch.paths.run(index).attempt(1)
    make_private_folder(paths.folder)
    at = START + timedelta(seconds=20 * (index % 40))
    began = events.AttemptStarted(at=at, attempt=1, job=None, restart_count=0, host="n1", pid=1, started="1")
    append_event(paths.events, began)
    append_event(paths.events, events.RoundStarted(at=at, round=0, world_size=1, nodes=("n1",)))
    first = at + timedelta(seconds=5)
    append_event(paths.events, events.StepReached(at=first, round=0, step=0))
    scale = 0.4 + 0.15 * (index % 5) + 0.001 * (index % 97)
    lines = []
    for step in range(steps):
        loss = scale + 2 / (1 + step) + 0.02 * math.sin(step + index)
        lines.append({"at": START.isoformat(), "step": step, "loss": loss, "acc": 1 - scale / 3})
    for line in lines:
        append_json_lines(paths.metrics, line)
    write_json(paths.progress, {"round": 0, "step": steps - 1, "at": first.isoformat()})
    over = first + timedelta(seconds=steps)
    failed = index % 50 == 7
    failure = Failure(cause=Cause.exception, message="ValueError: boom", rank=0, step=7, traceback=TRACEBACK)
    append_event(
        paths.events,
        events.AttemptEnded(
            at=over,
            state=RunState.failed if failed else RunState.completed,
            exit_code=int(failed),
            failure=failure if failed else None,
        ),
    )


def gathered(desk: Desk, *launches: Launch) -> ReportDocument:
    """Return the report of whole launches."""
    context = make_context(desk.folder, now=lambda: NOW, sleep=desk.sleeps.append)
    return build_report([(launch, None) for launch in launches], context, Freshness())


def hostile_launch(desk: Desk) -> Launch:
    """Return two runs whose every name, message and metric is ATTACK."""
    launch = desk.freeze("hostile", sweep=[(f"a={ATTACK}",), ("a=1",)])
    for index in range(2):
        paths = launch.paths.run(index).attempt(1)
        _begin(paths, 1, START + timedelta(minutes=1))
        append_event(
            paths.events,
            events.RoundStarted(at=START + timedelta(minutes=1), round=0, world_size=1, nodes=(ATTACK,)),
        )
        append_event(paths.events, events.StepReached(at=START + timedelta(minutes=2), round=0, step=0))
        for step in range(3):
            row = {"at": START.isoformat(), "step": step, f"loss{ATTACK}": step + 0.5}
            append_json_lines(paths.metrics, row | {"note": ATTACK, "odd": float(step)})
        failure = Failure(
            cause=Cause.exception, message=ATTACK, node=ATTACK, step=2, traceback=f"x\n{ATTACK}\x1b[2J"
        )
        append_event(
            paths.events,
            events.AttemptEnded(
                at=START + timedelta(minutes=3), state=RunState.failed, exit_code=1, failure=failure
            ),
        )
    return launch
