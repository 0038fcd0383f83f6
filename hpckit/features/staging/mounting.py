"""Mounts squashfs files on a node, and shows folders at other paths to this process and all that it starts.

Showing needs no privilege where user namespaces are allowed; it ends with the last process that sees it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hpckit.features.staging.place import NodeDataError
from hpckit.record.store import make_private_folder
from hpckit.runtime.left_behind import die_with_parent

_WAIT_S = 30.0
_LOOK_S = 0.02
_DEAF = 'trap "" TERM INT HUP USR1 USR2; exec "$@"'
"""A notice reaches all processes of a step on some sites. squashfuse would end of it, and every rank that
reads gets SIGBUS: it starts with these signals ignored, and leaves it so."""
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 1 << 19


def _find_squashfuse(path: str) -> str | None:
    return shutil.which("squashfuse_ll", path=path) or shutil.which("squashfuse", path=path)


def can_mount_images(path: str) -> bool:
    """Return whether this host, with such a PATH, mounts a squashfs file without privilege."""
    return _find_squashfuse(path) is not None and os.access("/dev/fuse", os.R_OK | os.W_OK)


def _serve_image(
    image: Path, target: Path, environ: Mapping[str, str], setup: Callable[[], object] | None = None
) -> subprocess.Popen[bytes]:
    """Mount an image by FUSE; return the process that serves it. Raises OSError."""
    program = _find_squashfuse(environ.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError("squashfuse is not on PATH")
    before = target.stat().st_dev
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _DEAF, "sh", program, "-f", str(image), str(target)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=dict(environ),
            process_group=0,
            preexec_fn=setup,  # noqa: PLW1509  # given where there are no other threads
        )
        until = time.monotonic() + _WAIT_S
        while time.monotonic() < until and process.poll() is None:
            if target.stat().st_dev != before:
                return process
            time.sleep(_LOOK_S)
        process.kill()
        process.wait()
        errors.seek(0)
        raise OSError(errors.read().decode(errors="replace").strip()[-200:] or f"{program} does not mount it")


def mount_squashfs(image: Path, target: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """Mount an image; return the process that serves it, None if that is the kernel. Raises NodeDataError."""
    try:
        make_private_folder(target)
    except OSError:  # the process behind an earlier mount was killed
        unmount(target, environ)
        make_private_folder(target)
    try:
        return _serve_image(image, target, environ)
    except OSError as error:
        said = str(error)
    if os.geteuid() == 0:
        words = ["mount", "-t", "squashfs", "-o", "loop,ro", str(image), str(target)]
        done = subprocess.run(words, capture_output=True, text=True, env=dict(environ), check=False)
        if done.returncode == 0:
            return None
        said = f"{said}; {done.stderr.strip()[-200:]}"
    advice = "how=copy leaves it a file, and a tar is unpacked"
    raise NodeDataError(f"{image.name} cannot be mounted: {said}; {advice}")


def unmount(target: Path, environ: Mapping[str, str]) -> None:
    """Take a mount away, also one whose process is gone; never raises."""
    for words in (["fusermount3", "-u", "-z"], ["fusermount", "-u", "-z"], ["umount", "-l"]):
        program = shutil.which(words[0], path=environ.get("PATH", os.defpath))
        if program is not None:
            with contextlib.suppress(OSError):
                line = [program, *words[1:], str(target)]
                if subprocess.run(line, capture_output=True, env=dict(environ), check=False).returncode == 0:
                    return


def show_folders_at_paths(
    targets: Mapping[str, Path], source: Path, environ: Mapping[str, str], image: Path | None = None
) -> subprocess.Popen[bytes] | None:
    """Show `source/NAME` at the path of each name; with an image, mount it at `source` before.

    Returns the process that serves the image. Raises OSError if this host does not allow it; then nothing
    has changed for other processes, and this one may be in namespaces of its own. The process must have no
    other threads.
    """
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.unshare(_CLONE_NEWNS if user == 0 else _CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
    if user != 0:
        _map_ids(0, user, 0, group)  # the superuser of this namespace may mount
    _call(libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "mount /")
    try:
        server = None if image is None else _serve_image(image, source, environ, die_with_parent)
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
