"""Munge, MariaDB and Slurm's daemons: how each is started, when it is ready, how nodes stand.

Starting is idempotent: a daemon whose recorded process is alive is left alone.
"""

import shutil
import socket
from pathlib import Path

from hpckit.sandbox import packages, process
from hpckit.sandbox.settings import (
    BIN_DIR,
    CONTROLLER,
    MOUNT_NAMESPACE,
    MUNGE_DIR,
    MUNGE_SOCKET,
    MYSQL_DIR,
    MYSQL_SOCKET,
    SLURM_CONF,
    STATE,
    Node,
    Options,
    SandboxError,
)

_INSTALLATIONS = 3
_CONTROLLER_START = 'hostname "$0" && exec "$@"'
# A job should see its own node's links in /sys/class/net, not the machine's: /sys is mounted again,
# with the cgroups kept. If a container forbids that, the machine's /sys stays.
_NODE_START = """\
hostname "$0" || exit
keep=/run/hpckit-sandbox/cgroup
mkdir -p $keep && mount --rbind /sys/fs/cgroup $keep \\
    && mount -t sysfs sysfs /sys && mount --rbind $keep /sys/fs/cgroup
# Names are in /etc/hosts; a name server that nodes cannot reach costs 10 s a look-up.
names=/run/hpckit-sandbox/resolv.conf
echo 'nameserver 127.0.0.1' > $names && mount --bind $names "$(readlink -f /etc/resolv.conf)"
exec "$@"
"""


def start_munge() -> None:
    """Start Munge with the sandbox's own key and socket."""
    key = STATE / "munge" / "munge.key"
    for folder, mode in ((key.parent, 0o700), (MUNGE_DIR, 0o755)):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        shutil.chown(folder, "munge", "munge")
    if not key.exists():
        process.run_command(["mungekey", "--create", f"--keyfile={key}"])
    shutil.chown(key, "munge", "munge")
    argv = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={MUNGE_SOCKET}",
            f"--pid-file={MUNGE_DIR}/munged.pid", f"--seed-file={key.parent}/munged.seed",
            "--num-threads=4"]  # fmt: skip
    process.start_daemon("munged", argv, user="munge")
    process.wait_for_daemon("munged", _munge_answers, 10.0)


def _munge_answers() -> bool:
    done = process.run_command(["munge", f"--socket={MUNGE_SOCKET}", "--no-input"], check=False)
    return done.returncode == 0


def start_database() -> None:
    """Start MariaDB with its own data folder and socket, without a network port."""
    data = STATE / "mysql"
    MYSQL_DIR.mkdir(parents=True, exist_ok=True)
    if not (data / "mysql").is_dir():
        _initialize_database_folder(data)
    argv = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-networking",
            f"--socket={MYSQL_SOCKET}", f"--pid-file={MYSQL_DIR}/mariadbd.pid",
            "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=64M",
            "--innodb-lock-wait-timeout=900"]  # fmt: skip
    process.start_daemon("mariadbd", argv)
    process.wait_for_daemon("mariadbd", _database_answers, 60.0)


def _initialize_database_folder(data: Path) -> None:
    """Make the data folder; a part of one is removed, and made again.

    On busy virtual machines the program was seen to end by a segmentation fault, once in hundreds.
    """
    argv = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}",
            "--auth-root-authentication-method=socket", "--skip-test-db"]  # fmt: skip
    for left in reversed(range(_INSTALLATIONS)):
        data.mkdir(parents=True, exist_ok=True)
        try:
            process.run_command(argv, timeout=120.0)
        except SandboxError:
            shutil.rmtree(data, ignore_errors=True)
            if not left:
                raise
        else:
            return


def _database_answers() -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(MYSQL_SOCKET)) == 0


def start_slurmdbd(options: Options) -> None:
    """Start the accounting daemon; it is ready when sacctmgr gets an answer."""
    argv = [*_controller_command_prefix(options), "/usr/sbin/slurmdbd", "-D"]
    process.start_daemon("slurmdbd", argv)
    process.wait_for_daemon("slurmdbd", lambda: _command_succeeds("sacctmgr", "-nP", "show", "cluster"), 90.0)


def start_slurmctld(options: Options) -> None:
    """Start the controller under its own hostname; it is ready when scontrol ping succeeds."""
    argv = [*_controller_command_prefix(options), "/usr/sbin/slurmctld", "-D", "-f", str(SLURM_CONF)]
    process.start_daemon("slurmctld", argv)
    process.wait_for_daemon("slurmctld", controller_answers, 60.0)


def controller_answers() -> bool:
    """Whether the controller answers a ping."""
    return process.find_recorded_pid("slurmctld") is not None and _command_succeeds("scontrol", "ping")


def start_slurmd(node: Node, options: Options) -> None:
    """Start one slurmd in its node's network and hostname."""
    spool = options.state_folder / f"slurmd.{node.name}"
    spool.mkdir(parents=True, exist_ok=True)
    argv = [*_node_command_prefix(node, options), "/usr/sbin/slurmd", "-D", "-N", node.name,
            "-f", str(SLURM_CONF)]  # fmt: skip
    process.start_daemon(slurmd_record_name(node), argv)


def slurmd_record_name(node: Node) -> str:
    """Return the name of the record and the log of a node's slurmd."""
    return f"slurmd.{node.name}"


def kill_node_processes(node: Node) -> int:
    """Kill everything on the node, Slurm's and the jobs'; return the number of killed processes."""
    killed = process.kill_in_network_namespace(node.namespace)
    process.stop_daemon(slurmd_record_name(node))
    return killed


def _controller_command_prefix(options: Options) -> list[str]:
    enter, inside = _build_chroot_entry(options)
    lead = ["nsenter", *enter] if enter else []
    return [*lead, "unshare", "--uts", *inside, "sh", "-c", _CONTROLLER_START, CONTROLLER]


def _node_command_prefix(node: Node, options: Options) -> list[str]:
    # nsenter, not `ip netns exec`: that remounts /sys, and then slurmd finds no cgroup.
    enter, inside = _build_chroot_entry(options)
    lead = ["nsenter", f"--net=/run/netns/{node.namespace}", *enter]
    own = ["unshare", "--uts", "--mount", "--propagation", "slave"]
    return [*lead, *own, *inside, "sh", "-c", _NODE_START, node.name]


def _build_chroot_entry(options: Options) -> tuple[list[str], list[str]]:
    """Return arguments of nsenter, and the command after them, to reach the release's programs."""
    if packages.is_slurm_release_native(options):
        return [], []
    return [f"--mount={MOUNT_NAMESPACE}"], ["chroot", str(options.chroot_folder)]


def _command_succeeds(command: str, *arguments: str) -> bool:
    done = process.run_command([str(BIN_DIR / command), *arguments], check=False, timeout=30.0)
    return done.returncode == 0 and "DOWN" not in done.stdout


_SERVING = {"idle", "mixed", "allocated", "completing", "planned"}
_HELD_BACK = {"down", "drained", "draining"}


def ask_node_states() -> dict[str, str]:
    """Return the state of every node; empty if the controller does not answer."""
    argv = [str(BIN_DIR / "sinfo"), "--noheader", "--Node", "--format=%N %T", "--partition=batch"]
    done = process.run_command(argv, check=False, timeout=30.0)
    return dict(line.split() for line in done.stdout.splitlines() if done.returncode == 0)


def is_node_state_usable(state: str) -> bool:
    """Whether a node in that state takes jobs; a trailing `*` means that it does not answer."""
    return state.rstrip("-+") in _SERVING


def resume_and_check_nodes(names: list[str]) -> bool:
    """Return whether all these nodes take jobs; make Slurm resume those down or drained."""
    known = ask_node_states()
    for name in names:
        if known.get(name) in _HELD_BACK:
            resume = ["update", f"nodename={name}", "state=resume"]
            process.run_command([str(BIN_DIR / "scontrol"), *resume], check=False, timeout=30.0)
    return all(is_node_state_usable(known.get(name, "unknown")) for name in names)
