"""Chooses the folder on a node for what is brought there, and keeps others out of it."""

from __future__ import annotations

import os
import string
from collections.abc import Mapping
from pathlib import Path

from hpckit.errors import RunError
from hpckit.model.environment.facts import FolderRole
from hpckit.model.launch import Cluster
from hpckit.model.node_setup import Data
from hpckit.observe.machine import read_file_systems
from hpckit.record.ownership import explain_unsafe_ownership, explain_unsafe_path, read_path_status
from hpckit.record.store import make_private_folder
from hpckit.runtime.environ import find_node_name

_USUAL = ("$SLURM_TMPDIR", "$TMPDIR", "/tmp")  # noqa: S108  # its own folder there is private
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "cifs", "smb", "panfs", "orangefs", "pvfs2")
_SHARED_BY_FUSE = ("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs", "fuse.s3fs", "9p", "afs")
_GB = 1e9


def find_node_folder(data: Data, cluster: Cluster, environ: Mapping[str, str], needed_bytes: int) -> Path:
    """Return this user's private folder on the node's own disk, with room; raises RunError."""
    problems = []
    for text in [data.dir] if data.dir else cluster.node_scratch or _USUAL:
        named = string.Template(text).safe_substitute(environ)
        folder = Path(named)
        problem = _explain_unusable(folder, needed_bytes + int(data.margin_gb * _GB))
        if problem is None:
            return _make_own_folder(folder)
        if named != text or "$" not in named:
            problems.append(f"{named} {problem}")
    raise RunError(
        f"node {find_node_name()} has no folder for data: {'; '.join(problems) or 'none is named'}",
        hint="name folders on the node's own disk: cluster.node_scratch or data.dir; "
        "data.margin_gb is what stays free",
    )


def _explain_unusable(folder: Path, needed_bytes: int) -> str | None:
    if not folder.is_absolute() or not folder.is_dir():
        return "is not a folder there"
    (seen,) = read_file_systems({FolderRole.output: folder})
    if (seen.kind or "").startswith((*_SHARED, *_SHARED_BY_FUSE)):
        return f"is on a shared file system ({seen.kind})"
    if not seen.writable:
        return "cannot be written"
    if (seen.free_bytes or 0) < needed_bytes:
        return f"has {(seen.free_bytes or 0) / _GB:.0f} GB free, and {needed_bytes / _GB:.0f} GB are needed"
    return None


def _make_own_folder(above: Path) -> Path:
    folder = above / f"hpckit-{os.getuid()}"
    make_private_folder(folder)
    found = explain_unsafe_path(folder) or explain_unsafe_ownership(read_path_status(folder), os.geteuid())
    if found is not None:
        raise RunError(
            f"node {find_node_name()} cannot keep data in {folder}: {found.reason}",
            hint="name another folder: cluster.node_scratch or data.dir",
        )
    return folder
