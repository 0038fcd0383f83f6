"""Brings the sandbox up and takes it down. Both can be called at any time, in any state."""

import contextlib
import json
import os
import pwd
import shutil
import stat
import sys
from pathlib import Path

from hpckit.sandbox import chroot, daemons, network, packages, process
from hpckit.sandbox.settings import (
    ACCOUNT,
    BIN_DIR,
    CACHE,
    CLUSTER,
    CONF_DIR,
    CONTROLLER,
    CONTROLLER_ADDRESS,
    CPUS_PER_NODE,
    GPUS_PER_NODE,
    LOG_DIR,
    MEMORY_MB_PER_NODE,
    MOUNT_NAMESPACE,
    MUNGE_SOCKET,
    PID_DIR,
    PREEMPT_TYPES,
    RECORD,
    RUN,
    SLURM_CONF,
    STATE,
    Options,
    SandboxError,
)


def render_slurm_conf(options: Options) -> str:
    """Return slurm.conf: the controller, the nodes and the partitions `batch` and `urgent`."""
    suspends, never = options.preempt_mode == "suspend", options.preempt_mode == "off"
    nodes = [
        f"NodeName={node.name} NodeAddr={node.address} NodeHostname={node.name} "
        f"CPUs={CPUS_PER_NODE} Sockets=2 CoresPerSocket={CPUS_PER_NODE // 2} ThreadsPerCore=1 "
        f"RealMemory={MEMORY_MB_PER_NODE} Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
        for node in options.list_nodes()
    ]
    return _fill_template(
        "slurm.conf",
        cluster=CLUSTER,
        controller=CONTROLLER,
        controller_address=CONTROLLER_ADDRESS,
        munge_socket=MUNGE_SOCKET,
        cred_expire=options.cred_expire,
        state=options.state_folder,
        run=RUN,
        logs=LOG_DIR,
        slurmd_timeout=options.slurmd_timeout,
        max_array_size=options.max_array_size,
        grace=options.grace,
        preempt_type="preempt/none" if never else PREEMPT_TYPES[options.preempt_by],
        mode=options.preempt_mode.upper(),
        # Slurm can only continue what it has suspended if it switches between jobs (GANG).
        cluster_mode="SUSPEND,GANG" if suspends else options.preempt_mode.upper(),
        sharing=" OverSubscribe=FORCE:1" if suspends else "",
        nodes="\n".join(nodes),
    )


def _fill_template(name: str, **values: object) -> str:
    return Path(__file__).with_name(f"{name}.template").read_text().format(**values)


_DEVICES = [Path(f"/dev/fakegpu{index}") for index in range(GPUS_PER_NODE)]


def build_accounting_commands(users: tuple[str, ...], options: Options) -> list[list[str]]:
    """Return the sacctmgr commands that register the cluster, the account, its QOS and users."""
    commands = [["add", "cluster", CLUSTER], ["add", "account", ACCOUNT, f"cluster={CLUSTER}"]]
    preempted = [f"preemptmode={options.preempt_mode}", f"gracetime={options.grace}"]
    if options.preempt_mode == "off":
        preempted = ["preemptmode=cluster"]
    commands += [
        ["add", "qos", "urgent", "preempt=normal", "priority=1000"],
        ["modify", "qos", "normal", "set", *preempted],
        ["modify", "account", ACCOUNT, "set", "qos=normal,urgent"],
    ]
    commands += [["add", "user", user, f"account={ACCOUNT}"] for user in users]
    return commands


def read_recorded_options() -> Options | None:
    """Read the options of the sandbox that is up (or partly up); None if there is none."""
    try:
        return Options(**json.loads(RECORD.read_text()))
    except FileNotFoundError:
        return None


def require_recorded_options() -> Options:
    """Read the options of the sandbox that is up; raises SandboxError if there is none."""
    options = read_recorded_options()
    if options is None:
        raise SandboxError("the sandbox is not up: run `hpckit sandbox up`")
    return options


def bring_up_sandbox(options: Options) -> None:
    """Bring the sandbox up with these options; starts only what is missing."""
    install_sandbox(options)
    current = read_recorded_options()
    if current is not None and current != options:
        _print_note("it is up with other options: taking it down first")
        take_down_sandbox()
    if read_recorded_options() is None:
        shutil.rmtree(LOG_DIR, ignore_errors=True)  # keep logs of the latest fresh start only
    RUN.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(options.as_dict()))
    _prepare_machine(options)
    _start_daemons(options)
    _wait_for_nodes(options)


def install_sandbox(options: Options) -> None:
    """Install what `bring_up_sandbox` needs and this machine lacks; starts nothing."""
    if names := packages.list_missing_packages(options):
        _print_note(f"installing {', '.join(names)}")
        packages.install_packages(names)
    if not packages.is_slurm_release_native(options) and not (options.chroot_folder / chroot.MARK).exists():
        _print_note(f"making a Debian {options.debian_suite} with Slurm {options.release}; kept for later")
        chroot.make_chroot(options)


def _prepare_machine(options: Options) -> None:
    """Make what the daemons need: folders, devices, network, names, configuration."""
    for folder in (LOG_DIR, options.state_folder / "slurmctld", PID_DIR, CONF_DIR):
        folder.mkdir(parents=True, exist_ok=True)
    STATE.chmod(0o755)
    for device in _DEVICES:
        if not device.exists():
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            device.chmod(0o666)
    network.make_bridge()
    for node in options.list_nodes():
        network.make_node_network(node)
    network.write_etc_hosts_block(options.list_nodes())
    _write_slurm_configuration(options)
    if not packages.is_slurm_release_native(options):
        chroot.open_mount_namespace(options)
    write_slurm_command_wrappers(options)


def _write_slurm_configuration(options: Options) -> None:
    old = options.release == "22.05"
    texts = {
        "slurm.conf": render_slurm_conf(options),
        # Other existing devices as GPUs give real GPU accounting and masks.
        "gres.conf": f"Name=gpu File=/dev/fakegpu[0-{GPUS_PER_NODE - 1}]\n",
        # Without cgroups; in 22.05 the only way is not to mount any.
        "cgroup.conf": f"{'CgroupAutomount=no' if old else 'CgroupPlugin=disabled'}\n",
        # One database per release, reached over the sandbox's own socket.
        "slurmdbd.conf": _fill_template(
            "slurmdbd.conf",
            munge_socket=MUNGE_SOCKET,
            controller=CONTROLLER,
            database=options.database_name,
            logs=LOG_DIR,
            run=RUN,
        ),
    }
    for name, text in texts.items():
        path = CONF_DIR / name
        path.write_text(text)
        path.chmod(0o600 if name == "slurmdbd.conf" else 0o644)  # slurmdbd requires 600


def _start_daemons(options: Options) -> None:
    _print_note(f"starting Slurm {options.release} with {options.nodes} nodes")
    daemons.start_munge()
    daemons.start_database()
    daemons.start_slurmdbd(options)
    _register_accounts(options)
    daemons.start_slurmctld(options)
    for node in options.list_nodes():
        daemons.start_slurmd(node, options)


def _register_accounts(options: Options) -> None:
    """Register the accounts; idempotent: sacctmgr exits 1, "nothing new", for known ones."""
    people = [entry.pw_name for entry in pwd.getpwall() if 1000 <= entry.pw_uid < 60000]  # noqa: PLR2004
    for command in build_accounting_commands(("root", *people), options):
        process.run_command([str(BIN_DIR / "sacctmgr"), "-i", *command], check=False)
    known = process.run_command([str(BIN_DIR / "sacctmgr"), "-nP", "show", "assoc", "format=cluster,user"])
    if f"{CLUSTER}|root" not in known.stdout:
        raise SandboxError(f"slurmdbd has no account for root: see {LOG_DIR}/slurmdbd.log")


def _wait_for_nodes(options: Options) -> None:
    names = [node.name for node in options.list_nodes()]
    if not process.poll_until_ready(lambda: daemons.resume_and_check_nodes(names), 60.0, interval=0.3):
        states = sorted(daemons.ask_node_states().items())
        known = ", ".join(f"{name} {state}" for name, state in states) or "none known"
        raise SandboxError(
            f"not all nodes came up ({known}): see {LOG_DIR}/slurmd.*.log; "
            "run 'down', then 'up' to start again"
        )


def take_down_sandbox(*, purge: bool = False) -> None:
    """Remove everything from the machine except the state of each release and the caches."""
    if read_recorded_options() is not None:
        _cancel_all_jobs()
    for namespace in network.list_network_namespaces():
        process.kill_in_network_namespace(namespace)
    # A daemon stops before those it talks to.
    last = ["slurmctld", "slurmdbd", "mariadbd", "munged"]
    names = sorted(path.stem for path in PID_DIR.glob("*.json"))
    for name in (*(name for name in names if name not in last), *last):
        process.stop_daemon(name, patience=30.0)
    network.remove_network()
    network.remove_etc_hosts_block()
    chroot.close_mount_namespace()
    for device in _DEVICES:
        device.unlink(missing_ok=True)
    packages.restore_service_policy()
    if RUN.exists():
        shutil.rmtree(RUN)
    for folder in (STATE, CACHE) if purge else ():
        if folder.exists():
            chroot.remove_sandbox_folder(folder)


def _cancel_all_jobs() -> None:
    """Cancel queued jobs: they would start again at the next `up`."""
    if not daemons.controller_answers():
        return
    with contextlib.suppress(SandboxError):
        for state in ("PENDING", "RUNNING", "SUSPENDED"):
            process.run_command([str(BIN_DIR / "scancel"), f"--state={state}"], check=False, timeout=20.0)
        process.poll_until_ready(_queue_is_empty, 10.0, interval=0.3)


def _queue_is_empty() -> bool:
    done = process.run_command([str(BIN_DIR / "squeue"), "--noheader"], check=False, timeout=20.0)
    return done.returncode != 0 or not done.stdout.strip()


def _print_note(text: str) -> None:
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


def render_slurm_command_wrapper(command: str, options: Options, *, native: bool) -> str:
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
        root=options.chroot_folder,
    )


def write_slurm_command_wrappers(options: Options) -> None:
    """Write all wrappers."""
    BIN_DIR.mkdir(parents=True, exist_ok=True)
    native = packages.is_slurm_release_native(options)
    for command in COMMANDS:
        path = BIN_DIR / command
        path.write_text(render_slurm_command_wrapper(command, options, native=native))
        path.chmod(0o755)
