"""Brings the sandbox up and takes it down. Both can be called at any time, in any state."""

import contextlib
import json
import os
import pwd
import shutil
import stat
import sys
from pathlib import Path

from hpckit.sandbox import chroot, daemons, network, packages, process, slurm_conf
from hpckit.sandbox.settings import (
    BIN_DIR,
    CACHE,
    CLUSTER,
    CONF_DIR,
    GPUS_PER_NODE,
    LOG_DIR,
    MOUNT_NAMESPACE,
    RECORD,
    RUN,
    SLURM_CONF,
    STATE,
    Options,
    SandboxError,
)


def recorded_options() -> Options | None:
    """Read the options of the sandbox that is up (or partly up); None if there is none."""
    try:
        return Options(**json.loads(RECORD.read_text()))
    except FileNotFoundError:
        return None


def required_options() -> Options:
    """Read the options of the sandbox that is up; raises SandboxError if there is none."""
    options = recorded_options()
    if options is None:
        raise SandboxError("the sandbox is not up: run `hpckit sandbox up`")
    return options


def bring_up(options: Options) -> None:
    """Bring the sandbox up with these options; starts only what is missing."""
    install(options)
    current = recorded_options()
    if current is not None and current != options:
        _tell("it is up with other options: taking it down first")
        take_down()
    if recorded_options() is None:
        shutil.rmtree(LOG_DIR, ignore_errors=True)  # keep logs of the latest fresh start only
    RUN.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(options.as_dict()))
    _make_ground(options)
    _start_daemons(options)
    _await_nodes(options)


def install(options: Options) -> None:
    """Install what `bring_up` needs and this machine lacks; starts nothing."""
    names = packages.missing_packages(options)
    if names:
        _tell(f"installing {', '.join(names)}")
        packages.install_missing(options)
    if not packages.is_native(options) and not (options.root / chroot.MARK).exists():
        _tell(f"making a Debian {options.suite} with Slurm {options.release}; kept for later")
        chroot.make(options)


def _make_ground(options: Options) -> None:
    """Make what the daemons need: folders, devices, network, names, configuration."""
    daemons.make_folders(options)
    _make_devices()
    network.make_bridge()
    for node in options.all_nodes():
        network.make_node(node)
    network.write_hosts(options.all_nodes())
    _write_configuration(options)
    if not packages.is_native(options):
        chroot.open_namespace(options)
    write_wrappers(options)


def _write_configuration(options: Options) -> None:
    texts = {
        "slurm.conf": slurm_conf.slurm_conf(options),
        "gres.conf": slurm_conf.gres_conf(),
        "cgroup.conf": slurm_conf.cgroup_conf(options),
        "slurmdbd.conf": slurm_conf.slurmdbd_conf(options),
    }
    for name, text in texts.items():
        path = CONF_DIR / name
        path.write_text(text)
        path.chmod(0o600 if name == "slurmdbd.conf" else 0o644)  # slurmdbd requires 600


def _start_daemons(options: Options) -> None:
    _tell(f"starting Slurm {options.release} with {options.nodes} nodes")
    daemons.start_munge()
    daemons.start_database()
    daemons.start_slurmdbd(options)
    _register_accounts(options)
    daemons.start_slurmctld(options)
    for node in options.all_nodes():
        daemons.start_node(node, options)


def _register_accounts(options: Options) -> None:
    """Register the accounts; idempotent: sacctmgr exits 1, "nothing new", for known ones."""
    for command in slurm_conf.accounting_commands(_users(), options):
        process.run([str(BIN_DIR / "sacctmgr"), "-i", *command], check=False)
    known = process.run([str(BIN_DIR / "sacctmgr"), "-nP", "show", "assoc", "format=cluster,user"])
    if f"{CLUSTER}|root" not in known.stdout:
        raise SandboxError(f"slurmdbd took no account for root: see {LOG_DIR}/slurmdbd.log")


def _users() -> tuple[str, ...]:
    """Return root and every user with an account on this machine, by user id."""
    people = [entry.pw_name for entry in pwd.getpwall() if 1000 <= entry.pw_uid < 60000]  # noqa: PLR2004
    return ("root", *people)


def _await_nodes(options: Options) -> None:
    names = [node.name for node in options.all_nodes()]
    if not process.wait_until(lambda: daemons.serve(names), 60.0, interval=0.3):
        raise SandboxError(
            f"not all nodes came up ({daemons.describe_nodes()}): see {LOG_DIR}/slurmd.*.log; "
            "'down', then 'up' starts afresh"
        )


def _make_devices() -> None:
    for device in _devices():
        if not device.exists():
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            device.chmod(0o666)


def _devices() -> list[Path]:
    return [Path(f"/dev/fakegpu{index}") for index in range(GPUS_PER_NODE)]


def take_down(*, purge: bool = False) -> None:
    """Leave nothing behind on the machine; the state of each release and the caches stay."""
    if recorded_options() is not None:
        _cancel_jobs()
    for namespace in network.namespaces():
        process.kill_in_network_namespace(namespace)
    for name in _stop_order():
        process.stop_daemon(name, patience=30.0)
    network.remove_network()
    network.clean_hosts()
    chroot.close_namespace()
    for device in _devices():
        device.unlink(missing_ok=True)
    packages.restore_policy()
    if RUN.exists():
        shutil.rmtree(RUN)
    if purge:
        _purge()


def _cancel_jobs() -> None:
    """Cancel queued jobs: they would start again at the next `up`."""
    if not daemons.controller_answers():
        return
    with contextlib.suppress(SandboxError):
        for state in ("PENDING", "RUNNING", "SUSPENDED"):
            process.run([str(BIN_DIR / "scancel"), f"--state={state}"], check=False, timeout=20.0)
        process.wait_until(_queue_is_empty, 10.0, interval=0.3)


def _queue_is_empty() -> bool:
    done = process.run([str(BIN_DIR / "squeue"), "--noheader"], check=False, timeout=20.0)
    return done.returncode != 0 or not done.stdout.strip()


def _stop_order() -> list[str]:
    """Return the order in which to stop: a daemon stops before those it talks to."""
    last = ["slurmctld", "slurmdbd", "mariadbd", "munged"]
    return [*(name for name in process.recorded_names() if name not in last), *last]


def _purge() -> None:
    for folder in (STATE, CACHE):
        if folder.exists():
            chroot.remove_chroot(folder)


def _tell(text: str) -> None:
    print(f"hpckit: {text}", file=sys.stderr, flush=True)


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
    """Return the text of one of Slurm's client commands, whose path is that of all releases.

    It sets the sandbox's slurm.conf and runs the real command: directly, or through the release's
    chroot, or directly again if a job already runs inside that chroot.
    """
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
