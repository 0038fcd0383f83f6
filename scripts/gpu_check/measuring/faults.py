"""What hpckit tells of faults that only a GPU has: memory that runs out, collectives of NCCL."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

from gpu_check.scene import Launched, NotRunError, Scene, failure_words

_PIECE_BYTES = 3 * 2**30
_HANGS = ("runtime.hang_min_s=6", "runtime.hang_factor=20", "runtime.hang_first_s=60")
_PATIENT = ("runtime.hang_min_s=60", "runtime.hang_first_s=120")
_TIMEOUT_S = 6


def measure_oom(scene: Scene) -> dict[str, Any]:
    """Let a run take all memory of the GPU; return what its failure and its files say."""
    if not scene.machine.on_gpu:
        raise NotRunError("torch sees no GPU whose memory could run out")
    launched = scene.launch(
        *("experiment=function", "entry_point=gpu_work:exhaust", "preflight=off"),
        *(f"+piece_bytes={_PIECE_BYTES}", "observe.memory_snapshot=true", "recovery=never"),
    )
    run = launched.runs()[0]
    folder = launched.attempt() / "rounds" / "000"
    figures = folder / "rank-00000.memory.json"
    failure = run.get("failure") or {}
    return {
        "state": run["state"],
        "cause": failure.get("cause"),
        "message": failure.get("message"),
        "figures": json.loads(figures.read_text()) if figures.exists() else None,
        "snapshot": _snapshot(folder / "rank-00000.memory.pickle"),
        "gpu_bytes": scene.machine.gpu_bytes,
    }


def _snapshot(file: Path) -> dict[str, Any] | None:
    """Return what a snapshot holds, which a run of this check has written; None without one."""
    if not file.exists():
        return None
    held = pickle.loads(file.read_bytes())  # noqa: S301  # our own, of a moment ago
    traces = [entry for device in held["device_traces"] for entry in device]
    named = [trace for trace in traces if any("gpu_work" in frame["filename"] for frame in trace["frames"])]
    return {
        "bytes": file.stat().st_size,
        "segments": len(held["segments"]),
        "segment_bytes": sum(one["total_size"] for one in held["segments"]),
        "entries": len(traces),
        "entries_of_our_line": len(named),
    }


def measure_recorder(scene: Scene) -> dict[str, Any]:
    """Stop one of two ranks in the midst of collectives; return whom hpckit names, and how.

    NCCL may refuse two ranks on one GPU. So a rank alone also waits in a collective for too long.
    """
    ways = ["gloo"]
    if scene.machine.on_gpu:
        ways += ["nccl", "nccl timeout", "nccl alone"]
    measured: dict[str, Any] = {"on_gpu": scene.machine.on_gpu, "ways": {}}
    launched = {name: _start(scene, name) for name in ways}
    for name, one in launched.items():
        one.wait()
        wanted = "hang" if name in {"gloo", "nccl"} else "communication"
        measured["ways"][name] = {"wanted": wanted, **_told(scene, one)}
        scene.keep(measured)
    return measured


def _start(scene: Scene, name: str) -> Launched:
    """Start a run of two ranks, or of one alone; all run at once on the one GPU."""
    times_out = name not in {"gloo", "nccl"}
    gpus = 0 if name == "gloo" else "null"  # both ranks may see the one GPU
    two = ("resources.tasks_per_node=2", f"resources.gpus_per_node={gpus}", "runtime.device=cpu")
    alone = name == "nccl alone"
    return scene.launch(
        *("experiment=function", "recovery=never", *(() if alone else two)),
        f"entry_point=gpu_work:{'wait_alone' if alone else 'stop_a_rank'}",
        *(_PATIENT if times_out else _HANGS),
        *(f"+backend={name.split(maxsplit=1)[0]}", f"+timeout_s={_TIMEOUT_S if times_out else 600}"),
        *("preflight=off", "observe=off", f"name=recorder-{name.replace(' ', '-')}"),
        wait=False,
    )


def _told(scene: Scene, launched: Launched) -> dict[str, Any]:
    run = launched.runs()[0]
    folder = launched.attempt() / "rounds" / "000"
    failure = run.get("failure") or {}
    dump = folder / "nccl-trace-rank-0"
    if dump.exists():
        shutil.copy(dump, scene.folder / "nccl-trace-rank-0")
    said = folder / "rank-00000.collectives.json"
    log = folder / "rank-00000.log"
    return {
        "words": failure_words(run),
        "cause": failure.get("cause"),
        "message": failure.get("message"),
        "verdicts": run.get("verdicts"),
        "dump_bytes": dump.stat().st_size if dump.exists() else None,
        "collectives": json.loads(said.read_text()) if said.exists() else None,
        "log": log.read_text(errors="replace")[-2000:] if log.exists() else "",
    }
