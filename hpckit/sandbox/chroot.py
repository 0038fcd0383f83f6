"""A Debian of another suite, for a Slurm release that this machine's own Debian does not ship.

It is created once and kept in the cache. What must be visible in it (home folders, launch folders,
the machine's Python) is mounted in a separate mount namespace: the machine's mount table never
shows those mounts, and removing the cache can never reach through them.
"""

import os
import shutil
import sysconfig
from pathlib import Path

from hpckit.sandbox import process
from hpckit.sandbox.settings import CACHE, MOUNT_NAMESPACE, STATE, Options, SandboxError

MARK = "etc/hpckit-sandbox-release"
_INCLUDE = "slurmctld,slurmd,slurmdbd,slurm-client,python3,ca-certificates,hostname,procps"
_SYSTEM = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "var", "boot"}
_KERNEL = {"proc", "sys", "dev", "run"}
_PYTHON = Path("/usr/bin/python3")
_NOT_SHARED = _SYSTEM | _KERNEL | {"lost+found"}


def make_chroot(options: Options) -> None:
    """Make the chroot unless a complete one is cached; takes about a minute with a fast mirror."""
    if (options.chroot_folder / MARK).exists():
        return
    if options.chroot_folder.exists():
        remove_sandbox_folder(options.chroot_folder)
    unfinished = options.chroot_folder.with_suffix(".unfinished")
    if unfinished.exists():
        if process.is_mounted(unfinished / "proc"):  # as debootstrap leaves it when it is ended
            process.run_command(["umount", str(unfinished / "proc")])
        remove_sandbox_folder(unfinished)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    mirror = os.environ.get("HPCKIT_SANDBOX_MIRROR")  # default: debootstrap's own
    process.run_command(
        ["debootstrap", "--variant=minbase", f"--include={_INCLUDE}",
         options.debian_suite, str(unfinished), *filter(None, [mirror])],
        timeout=1800.0,
    )  # fmt: skip
    for package in (unfinished / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
    (unfinished / MARK).write_text(f"{options.release}\n")
    unfinished.rename(options.chroot_folder)


def open_mount_namespace(options: Options) -> None:
    """Pin a mount namespace in which the chroot sees this machine's folders."""
    _copy_etc_files(options.chroot_folder)
    if process.is_mounted(MOUNT_NAMESPACE):
        return
    folder = MOUNT_NAMESPACE.parent
    folder.mkdir(parents=True, exist_ok=True)
    if not process.is_mounted(folder):
        # The kernel refuses to pin a mount namespace in a place that propagates into that
        # namespace.
        process.run_command(["mount", "--bind", str(folder), str(folder)])
        process.run_command(["mount", "--make-private", str(folder)])
    MOUNT_NAMESPACE.touch()
    script = "set -e\n" + "\n".join(_build_mount_commands(options.chroot_folder))
    _pin_mount_namespace(script)


def _pin_mount_namespace(script: str) -> None:
    """Run a script in a new mount namespace, and pin that.

    Linux pins only namespaces younger than the one around them. From 6.18 on it tells their age by
    numbers that each CPU hands out for itself, so that a new one may be taken for older, except on
    the CPU where the one around it was made.
    """
    argv = ["unshare", f"--mount={MOUNT_NAMESPACE}", "--propagation", "slave", "sh", "-s"]
    for cpu in sorted(os.sched_getaffinity(0)):
        done = process.run_command(["taskset", "--cpu-list", str(cpu), *argv], check=False, stdin=script)
        if "Invalid argument" not in done.stderr:
            break
    if done.returncode != 0:
        raise SandboxError(f"no mount namespace could be pinned: {done.stderr.strip()}")


def close_mount_namespace() -> None:
    """Release the mount namespace: its mounts are removed with its last process."""
    for place in (MOUNT_NAMESPACE, MOUNT_NAMESPACE.parent):
        if process.is_mounted(place):
            process.run_command(["umount", str(place)])


def remove_sandbox_folder(folder: Path) -> None:
    """Delete a folder of the sandbox, if nothing is mounted below it; else raise SandboxError."""
    if not folder.is_relative_to(CACHE) and not folder.is_relative_to(STATE):
        raise SandboxError(f"{folder} does not belong to the sandbox: it is not deleted")
    mounts = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    below = [mount for mount in mounts if Path(mount).is_relative_to(folder)]
    if below:
        raise SandboxError(f"{', '.join(below)} still mounted: unmount, then try again")
    shutil.rmtree(folder)


def list_shared_folders() -> list[Path]:
    """List the folders of this machine that the chroot shows at the same path."""
    top = [path for path in sorted(Path("/").iterdir()) if path.name not in _NOT_SHARED]
    folders = [path for path in top if path.is_dir() and not path.is_symlink()]
    shown = Path("/usr/local"), Path("/var/tmp")  # noqa: S108  # for git clones
    apptainer = [path for path in (CACHE / "apptainer",) if path.is_dir()]
    return [*folders, *shown, STATE, *apptainer, *_list_system_python_paths()]


def _list_system_python_paths() -> list[Path]:
    """List the packaged Python of this machine: virtual environments point to it."""
    found: list[Path] = []
    for library in sorted(Path("/usr/lib").glob("python3.*")):
        program = Path("/usr/bin") / library.name
        if library.is_dir() and program.exists():
            found += [program, library]
    stdlib = Path(sysconfig.get_path("stdlib"))
    if stdlib.is_relative_to("/usr/lib") and stdlib not in found:
        found.append(stdlib)
    return found


def _build_mount_commands(root: Path) -> list[str]:
    lines: list[str] = []
    for source in [*(Path("/") / name for name in sorted(_KERNEL)), *list_shared_folders()]:
        lines += _build_bind_commands(source, root)
    for link in sorted(path for path in Path("/").iterdir() if path.is_symlink()):
        if link.name not in _NOT_SHARED:
            lines.append(f"ln -sfn '{link.readlink()}' '{root}/{link.name}'")
    if _PYTHON.is_symlink():  # what `python3 -m venv` points to, by this very name
        lines.append(f"ln -sfn '{_PYTHON.readlink()}' '{root}{_PYTHON}'")
    return lines


def _build_bind_commands(source: Path, root: Path) -> list[str]:
    target = f"{root}{source}"
    if source.is_dir():
        return [f"mkdir -p '{target}'", f"mount --rbind '{source}' '{target}'"]
    return [
        f"mkdir -p '{Path(target).parent}'",
        f"[ -e '{target}' ] || : > '{target}'",
        f"mount --bind '{source.resolve()}' '{target}'",
    ]


def _copy_etc_files(root: Path) -> None:
    """Copy hosts, resolver and time zone from the machine, so that printed times agree."""
    for name in ("hosts", "resolv.conf", "localtime"):
        source, target = Path("/etc") / name, root / "etc" / name
        if source.exists():
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
