"""What torch is installed, asked in a process of its own: its import may crash, hang or be slow.

This module imports no torch; the other process is this Python with the script below.
"""

from __future__ import annotations

import json
import signal
import subprocess  # noqa: TID251  # torch may crash on import: it gets a process of its own
import sys
from collections.abc import Mapping

from hpckit.model.environment.facts import TorchFacts
from hpckit.model.plain import from_plain

PATIENCE_S = 60.0
"""A first import from a cold network file system takes tens of seconds; the run that looks at a
node has two minutes in all."""

_SHOWN = 300
_MARK = "hpckit-torch:"
_SCRIPT = """\
import importlib.util, json, time

def tried(ask):
    try:
        return ask()
    except Exception:
        return None

def library():
    with open("/proc/self/maps") as maps:
        return next((line.split()[-1] for line in maps if "/libnccl.so" in line), None)

def facts():
    if importlib.util.find_spec("torch") is None:
        return {"installed": False}
    began = time.monotonic()
    try:
        import torch
    except Exception as error:
        return {"installed": True, "problem": f"{type(error).__name__}: {error}"[:300]}
    spent = time.monotonic() - began
    nccl = tried(lambda: ".".join(map(str, torch.cuda.nccl.version())))
    flags = tried(lambda: torch._C._cuda_getArchFlags())
    return {
        "installed": True,
        "version": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "nccl": nccl,
        "nccl_library": tried(library),
        "architectures": flags.split() if flags else None,
        "import_s": round(spent, 2),
    }

print("hpckit-torch:" + json.dumps(facts()))
"""


def probe_torch(
    environ: Mapping[str, str], *, python: str = sys.executable, patience_s: float = PATIENCE_S
) -> TorchFacts:
    """Return what this Python's torch is; takes as long as its import, at most `patience_s`."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", _SCRIPT],
            env=dict(environ),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=patience_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return TorchFacts(problem=f"its import took longer than {patience_s:g} s", timed_out=True)
    except OSError as error:
        return TorchFacts(problem=f"{python} cannot be started: {error.strerror or error}")
    # What is imported may print, too.
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    try:
        return from_plain(TorchFacts, json.loads(lines[-1].removeprefix(_MARK)))
    except (LookupError, ValueError, TypeError):
        said = [f": {line[:_SHOWN]}" for line in done.stderr.strip().splitlines()[-1:]]
        return TorchFacts(problem=f"its import {_format_exit_code_or_signal(done.returncode)}{''.join(said)}")


def _format_exit_code_or_signal(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
