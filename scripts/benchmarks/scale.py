"""A whole attempt on a thousand nodes: the real supervisor, with all agents in one other process.

Runs `hpckit supervise` on a frozen launch; its srun is replaced by the program of the agents
(benchmarks.simulated_agents), which connect to it over loopback.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.commands import SCRIPTS, hpckit, on_path, run
from hpckit.model import events
from hpckit.model.cluster.nodes import compress_to_hostlist
from hpckit.record.layout import LaunchPaths
from hpckit.record.store import read_events

_PATIENCE_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The size of the attempt. Each append to a file takes `append_ms` longer.

    The process of the agents stops for `starved_s` in the middle of it.
    """

    nodes: int
    tasks_per_node: int
    idle_s: float = 5.0
    append_ms: float = 0.0
    starved_s: float = 0.0


def bench_scale(folder: Path, options: argparse.Namespace) -> None:
    """Measure attempts of these sizes; print a line for each, or with `json` an object."""
    for nodes in options.nodes:
        here = folder / str(nodes)
        here.mkdir()
        scale = Scale(
            nodes=nodes,
            tasks_per_node=options.tasks_per_node,
            append_ms=options.append_ms,
            starved_s=options.starved_s,
        )
        figures = measure(here, scale)
        if options.json:
            print(json.dumps(figures), flush=True)
        else:
            print(f"{nodes} nodes x {scale.tasks_per_node}", flush=True)
            for name, value in figures.items():
                print(f"  {name:15} {str(value)[:70]}", flush=True)


def measure(folder: Path, scale: Scale) -> dict[str, Any]:
    """Let one rank of such an attempt fail; return the outcome and the measurements."""
    launch = _freeze(folder, scale)
    settings, told = folder / "agents.json", folder / "told.json"
    settings.write_text(json.dumps({**asdict(scale), "told": str(told)}))
    _write_srun(folder / "srun", settings)
    names = tuple(f"n{number:05d}" for number in range(scale.nodes))
    environ = on_path(SCRIPTS) | {
        "PATH": f"{folder}:/usr/bin:/bin",
        "SLURM_JOB_ID": "1",
        "SLURMD_NODENAME": "127.0.0.1",
        "SLURM_JOB_NODELIST": compress_to_hostlist(names),
    }
    words = ["-m", "benchmarks.watched_supervisor", str(folder / "peak"), str(scale.append_ms)]
    done = subprocess.run(
        [sys.executable, *words, "supervise", str(launch), "--job", "0", "--run", "0"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    if not told.exists():
        sys.exit(f"the attempt did not get as far as to fail:\n{done.stdout}{done.stderr}")
    peak_mb = float((folder / "peak").read_text())
    return _figures(LaunchPaths(launch), json.loads(told.read_text()), peak_mb)


def _freeze(folder: Path, scale: Scale) -> Path:
    """Make a launch of one run that is never restarted and for which no Slurm is asked."""
    environ = on_path() | {"HPCKIT_OUTPUTS": str(folder / "outputs")}
    words = (
        *("render", "--json", "cluster=slurm", "experiment=command", "command=true"),
        *("recovery=never", "code.snapshot=false", f"resources.nodes={scale.nodes}"),
        f"resources.tasks_per_node={scale.tasks_per_node}",
    )
    return Path(json.loads(run(hpckit(*words), env=environ, cwd=folder).stdout)["dir"])


def _write_srun(path: Path, settings: Path) -> None:
    """Write a replacement for srun: one process that plays all agents."""
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m benchmarks.simulated_agents "{settings}" "$@"\n')
    path.chmod(0o755)


def _figures(paths: LaunchPaths, told: dict[str, float], peak_mb: float) -> dict[str, Any]:
    attempt = paths.run(0).attempt(1)
    history = list(read_events(attempt.events))
    end = next(event for event in history if isinstance(event, events.AttemptEnded))
    blamed = {event.node for event in history if isinstance(event, events.NodeLost)}
    failure = end.failure
    if failure is not None and failure.rank is None and failure.node:
        blamed |= set(failure.node.split(", "))
    return {
        "gather_s": round(told["gathered"] - told["called"], 3),
        "broadcast_s": round(told["heard"] - told["bound"], 3),
        "view_s": round(end.at.timestamp() - told["failed"], 3),
        "blamed": len(blamed),
        "cause": None if failure is None else failure.cause,
        "message": None if failure is None else failure.message,
        "rss_mb": round(peak_mb, 1),
        "cpu_share_idle": round(told["cpu_share_idle"], 4),
        "record_mb": round(attempt.events.stat().st_size / 1e6, 3),
    }
