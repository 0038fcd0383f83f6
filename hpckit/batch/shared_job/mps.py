"""Runs CUDA's Multi-Process Service, for runs that share a GPU.

One daemon for the job, in private folders. Daemons started by others and device settings are never
touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from hpckit.record.store import make_folder

PROGRAM = "nvidia-cuda-mps-control"
_LIMIT_S = 15.0


@asynccontextmanager
async def mps(folder: Path, environ: Mapping[str, str]) -> AsyncIterator[dict[str, str]]:
    """Run a daemon; yields the variables by which programs find it, none if it cannot run."""
    places = {"CUDA_MPS_PIPE_DIRECTORY": folder / "pipe", "CUDA_MPS_LOG_DIRECTORY": folder / "log"}
    variables = {name: str(make_folder(place)) for name, place in places.items()}
    program = shutil.which(PROGRAM, path=environ.get("PATH"))
    own = {**environ, **variables}
    there = program is not None and await _say(program, "-d", environ=own)
    try:
        yield variables if there else {}
    finally:
        if program is not None and there:
            await _say(program, environ=own, words=b"quit\n")


async def _say(
    program: str, *arguments: str, environ: Mapping[str, str], words: bytes = b""
) -> bool:
    """Run the control program; return whether it succeeded in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            env=dict(environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.communicate(words), _LIMIT_S)
    if process.returncode is None:
        process.kill()
        await process.wait()
    return process.returncode == 0
