"""The effective training time under random faults, compared with the formula.

Its results are in docs/explanations/reliability.md. The runs are on this machine; the measured
values are from hpckit's own account.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from benchmarks.commands import hpckit, wait_until
from benchmarks.scene import Scene

_PATIENCE_S = 3 * 3600
_UNDAUNTED = ("recovery.max_identical_failures=20", "recovery.restarts.signal=20")
"""Random kills may come faster than a restart takes, which by default ends a run as a loop."""
_MEASURED = ("mtbf_s", "interval_s", "stall_s", "restart_s", "detection_s")


def bench_ettr_2min(folder: Path) -> None:
    """Run 15 minutes of work with a rank killed every 2 minutes on average."""
    _under_faults(folder, mtbf_s=120, work_s=900)


def bench_ettr_10min(folder: Path) -> None:
    """Run half an hour of work with a rank killed every 10 minutes on average."""
    _under_faults(folder, mtbf_s=600, work_s=1800)


def _under_faults(folder: Path, *, mtbf_s: int, work_s: int) -> None:
    step_s = 0.2
    scene = Scene(folder=folder / "project", steps=int(work_s / step_s), step_s=step_s).prepare()
    scene.launch(
        *("cluster=local", "resources=cpu_pair", f"checkpoint.mtbf_hours={mtbf_s / 3600:.6f}"), *_UNDAUNTED
    )
    wait_until(lambda: scene.last_step() > 0, 300)
    faults = ("--mtbf", f"{mtbf_s}s", "--faults", "kill", "--seed", "7", "--for", "3h", "--json")
    with (folder / "faults.jsonl").open("w") as file:
        chaos = subprocess.Popen(hpckit("chaos", *faults), cwd=scene.folder, env=scene.environ, stdout=file)
    wait_until(lambda: scene.status()["state"] not in {"pending", "running"}, _PATIENCE_S, 20)
    chaos.terminate()
    chaos.wait()
    _show(scene.status(), (folder / "faults.jsonl").read_text())


def _show(status: dict[str, Any], faults: str) -> None:
    account = status["goodput"]
    measured, expected = account["ettr_since_first_step"], account["ettr_expected"]
    injected = faults.count('"injected"')
    print(f"ended {status['state']}, {injected} kills, {account['rounds']} rounds")
    for part in ("wall_s", "productive_s", "checkpoint_s", "restart_s", "lost_s", "start_s"):
        print(f"{part:14} {account[part]:8.1f}")
    print("inputs:", {name: account["measured"][name] for name in _MEASURED})
    print(f"ETTR measured {measured:.4f}, by the formula {expected:.4f}: ", end="")
    print(f"{(measured - expected) * 100:+.1f} points")
