"""Starts programs for the benchmarks, and waits for their results."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
SANDBOX = SCRIPTS / "slurm-sandbox"
SANDBOX_BIN = Path("/run/hpckit-sandbox/bin")
RIVAL_FOLDER = SCRIPTS.parent / ".venv-bench"
SWEEP = Path(__file__).parent / "sweep"
"""The programs for sweeps with hydra-submitit-launcher and with submitit."""

_RIVALS = ("hydra-core==1.3.2", "hydra-submitit-launcher==1.2.0", "setuptools<81")


def run(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; a failure ends the benchmark with the command's output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{words} exited {done.returncode}:\n{done.stdout}{done.stderr}")
    return done  # type: ignore[no-any-return]


def hpckit(*words: str) -> list[str]:
    """Return the command line of a verb."""
    return [sys.executable, "-m", "hpckit", *words]


def slurm(*words: str) -> str:
    """Run one of the sandbox's Slurm commands; return its output."""
    return run([str(SANDBOX_BIN / words[0]), *words[1:]]).stdout.strip()


def rival_python() -> str:
    """Return the Python that has hydra-submitit-launcher and submitit; install them once."""
    python = RIVAL_FOLDER / "bin" / "python"
    if not python.exists():
        venv.create(RIVAL_FOLDER, with_pip=True)
        run([str(python), "-m", "pip", "install", "-q", *_RIVALS])
    return str(python)


def need_sandbox() -> None:
    """End the benchmark if there is no Slurm to run on."""
    if not (SANDBOX_BIN / "sbatch").exists():
        sys.exit("the sandbox is down; bring it up: scripts/slurm-sandbox up")


def wait_until(ready: Callable[[], object], patience_s: float, every_s: float = 0.05) -> bool:
    """Poll; return whether it became ready in time."""
    deadline = time.monotonic() + patience_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def on_path(*folders: Path) -> dict[str, str]:
    """Return this environment with the folders at the front of PYTHONPATH."""
    inherited = os.environ.get("PYTHONPATH")
    path = [*map(str, folders), *([inherited] if inherited else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
