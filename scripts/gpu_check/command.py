"""The command line: chooses items, bounds each by itself, and writes what is known after each."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_check.items import ITEMS, Item
from gpu_check.needs import needs_text, problems
from gpu_check.rehearsal import rehearsed
from gpu_check.result import PAGE_FILE, Result, State, exit_code, page, write
from gpu_check.scene import MEASURED, Machine, MeasureError, NotRunError, Scene

_ENDED = "ended.json"
_LAUNCHER = Path(__file__).resolve().parents[1] / "gpu-check"
_LEAST_S = 10.0
_PATIENCE = 5
"""How many times as long an item may take in a rehearsal, on a machine that does other things."""
_TAIL = 3000
_MOST_BYTES = 8 * 2**20
_FACTS = """
import json, torch
seen = torch.cuda.is_available()
version = torch.cuda.nccl.version() if seen else ()
print(json.dumps({"torch": torch.__version__, "gpu": torch.cuda.get_device_name() if seen else "",
    "gpu_bytes": torch.cuda.get_device_properties(0).total_memory if seen else 0,
    "cuda": torch.version.cuda, "nccl": ".".join(map(str, version))}))
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    made.add_argument("--out", metavar="DIR", type=Path, help="where the results are written")
    made.add_argument("--items", metavar="NAME,…", help="only these, in this order")
    made.add_argument("--limit-s", type=float, default=480, help="seconds of all (480)")
    made.add_argument("--list", action="store_true", help="names and seconds of the items")
    made.add_argument("--needs", action="store_true", help="packages that are missing")
    made.add_argument("--rehearse", action="store_true", help="without a GPU: NVML's fake, tiny trainings")
    made.add_argument(
        "--older-torch",
        action="store_true",
        help="layouts and bf16 also with a torch that hpckit refuses for them",
    )
    made.add_argument("--measure", metavar="NAME", help=argparse.SUPPRESS)
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return its exit code: 0 passed, 1 an item failed, 2 nothing could be run."""
    options = parser().parse_args(arguments)
    if options.measure:
        return measure(ITEMS[options.measure], options.folder)
    if options.list:
        for item in ITEMS.values():
            print(f"{item.name:10} {item.usual_s:4} s, {item.limit_s:4} s at most   {item.about}")
        return 0
    missing = problems()
    if options.needs or missing:
        python = ".".join(platform.python_version_tuple()[:2])
        print(needs_text(missing, python), end="")
        return 2 if missing else 0
    chosen = [one for one in (options.items or ",".join(ITEMS)).split(",") if one]
    if unknown := [one for one in chosen if one not in ITEMS]:
        print(f"no such item: {', '.join(unknown)}; there are {', '.join(ITEMS)}")
        return 2
    if options.out is None:
        print("--out DIR is needed: where the results are written")
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True)
        work = Path(stack.enter_context(made))
        if options.rehearse:
            stack.enter_context(rehearsed(work))
        check = Check(
            out=options.out,
            work=work,
            limit_s=options.limit_s,
            rehearsal=options.rehearse,
            older_torch=options.older_torch,
        )
        return check.run([ITEMS[one] for one in chosen])


@dataclass(slots=True, kw_only=True)
class Check:
    """One run of the check: results go to `out`, all else to `work`."""

    out: Path
    work: Path
    limit_s: float
    rehearsal: bool = False
    older_torch: bool = False
    results: list[Result] = field(default_factory=list, init=False)

    def run(self, items: Sequence[Item]) -> int:
        """Run items until the time is up; write the results after each; return the exit code."""
        began = time.monotonic()
        facts = torch_facts()
        if not facts["gpu"] and not self.rehearsal:
            print(f"torch {facts['torch']} sees no GPU here; --rehearse tries the check without")
            return 2
        machine = Machine(
            torch=facts["torch"],
            gpu=facts["gpu"],
            gpu_bytes=facts["gpu_bytes"],
            older_torch=self.older_torch,
            rehearsal=self.rehearsal,
        )
        shown = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **{key: value or None for key, value in facts.items() if key != "gpu_bytes"},
            "Python": platform.python_version(),
            "CPUs": os.cpu_count(),
            "rehearsal": self.rehearsal or None,
            "older torch allowed": self.older_torch or None,
        }
        for item in items:
            left = self.limit_s - (time.monotonic() - began)
            self.results.append(self.run_one(item, machine, left))
            shown["seconds"] = round(time.monotonic() - began, 1)
            write(self.out, shown, self.results)
            last = self.results[-1]
            print(f"{last.item}: {last.state.value}, {last.seconds:.0f} s {last.reason}", flush=True)
        print((self.out / PAGE_FILE).read_text(encoding="utf-8"))
        return exit_code(self.results)

    def run_one(self, item: Item, machine: Machine, left_s: float) -> Result:
        """Run an item for at most its limit, and the seconds that are left of all."""
        if left_s < _LEAST_S:
            reason = f"the time of all items, {self.limit_s:g} s, was spent"
            return Result(item=item.name, state=State.not_run, seconds=0, reason=reason)
        folder = self.work / item.name
        folder.mkdir(parents=True)
        (folder / "machine.json").write_text(json.dumps(asdict(machine)), encoding="utf-8")
        scene = Scene.of(folder, machine)
        limit = min(item.limit_s * (_PATIENCE if self.rehearsal else 1), left_s)
        began = time.monotonic()
        in_time = run_bounded(item, scene, limit)
        seconds = time.monotonic() - began
        self._collect(item, folder)
        return conclude(item, folder, seconds, None if in_time else limit)

    def _collect(self, item: Item, folder: Path) -> None:
        """Copy what is worth keeping of an item next to the results."""
        log = folder / "item.log"
        if log.exists() and (text := log.read_text(errors="replace").strip()):
            with (self.out / "gpu-check.log").open("a", encoding="utf-8") as whole:
                whole.write(f"== {item.name}\n{text[-_TAIL:]}\n")
        for name in ("nvml.json", "profile.trace.json.gz", "nccl-trace-rank-0"):
            file = folder / name
            if file.exists() and file.stat().st_size <= _MOST_BYTES:
                shutil.copy(file, self.out / name)


def torch_facts() -> dict[str, Any]:
    """Return what torch says of itself and of the GPU, in a process that gives it back."""
    done = subprocess.run(
        [sys.executable, "-c", _FACTS], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        sys.exit(f"torch cannot be asked: {done.stderr[-_TAIL:]}")
    return dict(json.loads(done.stdout))


def run_bounded(item: Item, scene: Scene, limit_s: float) -> bool:
    """Measure an item in a process of its own; return whether it ended within the limit.

    Whatever it started is ended, too, so that the GPU is free for the next one.
    """
    words = [sys.executable, str(_LAUNCHER), "--measure", item.name, "--folder", str(scene.folder)]
    with (scene.folder / "item.log").open("wb") as log:
        process = subprocess.Popen(
            words,
            env=dict(scene.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            end_all_of(scene)
            code = process.wait()
            log.write(f"exit code {code}\n".encode() if code else b"")
    return True


def end_all_of(scene: Scene) -> None:
    """End all processes that have this item's folder of launches in their environment."""
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        found = list(_processes_of(scene))
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if not found:
            return
        if number is signal.SIGTERM:
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and list(_processes_of(scene)):
                time.sleep(0.1)


def _processes_of(scene: Scene) -> Iterator[int]:
    mark = f"HPCKIT_OUTPUTS={scene.environ['HPCKIT_OUTPUTS']}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            continue
        if mark in variables and pid != os.getpid() and state != "Z":
            yield pid


def conclude(item: Item, folder: Path, seconds: float, over_s: float | None) -> Result:
    """Judge what an item left in its folder; `over_s` is the limit that it did not keep."""
    measured = _read(folder / MEASURED)
    ended = _read(folder / _ENDED) or {}
    if over_s is None and ended.get("not_run"):
        return Result(item=item.name, state=State.not_run, seconds=seconds, reason=ended["not_run"])
    problem = f"it did not end within {over_s:g} s" if over_s is not None else ended.get("problem")
    if over_s is None and not ended:
        problem = "its process died: see gpu-check.log"
    return judged(item, measured, seconds, problem or "")


def judged(item: Item, measured: Any, seconds: float, problem: str = "") -> Result:
    """Return the result of measured values; a `problem` is one beside those that they show."""
    found, expected, figures, left = [problem] if problem else [], {}, [], []
    if measured is None:
        found = found or ["nothing was measured"]
    else:
        try:
            checks = item.judge(measured)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            found.append(f"what was measured is not whole: {type(error).__name__}: {error}")
        else:
            found += checks.problems
            expected, figures, left = checks.expected, checks.figures, checks.left_out
    return Result(
        item=item.name,
        state=State.failed if found else State.passed,
        seconds=seconds,
        measured=measured or {},
        expected=expected,
        reason="; ".join(found),
        figures=figures,
        left_out=left,
    )


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def measure(item: Item, folder: Path) -> int:
    """Measure one item in this process; write what came of it into its folder."""
    machine = Machine(**json.loads((folder / "machine.json").read_text(encoding="utf-8")))
    scene = Scene.of(folder, machine)
    ended: dict[str, str] = {"ended": "yes"}
    try:
        scene.keep(item.measuring()(scene))
    except NotRunError as error:
        ended["not_run"] = str(error)
    except MeasureError as error:
        ended["problem"] = str(error)
    except Exception as error:  # noqa: BLE001  # said on the page, and in full in the log
        traceback.print_exc()
        ended["problem"] = f"{type(error).__name__}: {error}"
    (folder / _ENDED).write_text(json.dumps(ended), encoding="utf-8")
    return 0


__all__ = ["Check", "judged", "main", "page"]
