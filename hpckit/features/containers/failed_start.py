"""Why an agent ended in its container before it could speak: asked of its image afterwards."""

from __future__ import annotations

import subprocess  # noqa: TID251  # the container's program, a second time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpckit.errors import ContainerError

_PATIENCE_S = 60.0
_OLDEST = (3, 11)
_NAMED = "hpckit-python"
_ASK = f"import sys; print('{_NAMED}', *sys.version_info[:2])"

_HINTS = {
    "/dev/fuse": "take an unpacked folder as image, or ask for a /dev/fuse that users may open",
    "Requesting capability": "as root without all capabilities: container.options=[--userns], or --no-privs",
    "user namespace": "ask for user namespaces, or for a runtime that is installed setuid",
    "could not create character device": "pack the image again without its /dev: mksquashfs … -e dev",
    "exec format error": "the image is for another architecture than the node",
    "executable file not found": "name the image's Python: container.python=PATH; agents need 3.11 or later",
    "No such file or directory": "name the image's Python: container.python=PATH; agents need 3.11 or later",
}
"""What runtimes print, and what to do."""


def explain_failed_start(image: str, python: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise ContainerError if these words start no Python that an agent can use."""
    try:
        done = subprocess.run(
            [*python, "-c", _ASK],
            env=dict(environ),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ContainerError(f"{Path(python[0]).name} does not start {image}: {error}") from error
    versions = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(_NAMED)]
    if not versions:
        said = (done.stderr or done.stdout).strip().splitlines()
        text = "; ".join(said[-3:]) or f"exit code {done.returncode}"
        hint = next((hint for mark, hint in _HINTS.items() if mark.lower() in text.lower()), "")
        raise ContainerError(f"{python[-1]} does not start in {image}: {text}", hint=hint)
    found = tuple(map(int, versions[-1]))
    if found < _OLDEST:
        raise ContainerError(
            f"{python[-1]} in {image} is {'.'.join(map(str, found))}, and agents need 3.11 or later",
            hint="take another image or container.python, or for a command container.inside=command",
        )
