"""Hands tests a real Apptainer, and an image that costs nothing: a root of 4 KiB without a /usr."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpckit.sandbox.apptainer import find_apptainer

WANTED = "HPCKIT_TEST_APPTAINER"
"""Path of the program; without it that of PATH, or of the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapImage:
    """An image as a folder and as a squashfs file; its programs are in the host's /usr: mount it.

    `/IMAGE` is only inside.
    """

    folder: Path
    squashfs: Path
    mounts: tuple[str, ...] = ("/usr",)


def find_apptainer_or_skip() -> str:
    """Return the path of a real Apptainer; skips without one."""
    program = os.environ.get(WANTED) or find_apptainer()
    if program is None:
        pytest.skip(
            f"there is no apptainer: scripts/slurm-sandbox install --with apptainer, or {WANTED}=PATH"
        )
    return str(program)


@pytest.fixture(scope="session")
def apptainer() -> str:
    """Return the path of a working Apptainer; skips where there is none."""
    program = find_apptainer_or_skip()
    subprocess.run([program, "--version"], check=True, capture_output=True, timeout=60)
    return program


@pytest.fixture(scope="session")
def cheap_image(tmp_path_factory: pytest.TempPathFactory) -> CheapImage:
    """Return an image whose only content is a root of empty folders and `/IMAGE`."""
    base = tmp_path_factory.mktemp("image")
    folder = base / "root"
    make_cheap_root(folder)
    squashfs = base / "root.sqsh"
    if shutil.which("mksquashfs") is None:
        pytest.skip("there is no mksquashfs: apt-get install squashfs-tools")
    packed = ["mksquashfs", str(folder), str(squashfs), "-noappend", "-quiet", "-no-progress", "-all-root"]
    subprocess.run(packed, check=True, capture_output=True, timeout=60)
    return CheapImage(folder=folder, squashfs=squashfs)


def make_cheap_root(folder: Path) -> None:
    """Make the folders and files that a container needs, of which all content is the host's."""
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "var/tmp", "home", "root", "opt", "run"):
        (folder / name).mkdir(parents=True, mode=0o755)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\n")
    for name in ("etc/hosts", "etc/resolv.conf", "etc/localtime", "IMAGE"):
        (folder / name).touch()
