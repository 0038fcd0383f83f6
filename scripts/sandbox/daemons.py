"""Munge, MariaDB and Slurm's daemons: what each is started with, and when it serves.

Starting is idempotent: a daemon whose recorded process lives is left alone.
"""

import shutil
from pathlib import Path

from sandbox import chroot, packages, process
from sandbox.process import Daemon
from sandbox.settings import (
    BIN_DIR,
    CONF_DIR,
    CONTROLLER,
    LOG_DIR,
    MUNGE_DIR,
    MUNGE_SOCKET,
    MYSQL_DIR,
    MYSQL_SOCKET,
    SLURM_CONF,
    STATE,
    Node,
    Options,
)

_WITH_HOSTNAME = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']


def start_munge() -> None:
    """Munge with a key and a socket of the sandbox's own."""
    key = STATE / "munge" / "munge.key"
    for folder, mode in ((key.parent, 0o700), (MUNGE_DIR, 0o755)):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        shutil.chown(folder, "munge", "munge")
    if not key.exists():
        process.run(["mungekey", "--create", f"--keyfile={key}"])
    shutil.chown(key, "munge", "munge")
    argv = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={MUNGE_SOCKET}",
            f"--pid-file={MUNGE_DIR}/munged.pid", f"--seed-file={key.parent}/munged.seed",
            "--num-threads=2"]  # fmt: skip
    process.start(Daemon(name="munged", argv=argv, user="munge"))
    process.await_daemon("munged", _munge_answers, 10.0)


def _munge_answers() -> bool:
    done = process.run(["munge", f"--socket={MUNGE_SOCKET}", "--no-input"], check=False)
    return done.returncode == 0


def start_database() -> None:
    """MariaDB on its own data folder and socket, without a network port."""
    data = STATE / "mysql"
    MYSQL_DIR.mkdir(parents=True, exist_ok=True)
    if not (data / "mysql").is_dir():
        data.mkdir(parents=True, exist_ok=True)
        process.run(
            ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}",
             "--auth-root-authentication-method=socket", "--skip-test-db"],
            timeout=120.0,
        )  # fmt: skip
    argv = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-networking",
            f"--socket={MYSQL_SOCKET}", f"--pid-file={MYSQL_DIR}/mariadbd.pid",
            "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=64M",
            "--innodb-lock-wait-timeout=900"]  # fmt: skip
    process.start(Daemon(name="mariadbd", argv=argv))
    process.await_daemon("mariadbd", MYSQL_SOCKET.exists, 60.0)


def start_slurmdbd(options: Options) -> None:
    """The accounting daemon; served when sacctmgr gets an answer."""
    argv = [*_on_controller(options), "/usr/sbin/slurmdbd", "-D"]
    process.start(Daemon(name="slurmdbd", argv=argv))
    process.await_daemon("slurmdbd", lambda: _answers("sacctmgr", "-nP", "show", "cluster"), 90.0)


def start_controller(options: Options) -> None:
    """The controller under its own hostname; served when scontrol ping says so."""
    argv = [*_on_controller(options), "/usr/sbin/slurmctld", "-D", "-f", str(SLURM_CONF)]
    process.start(Daemon(name="slurmctld", argv=argv))
    process.await_daemon("slurmctld", controller_answers, 60.0)


def controller_answers() -> bool:
    """Whether the controller answers a ping."""
    return process.recorded_pid("slurmctld") is not None and _answers("scontrol", "ping")


def start_node(node: Node, options: Options) -> None:
    """One slurmd in its node's network and hostname."""
    spool = options.release_state / f"slurmd.{node.name}"
    spool.mkdir(parents=True, exist_ok=True)
    argv = [*_on_node(node, options), "/usr/sbin/slurmd", "-D", "-N", node.name,
            "-f", str(SLURM_CONF)]  # fmt: skip
    process.start(Daemon(name=slurmd_name(node), argv=argv))


def slurmd_name(node: Node) -> str:
    """The name under which a node's slurmd is recorded and logs."""
    return f"slurmd.{node.name}"


def stop_node(node: Node) -> int:
    """Kill everything on the node, Slurm's and the jobs'; returns how many processes died."""
    killed = process.kill_in_network_namespace(node.namespace)
    process.stop(slurmd_name(node))
    return killed


def _on_controller(options: Options) -> list[str]:
    return _placed([], CONTROLLER, options)


def _on_node(node: Node, options: Options) -> list[str]:
    # nsenter, not `ip netns exec`: that remounts /sys, and slurmd then finds no cgroup.
    return _placed([f"--net=/run/netns/{node.namespace}"], node.name, options)


def _placed(namespaces: list[str], hostname: str, options: Options) -> list[str]:
    inside: list[str] = []
    if not packages.is_native(options):
        mount, inside = chroot.enter(options)
        namespaces = [*namespaces, *mount]
    lead = ["nsenter", *namespaces] if namespaces else []
    return [*lead, *_WITH_HOSTNAME, hostname, *inside]


def _answers(command: str, *arguments: str) -> bool:
    done = process.run([str(BIN_DIR / command), *arguments], check=False, timeout=30.0)
    return done.returncode == 0 and "DOWN" not in done.stdout


def make_folders(options: Options) -> None:
    """The folders that the daemons expect to find."""
    for folder in (LOG_DIR, options.release_state / "slurmctld", process.PID_DIR, CONF_DIR):
        folder.mkdir(parents=True, exist_ok=True)
    Path(STATE).chmod(0o755)
