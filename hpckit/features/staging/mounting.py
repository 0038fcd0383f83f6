"""Mounts squashfs files for the ranks of a node, and takes the mounts away."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from hpckit.features.staging.place import NodeDataError
from hpckit.model.failure import Cause
from hpckit.record.store import make_private_folder

_WAIT_S = 20.0
_DEAF = 'trap "" TERM INT HUP USR1 USR2; exec "$@"'
"""A notice reaches all processes of a step on some sites. squashfuse would end of it, and every rank that
reads gets SIGBUS: it starts with these signals ignored, and leaves it so."""


def mount_squashfs(image: Path, target: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """Mount an image; return the process that serves it, None if that is the kernel. Raises NodeDataError."""
    make_private_folder(target)
    path = environ.get("PATH", "")
    program = shutil.which("squashfuse_ll", path=path) or shutil.which("squashfuse", path=path)
    said = "neither squashfuse nor the right to mount is there"
    if program is not None:
        words = ["sh", "-c", _DEAF, "sh", program, "-f", str(image), str(target)]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=dict(environ),
                process_group=0,
            )
            until = time.monotonic() + _WAIT_S
            while time.monotonic() < until and process.poll() is None:
                if os.path.ismount(target):
                    return process
                time.sleep(0.02)
            process.kill()
            process.wait()
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()[-200:]
    if os.geteuid() == 0:
        words = ["mount", "-t", "squashfs", "-o", "loop,ro", str(image), str(target)]
        done = subprocess.run(words, capture_output=True, text=True, env=dict(environ), check=False)
        if done.returncode == 0:
            return None
        said = f"{said}; {done.stderr.strip()[-200:]}"
    raise NodeDataError(
        Cause.data_refused,
        f"{image.name} cannot be mounted: {said}; how=copy leaves it a file, and a tar is unpacked",
    )


def unmount(target: Path, environ: Mapping[str, str]) -> None:
    """Take a mount away, also one whose process is gone; never raises."""
    path = environ.get("PATH", "")
    fuse = shutil.which("fusermount3", path=path) or shutil.which("fusermount", path=path)
    for words in ([fuse, "-u", "-z", str(target)] if fuse else [], ["umount", "-l", str(target)]):
        with contextlib.suppress(OSError):
            if (
                words
                and subprocess.run(words, capture_output=True, env=dict(environ), check=False).returncode == 0
            ):
                return
