"""Packs the environment of `cluster.python` into one file at launch, once per content.

A node then opens one file of the shared file system instead of thousands. The file keeps each folder under
its name; the launch's record says where it was, and nodes show it there again. It reads the environment and
runs nothing of it but its Python. What happens on a node is in `environment_start`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess  # noqa: TID251  # the programs that pack
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.model.node_setup import PackedEnvironment
from hpckit.operations.add_job import hold_lock_with_patience
from hpckit.record.ownership import check_folder_is_own
from hpckit.record.remove import remove_path
from hpckit.record.snapshot.environment import ask_python
from hpckit.record.store import PRIVATE_FILE, make_private_folder
from hpckit.values import dataclass

FOLDER = "environments"
"""In `output_dir`: packed environments, and those that were built from a lock file."""

BUILT = ".lockfile"
"""After the name of an environment that was built: its lock file."""

_KINDS = frozenset({".sqsh", ".gz", BUILT})
_ASK = """\
import json, os, sys
prefix, base = map(os.path.realpath, (sys.prefix, sys.base_prefix))
print(json.dumps([prefix, base, sys.version, "lib/python%d.%d" % sys.version_info[:2]]))
"""
_SYSTEM = Path("/usr")
"""What lies below is on the node's own disk."""
_CACHE = "__pycache__"
_FILE = "FILE"
"""Stands for the name of the packed file."""
_PATIENCE = timedelta(hours=1)
_UNUSED_S = 30 * 86400.0
"""A packed environment that no launch has is removed when no launch took it for so long: the time of the last
one is its access time, as nodes know it by the other."""
_QUOTED = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed environment, as a launch records it.

    `folders` are what is in it: the name there, and the path where it was. `python` is its Python. `seconds`
    is how long packing took; 0 if it was packed before.
    """

    key: str
    file: str
    size_bytes: int
    mtime_ns: int
    unpacked_bytes: int
    seconds: float
    python: str
    folders: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFolders:
    """What a Python reads when it starts and imports: its own folder, then its base, if that is packed."""

    python: str
    version: str
    folders: Mapping[str, Path]
    left_out: Sequence[Path] = ()

    def compute_key_and_size(self) -> tuple[str, int]:
        """Return a hash of names, sizes, times and link targets, and all bytes; without compiled files."""
        digest, size = hashlib.sha256(f"{self.python}\0{self.version}".encode()), 0
        for top in self.folders.values():
            digest.update(f"\0{top}".encode())
            for line, its_bytes in sorted(list_entries(top, {str(path) for path in self.left_out})):
                digest.update(f"\0{line}".encode("utf-8", "surrogateescape"))
                size += its_bytes
        return digest.hexdigest()[:20], size


def find_environment_folders(python: str, environ: Mapping[str, str]) -> EnvironmentFolders:
    """Return what belongs to the environment of a Python; raises ConfigError."""
    answer = ask_python(python, _ASK, environ)
    if answer is None:
        words = f"data.environment packs the environment of {python}, which does not start here"
        raise ConfigError(words, hint="name a Python that this machine has: cluster.python=/path/to/python")
    prefix, base, version, library = Path(answer[0]), Path(answer[1]), str(answer[2]), str(answer[3])
    if prefix.is_relative_to(_SYSTEM):
        words = f"data.environment packs a virtual environment, and {python} is the system's Python"
        other = "name that of a virtual or conda environment: cluster.python=/path/to/python"
        raise ConfigError(words, hint=f"{other}; or leave data.environment out")
    alone = base in (prefix, *prefix.parents) or base.name == prefix.name or base.is_relative_to(_SYSTEM)
    if alone:
        return EnvironmentFolders(python=python, version=version, folders={prefix.name: prefix})
    left_out = [base / "pkgs", base / "envs", base / library / "test"]
    if not _reads_base_packages(prefix):
        left_out.append(base / library / "site-packages")
    folders = {prefix.name: prefix, base.name: base}
    return EnvironmentFolders(python=python, version=version, folders=folders, left_out=left_out)


def _reads_base_packages(prefix: Path) -> bool:
    try:
        text = (prefix / "pyvenv.cfg").read_text("utf-8", "replace")
    except OSError:
        return True
    return "include-system-site-packages=true" in text.replace(" ", "").lower()


def list_entries(top: Path, left_out: set[str]) -> Iterator[tuple[str, int]]:
    """Yield a line for each file and link below a folder, and its bytes."""
    folders = [str(top)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name == _CACHE or entry.path in left_out:
                    continue
                if entry.is_symlink():
                    yield f"{entry.path} -> {os.readlink(entry.path)}", 0  # noqa: PTH115  # of many thousands
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    seen = entry.stat(follow_symlinks=False)
                    yield f"{entry.path} {seen.st_size} {seen.st_mtime_ns}", seen.st_size


def pack_environment(
    found: EnvironmentFolders, outputs: Path, how: PackedEnvironment, context: Context
) -> Packed:
    """Pack an environment into `outputs`, unless its content is there; raises UsageError."""
    suffix, words = _choose_packer(found, how, context.environ.get("PATH", os.defpath))
    begin, (key, unpacked) = time.monotonic(), found.compute_key_and_size()
    file = outputs / FOLDER / f"{key}{suffix}"
    with hold_environments(file.parent, f"packing the environment of {found.python}", context):
        there = file.exists()
        if there:
            os.utime(file, ns=(int(context.now().timestamp() * 1e9), file.stat().st_mtime_ns))
        else:
            context.note(f"packing the environment of {found.python}, once for this content")
            _compile_packages(found, context.environ)
            _write_packed_file(file, words, context.environ)
        seen = file.stat()
    return Packed(
        key=key,
        file=file.name,
        size_bytes=seen.st_size,
        mtime_ns=seen.st_mtime_ns,
        unpacked_bytes=unpacked,
        seconds=0.0 if there else round(time.monotonic() - begin, 1),
        python=found.python,
        folders={name: str(path) for name, path in found.folders.items()},
    )


def find_squashfs_packer(how: PackedEnvironment, path: str) -> str | None:
    """Return the program that packs into a squashfs file, if that is wanted; raises ConfigError."""
    program = None if how is PackedEnvironment.tar else shutil.which("mksquashfs", path=path)
    if how is PackedEnvironment.squashfs and program is None:
        hint = "load a module that has it, or data.environment=tar"
        raise ConfigError("data.environment is squashfs, and mksquashfs is not on PATH", hint=hint)
    return program


def _choose_packer(found: EnvironmentFolders, how: PackedEnvironment, path: str) -> tuple[str, list[str]]:
    """Return the suffix of the packed file, and the words to which its name is appended."""
    squashfs = find_squashfs_packer(how, path)
    tops = list(found.folders.values())
    if squashfs is not None:
        options = ["-comp", "zstd", "-Xcompression-level", "3", "-b", "1M", "-noappend", "-no-progress"]
        left_out = ["-e", *map(str, found.left_out)] if found.left_out else []
        words = [squashfs, *map(str, tops), _FILE, *options, "-no-xattrs", "-keep-as-directory", *left_out]
        return ".sqsh", words
    # Every node has gzip; many have no zstd.
    packer = "gzip" if shutil.which("pigz", path=path) is None else "pigz"
    words = ["tar", "--create", "--file", _FILE, f"--use-compress-program={packer} -1"]
    words += ["--anchored", "--no-wildcards"]
    words += [f"--exclude={left.relative_to(tops[-1].parent)}" for left in found.left_out]
    for top in tops:
        words += ["-C", str(top.parent), top.name]
    return ".tar.gz", words


def _compile_packages(found: EnvironmentFolders, environ: Mapping[str, str]) -> None:
    """Compile what Python would compile at its first import: a mounted environment cannot be written.

    In place, as an import does; where others own the environment it stays as it is.
    """
    words = [found.python, "-P", "-m", "compileall", "-q", "-j", "0"]
    if found.left_out:
        words += ["-x", "|".join(re.escape(str(left)) for left in found.left_out)]
    libraries = (library for top in found.folders.values() for library in sorted(top.glob("lib/python*")))
    for library in libraries:
        subprocess.run([*words, str(library)], env=dict(environ), capture_output=True, check=False)


def run_program(words: Sequence[str], environ: Mapping[str, str], hint: str, cwd: Path | None = None) -> None:
    """Run a program that packs or installs; raises UsageError with what it said last."""
    done = subprocess.run(
        words,
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_QUOTED:]
        line = " ".join([Path(words[0]).name, *words[1:]])
        raise UsageError(f"`{line}` failed with exit code {done.returncode}: {said}", hint=hint)


def _write_packed_file(file: Path, words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Write a packed file under another name, and rename it when it is on disk."""
    part = file.with_name(f".{file.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch(PRIVATE_FILE)
        hint = "data.environment=tar packs with tar; none uses the environment where it is"
        run_program([str(part) if word == _FILE else word for word in words], environ, hint)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def hold_environments(folder: Path, work: str, context: Context) -> Iterator[None]:
    """Hold the folder of packed and built environments for some work; raises UsageError."""
    try:
        make_private_folder(folder)
        check_folder_is_own(folder)
        with hold_lock_with_patience(folder / "lock", f"is {work}", context, _PATIENCE):
            _remove_unused(folder, context.now().timestamp())
            yield
    except OSError as error:
        hint = "check quota and free space there (output_dir), or leave data.environment out"
        raise UsageError(f"{work} failed in {folder}: {error.strerror or error}", hint=hint) from error


def _remove_unused(folder: Path, now: float) -> None:
    """Remove what no launch has a link to, and none took for long."""
    for file in [path for path in folder.iterdir() if path.suffix in _KINDS]:
        seen = file.lstat()
        if seen.st_nlink == 1 and now - seen.st_atime > _UNUSED_S:
            remove_path(file)
            built = file.with_suffix("")
            if file.suffix == BUILT and built.exists():
                remove_path(built)
