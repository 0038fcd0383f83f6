"""Apptainer for the sandbox: Debian's package in a folder of the cache, beside libraries of its own.

Only Debian sid has the package, and its programs need sid's libc. Nothing of the system is replaced.
"""

import os
import platform
import shutil
import tempfile
from pathlib import Path

from hpckit.sandbox import packages, process
from hpckit.sandbox.settings import BIN_DIR, CACHE, SandboxError

APPTAINER = CACHE / "apptainer"
PROGRAM = APPTAINER / "usr/bin/apptainer"
_HELPERS = {
    "patchelf": "patchelf",
    "squashfs-tools": "mksquashfs",
    "squashfuse": "squashfuse",
    "fuse3": "fusermount3",
}
_LIBRARIES = ("libc6", "libseccomp2", "libsqlite3-0")
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MIRROR = "http://deb.debian.org/debian"
_APT = """\
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";
"""


def find_apptainer() -> Path | None:
    """Return the machine's own apptainer, else the one in the cache; None if there is neither."""
    own = shutil.which("apptainer") or shutil.which("singularity")
    return Path(own) if own else PROGRAM if PROGRAM.exists() else None


def install_apptainer() -> Path:
    """Install it unless there is one, and return its program; takes some ten seconds."""
    if (there := find_apptainer()) is not None:
        return there
    if not Path("/etc/debian_version").exists() or platform.machine() not in ("x86_64", "aarch64"):
        raise SandboxError(
            "only on Debian or Ubuntu, x86_64 or aarch64, can the sandbox install apptainer: install it as "
            "https://apptainer.org/docs/admin/latest/installation.html says, then run this again"
        )
    missing = [name for name, program in _HELPERS.items() if packages.find_program(program) is None]
    missing += [] if _KEYS.exists() else ["debian-archive-keyring"]
    if missing:
        packages.install_packages(missing)
    APPTAINER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=APPTAINER.parent, prefix="apptainer.") as scratch:
        built = Path(scratch) / "root"
        _download_packages(Path(scratch))
        _unpack(Path(scratch), built)
        _use_own_libraries(built)
        shutil.rmtree(APPTAINER, ignore_errors=True)
        built.rename(APPTAINER)
    process.run_command([str(PROGRAM), "--version"])
    return PROGRAM


def link_apptainer() -> Path:
    """Put the installed program where `cluster=sandbox` looks for it."""
    link = BIN_DIR / "apptainer"
    link.unlink(missing_ok=True)
    link.symlink_to(install_apptainer())
    return link


def _download_packages(folder: Path) -> None:
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    mirror = os.environ.get("HPCKIT_SANDBOX_MIRROR") or _find_machines_mirror()
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYS}] {mirror} sid main\n")
    (folder / "apt.conf").write_text(_APT.format(folder=folder))
    apt = ["env", "-C", str(folder), f"APT_CONFIG={folder}/apt.conf", "apt-get", "-qq"]
    process.run_command([*apt, "update"], timeout=300.0)
    process.run_command([*apt, "download", "apptainer", *_LIBRARIES], timeout=300.0)


def _find_machines_mirror() -> str:
    """Return the mirror that this Debian's own packages come from, if apt says so."""
    suite = packages.read_os_release().get("VERSION_CODENAME", "")
    told = process.run_command(["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"], check=False)
    found = (line.split() for line in told.stdout.splitlines())
    own = (words[1] for words in found if len(words) == 2 and words[0] == suite)  # noqa: PLR2004
    return next((one for one in own if packages.read_os_release().get("ID") == "debian"), _MIRROR)


def _unpack(downloads: Path, root: Path) -> None:
    for name in ("apptainer", *_LIBRARIES):
        package = next(downloads.glob(f"{name}_*.deb"))
        target = root if name == "apptainer" else root / "sys"
        target.mkdir(parents=True, exist_ok=True)
        process.run_command(["dpkg", "-x", str(package), str(target)])
    for name in ("etc", "var"):  # it looks for its files relative to its programs
        (root / name).rename(root / "usr" / name)
        (root / "usr/lib" / name).symlink_to(f"../{name}")
    config = root / "usr/etc/apptainer/apptainer.conf"
    # In a container root lacks some capabilities, and apptainer would fail to hand on all.
    full, none = (f"root default capabilities = {word}" for word in ("full", "no"))
    config.write_text(config.read_text().replace(full, none))


def _use_own_libraries(root: Path) -> None:
    """Point its programs to the libc beside them, where the folder will be."""
    libraries = next((root / "sys/usr/lib").glob("*-linux-gnu"))
    loader = next(libraries.glob("ld-linux*.so.*"))
    final = APPTAINER / libraries.relative_to(root)
    for program in ("usr/bin/apptainer", f"usr/lib/{libraries.name}/apptainer/bin/starter"):
        file = str(root / program)
        process.run_command(["patchelf", "--set-interpreter", str(final / loader.name), file])
        process.run_command(["patchelf", "--force-rpath", "--set-rpath", str(final), file])
