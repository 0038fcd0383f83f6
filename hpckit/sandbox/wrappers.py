"""Slurm's client commands at one stable path, for every release, inside and outside the chroot.

A wrapper sets the sandbox's slurm.conf and runs the real command: directly, or through the
release's chroot, or directly again if a job already runs inside that chroot.
"""

from pathlib import Path

from hpckit.sandbox import chroot, packages
from hpckit.sandbox.settings import BIN_DIR, MOUNT_NAMESPACE, SLURM_CONF, Options

COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "sdiag",
    "sinfo", "sprio", "squeue", "sreport", "srun", "sshare", "sstat", "strigger",
)  # fmt: skip

_NATIVE = """\
#!/bin/sh
export SLURM_CONF={conf}
exec /usr/bin/{command} "$@"
"""

_CHROOT = """\
#!/bin/sh
export SLURM_CONF={conf}
[ -e /{mark} ] && exec /usr/bin/{command} "$@"
if [ "$(id -u)" != 0 ]; then
    echo "{command}: this Slurm release runs in a chroot, which only root may enter" >&2
    exit 1
fi
exec /usr/bin/nsenter --mount={namespace} /usr/sbin/chroot {root} /bin/sh -c '
    cd "$1" 2>/dev/null || case {command} in
        salloc|sbatch|sbcast|srun)
            echo "{command}: $1 is not visible to the sandbox nodes" >&2
            exit 1 ;;
        *) cd / ;;
    esac
    shift
    exec "$@"
' {command} "$PWD" /usr/bin/{command} "$@"
"""


def wrapper(command: str, options: Options, *, native: bool) -> str:
    """Return the text of one wrapper."""
    if native:
        return _NATIVE.format(conf=SLURM_CONF, command=command)
    return _CHROOT.format(
        conf=SLURM_CONF,
        command=command,
        mark=chroot.MARK,
        namespace=MOUNT_NAMESPACE,
        root=options.root,
    )


def write_wrappers(options: Options) -> None:
    """Write all wrappers."""
    BIN_DIR.mkdir(parents=True, exist_ok=True)
    native = packages.is_native(options)
    for command in COMMANDS:
        _write_program(BIN_DIR / command, wrapper(command, options, native=native))


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
