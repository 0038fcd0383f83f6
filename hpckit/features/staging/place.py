"""The folder of a node for staged data: which one, whose, with how much room, and what may go from it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import json
import os
import pwd
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from hpckit.errors import HpckitError
from hpckit.model.counted import format_byte_size
from hpckit.model.failure import Cause
from hpckit.model.node_setup import Data, KeptData
from hpckit.model.states import RunState
from hpckit.record.launches import load_launch, read_run_records
from hpckit.record.layout import STAGED_DATA
from hpckit.record.ownership import format_user
from hpckit.record.store import PRIVATE_FILE, make_private_folder, read_json_object, write_text_atomically

_SHARED_TYPES = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "glusterfs", "panfs", "wekafs"}
    | {"pvfs2", "orangefs", "afs", "9p", "virtiofs", "ocfs2", "gfs2", "daos"}
)
_OWN_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.squashfuse", "fuseblk"})
_NOBODY = 65534
_MOST_LINKS = 40
MANIFEST = ".manifest"
JOB, OWNER = ".job-", "owner.json"
"""What the folder of a run on a node begins with, and its file of who it is."""


class NodeDataError(Exception):
    """A node cannot have its data: `cause` says whose fault that is."""

    def __init__(self, message: str, cause: Cause = Cause.data_refused) -> None:
        super().__init__(message)
        self.cause = cause


def find_cause(error: Exception) -> Cause:
    """Return whose fault it is that a node cannot have its data."""
    if isinstance(error, NodeDataError):
        return error.cause
    if isinstance(error, OSError):
        return Cause.scratch_full if error.errno in (errno.ENOSPC, errno.EDQUOT) else Cause.data_damaged
    return Cause.data_refused


def find_shared_file_system(path: Path) -> str | None:
    """Return the type of the shared file system that a path is or would be on; None if it is a local one."""
    place = next(there for there in (path, *path.parents) if there.exists())
    device = place.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2] == wanted:
                kind = after.split()[0]
                if kind in _SHARED_TYPES or (kind.startswith("fuse.") and kind not in _OWN_FUSE):
                    return kind
    return None


def choose_folder(
    named: str | None, candidates: Sequence[str], environ: Mapping[str, str], needed: int
) -> Path:
    """Return the node's folder for data, made if it is missing; raises NodeDataError.

    Variables in it are those of the node. Without a named one it is the first candidate that is
    there, local and has room.
    """
    if named is not None:
        text = expand_variables(named, environ)
        if text is None:
            raise NodeDataError(f"data.dir={named} names a variable that the node does not have")
        path = Path(text).expanduser()
        if not path.is_absolute():
            raise NodeDataError(f"data.dir={named} is not absolute on this node: {path}")
        return _open_own_folder(path, make=True)
    problems = []
    for candidate in candidates:
        text = expand_variables(candidate, environ)
        if text is None or not Path(text).is_dir():
            problems.append(f"{candidate} is not there")
            continue
        try:
            folder = _open_own_folder(Path(text), make=False)
            check_room(folder, needed, 0, candidate)
        except NodeDataError as error:
            problems.append(str(error))
        else:
            return folder
    words = f"no folder of cluster.node_scratch can be used: {'; '.join(problems)}"
    raise NodeDataError(words, Cause.scratch_full)


def expand_variables(text: str, environ: Mapping[str, str]) -> str | None:
    """Return a text with the values of its variables; None if one is missing."""
    try:
        return Template(text).substitute(environ)
    except (KeyError, ValueError):
        return None


def _open_own_folder(path: Path, *, make: bool) -> Path:
    """Return the folder itself, or one of ours in it if it is everybody's; raises NodeDataError."""
    try:
        _check_way(path)
        if make:
            make_private_folder(path)
        if path.is_symlink():
            raise NodeDataError(f"{path} is a symbolic link: name what it leads to")
        if (kind := find_shared_file_system(path)) is not None:
            raise NodeDataError(f"{path} is on a shared file system ({kind}); data.dir is a node's own disk")
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NodeDataError(f"{path} is not a folder")
        if found.st_mode & stat.S_ISVTX:
            own = path / f"hpckit-{os.getuid()}"
            make_private_folder(own)
            return _open_own_folder(own, make=False)
        if found.st_uid != os.getuid():
            raise NodeDataError(f"{path} belongs to {format_user(found.st_uid)}")
    except OSError as error:
        raise NodeDataError(f"{path} cannot be used: {error.strerror}") from error
    return path


def _check_way(path: Path) -> None:
    """Raise NodeDataError if others decide what is at a path, which need not be there; OSError.

    Whoever owns a folder or link on the way, or can write into the folder, may put another one in its place.
    """
    trusted = {0, os.getuid()} if _is_root_mapped() else {0, os.getuid(), _NOBODY}
    for step in _walk(path):
        found = step.lstat()
        mode, group = found.st_mode, found.st_gid
        if found.st_uid not in trusted:
            raise NodeDataError(f"{step} belongs to {format_user(found.st_uid)}: name a folder of your own")
        if stat.S_ISLNK(mode) or mode & stat.S_ISVTX:
            continue
        if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and group and not _is_private_group(group)):
            raise NodeDataError(f"others can write {step}: its owner has to run chmod go-w {step}")


def _walk(path: Path) -> Iterator[Path]:
    """Yield the folders and links that are passed on the way to a path, as far as it is there."""
    here, names, links = Path("/"), [*path.parts], 0
    while names:
        step = here / names.pop(0)
        if not os.path.lexists(step):
            return
        yield step
        if step.is_symlink():
            names, links = [*step.readlink().parts, *names], links + 1
        else:
            here = step
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _is_root_mapped() -> bool:
    """Return whether user 0 is known here: in a container without privilege root's files are nobody's."""
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        return any(int(outer) == 0 for _, outer, _ in lines)
    return True


def _is_private_group(group: int) -> bool:
    try:
        found = grp.getgrgid(group)
        return not found.gr_mem and found.gr_name == pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False


def claim_for_node(folder: Path, node: str) -> Path:
    """Return the part of a folder that is this node's: all of it, if no other has it.

    Simulated nodes of one machine share its disk: each but the first has a folder of its own name. A
    folder that a node on another machine has is shared, whatever its file system says.
    """
    own = {"node": node, "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
    with hold_lock(folder / f"{STAGED_DATA}.lock"):
        first = read_json_object(folder / STAGED_DATA)
        if first.get("node") in (None, node):
            if first != own:
                write_text_atomically(folder / STAGED_DATA, json.dumps(own))
            return folder
    if first.get("boot") != own["boot"]:
        words = f"{folder} is shared: {first.get('node')} has it, too; data.dir is a node's own disk"
        raise NodeDataError(words)
    return make_private_folder(folder / node)


@contextlib.contextmanager
def hold_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock, which ends with this process at the latest; wait for it, or raise BlockingIOError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(file)


def hold_in_use(manifest: Path) -> int:
    """Return an open file by which a copy counts as in use, until it is closed."""
    file = os.open(manifest, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    fcntl.flock(file, fcntl.LOCK_SH)
    os.utime(file)
    return file


def end_use(files: list[int]) -> None:
    """Give copies free, also for processes that were forked meanwhile and have the same open files."""
    while files:
        fcntl.flock(files[-1], fcntl.LOCK_UN)
        os.close(files.pop())


def is_in_use(manifest: Path) -> bool:
    """Return whether another process counts on the copy of a manifest."""
    try:
        with manifest.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def rewrite_manifest(manifest: Path, content: Mapping[str, Any]) -> None:
    """Write a manifest again in its place: as another file it would lose the locks of those who use it."""
    text = json.dumps(content).encode() + b"\n"
    with manifest.open("r+b", buffering=0) as file:
        file.write(text)
        file.truncate()


def check_room(folder: Path, needed: int, margin: int, what: str) -> None:
    """Raise NodeDataError if a folder's disk has no room for so many bytes and the margin."""
    if needed <= 0:
        return
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < needed + margin:
        words = f"{folder} has {format_byte_size(free)} free, {format_byte_size(needed + margin)} are needed"
        parts = f"{what} {format_byte_size(needed)} + data.margin_gb {format_byte_size(margin)}"
        raise NodeDataError(f"{words} ({parts})", Cause.scratch_full)


def make_room(folder: Path, settings: Data, size: int, what: str, *, there: int = 0, kept: str = "") -> None:
    """Raise NodeDataError if there is no room for `size` bytes, of which some are there.

    A cache gives up copies for it, the longest unused first, but for the `kept` one.
    """
    margin = int(settings.margin_gb * 1e9)
    if settings.keep is KeptData.cache:
        evict_copies(folder, settings.cache_gb * 1e9, size, kept)
        with contextlib.suppress(NodeDataError):
            check_room(folder, size - there, margin, what)
            return
        evict_copies(folder, 0, size, kept)
    check_room(folder, size - there, margin, what)


def remove_copy(manifest: Path) -> bool:
    """Remove a copy with all that belongs to it, unless it is in use; return whether it is gone."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(manifest.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return not isinstance(error, BlockingIOError)
        base = manifest.with_name(manifest.name.removesuffix(MANIFEST))
        manifest.unlink(missing_ok=True)
        base.with_name(f"{base.name}.blocks").unlink(missing_ok=True)
        gone = base.with_name(f"{base.name}.{os.getpid()}.gone")
        with contextlib.suppress(OSError):  # whoever ends meanwhile leaves the rest to the next
            base.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        return True


def _read_time_of_use(path: Path) -> float:
    """Return when a file or folder was last touched; now, if another process has just taken it away."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return time.time()


def evict_copies(folder: Path, most: float, room_for: int, kept: str) -> None:
    """Remove copies, the longest unused first, until the others and `room_for` are within `most`."""
    found = sorted(folder.glob(f"*{MANIFEST}"), key=_read_time_of_use)
    sizes = {path: int(read_json_object(path).get("bytes", 0)) for path in found}
    total = sum(sizes.values()) + room_for
    for path, size in sizes.items():
        if total <= most:
            return
        if path.name != f"{kept}{MANIFEST}" and remove_copy(path):
            total -= size


def has_run_ended(owner: Mapping[str, Any]) -> bool:
    """Return whether nothing of a run on a node is needed: it has ended for good, or its launch is gone."""
    folder = Path(str(owner.get("launch")))
    if not folder.is_dir() or owner.get("results"):
        return not owner.get("results")
    try:
        (record,) = read_run_records(load_launch(folder), [int(owner["run"])])
    except (HpckitError, OSError, ValueError, KeyError, IndexError):
        return False
    return record.state in {RunState.completed, RunState.failed, RunState.cancelled}


def remove_leftovers(
    folder: Path, has_ended: Callable[[Mapping[str, Any]], bool], unmount: Callable[[Path], object]
) -> None:
    """Remove what killed agents have left behind: copies of runs that have ended for good."""
    for path in folder.glob(f"*{MANIFEST}"):
        manifest = read_json_object(path)
        if manifest.get("keep") == "job" and has_ended(manifest.get("for") or {}):
            remove_copy(path)
    for job in (*folder.glob(f"{JOB}*"), *folder.glob("caches/[!.]*")):
        if has_ended(read_json_object(job / OWNER)):
            for mount in (job / "mnt").glob("*"):
                unmount(mount)
            shutil.rmtree(job, ignore_errors=True)
    for part in folder.glob("*.gone"):
        shutil.rmtree(part, ignore_errors=True)
    for part in (*folder.glob("*.partial"), *folder.glob("*.extracted")):
        if time.time() - _read_time_of_use(part) > 7 * 24 * 3600:
            shutil.rmtree(part, ignore_errors=True)
            part.with_suffix(".blocks").unlink(missing_ok=True)
