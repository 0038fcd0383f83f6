"""Shows folders at other paths to this process and all that it starts, and to nobody else.

It needs no privilege where user namespaces are allowed. Mounts end with the last process that sees them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess  # noqa: TID251  # it ends with this process
import time
from collections.abc import Mapping
from pathlib import Path

from hpckit.runtime.left_behind import die_with_parent

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 1 << 19
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What Slurm sends to all processes of a step: without its file system each rank would get SIGBUS."""
_MOUNT_S = 30.0
_LOOK_S = 0.02


def can_mount_images() -> bool:
    """Return whether this host has what mounts a squashfs file without privilege."""
    return _find_program() is not None and os.access("/dev/fuse", os.R_OK | os.W_OK)


def _find_program() -> str | None:
    return next(filter(None, map(shutil.which, ("squashfuse_ll", "squashfuse"))), None)


def show_folders_at_paths(
    targets: Mapping[str, Path], source: Path, image: Path | None = None
) -> subprocess.Popen[bytes] | None:
    """Show `source/NAME` at the path of each name; with an image, mount it at `source` before.

    Returns the process that serves the image. Raises OSError if this host does not allow it; then nothing
    has changed for other processes, and this one may be in namespaces of its own. The process must have no
    other threads.
    """
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if user == 0:
        _call(libc.unshare(_CLONE_NEWNS), "unshare")
    else:
        _call(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
        _map_ids(0, user, 0, group)  # the superuser of this namespace may mount
    _call(libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "mount /")
    try:
        server = None if image is None else _serve_image(image, source)
        for name, path in targets.items():
            real = os.path.realpath(path)
            words = (os.fsencode(source / name), os.fsencode(real), None, _MS_BIND | _MS_REC, None)
            _call(libc.mount(*words), f"mount {path}")
    finally:
        if user != 0:  # programs see the user's own id again
            _call(libc.unshare(_CLONE_NEWUSER), "unshare")
            _map_ids(user, 0, group, 0)
    return server


def _call(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _map_ids(user: int, outer_user: int, group: int, outer_group: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {outer_user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {outer_group} 1")


def _serve_image(image: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Mount a squashfs file by FUSE; raises OSError."""
    program = _find_program()
    if program is None:
        raise FileNotFoundError("squashfuse is not on PATH")
    before = folder.stat().st_dev
    server = subprocess.Popen(
        [program, "-f", str(image), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=_outlive_notices,  # noqa: PLW1509  # there are no other threads
    )
    deadline = time.monotonic() + _MOUNT_S
    while folder.stat().st_dev == before:
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            raise OSError(f"{program} does not mount {image}")
        time.sleep(_LOOK_S)
    return server


def _outlive_notices() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
