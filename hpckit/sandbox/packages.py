"""Installs the Debian packages of the sandbox, without letting any of them start a service."""

import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from hpckit.sandbox import process
from hpckit.sandbox.settings import Options, SandboxError

_ALWAYS = {
    "munge": "munged",
    "mariadb-server-core": "mariadbd",
    "mariadb-client-core": "my_print_defaults",
    "iproute2": "ip",
}
_SLURM = {"slurmctld": "slurmctld", "slurmd": "slurmd", "slurmdbd": "slurmdbd", "slurm-client": "sbatch"}
_POLICY = Path("/usr/sbin/policy-rc.d")
_SAVED_POLICY = Path("/usr/sbin/policy-rc.d.hpckit-saved")
_REFUSE_STARTS = "#!/bin/sh\n# Put here by hpckit sandbox while it installs packages.\nexit 101\n"


def is_slurm_release_native(options: Options) -> bool:
    """Whether this machine's own Debian ships the wanted release, so that no chroot is needed."""
    release = read_os_release()
    return release.get("ID") == "debian" and release.get("VERSION_CODENAME") == options.debian_suite


def list_missing_packages(options: Options) -> list[str]:
    """List the packages that `up` would install."""
    wanted = dict(_ALWAYS)
    wanted |= _SLURM if is_slurm_release_native(options) else {"debootstrap": "debootstrap"}
    return [name for name, program in wanted.items() if find_program(program) is None]


def find_program(name: str) -> str | None:
    """Return the path of a program on this machine, also of those that only root has on PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{process.SYSTEM_PATH}")


def install_packages(names: Sequence[str]) -> None:
    """Install what is missing with apt-get."""
    if shutil.which("apt-get") is None:
        raise SandboxError(
            f"{', '.join(names)} missing and there is no apt-get here: use a Debian or Ubuntu "
            "machine, virtual machine or privileged container"
        )
    foreign = "debootstrap" in names and read_os_release().get("ID") != "debian"
    keys = ["debian-archive-keyring"] if foreign else []
    # No package may start a service; the machine's own policy is restored afterwards.
    restore_service_policy()
    if _POLICY.exists():
        _POLICY.rename(_SAVED_POLICY)
    _POLICY.write_text(_REFUSE_STARTS)
    _POLICY.chmod(0o755)
    try:
        _run_apt_get("update")
        _run_apt_get("install", "--yes", "--no-install-recommends", *names, *keys)
    finally:
        restore_service_policy()


def restore_service_policy() -> None:
    """Restore the machine's own service policy, also after an `up` that was killed meanwhile."""
    if _POLICY.exists() and _POLICY.read_text() == _REFUSE_STARTS:
        _POLICY.unlink()
    if _SAVED_POLICY.exists():
        _SAVED_POLICY.rename(_POLICY)


def _run_apt_get(*arguments: str) -> None:
    process.run_command(
        ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q",
         "-o", "DPkg::Lock::Timeout=120", *arguments],
        timeout=900.0,
    )  # fmt: skip


def read_os_release() -> dict[str, str]:
    """Return what /etc/os-release says; empty if there is none."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}
