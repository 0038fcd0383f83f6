"""The settings of a sandbox: its options, its nodes and its paths.

Pure: reads and changes nothing on the machine.
"""

from dataclasses import asdict
from pathlib import Path

from hpckit.values import dataclass

RUN = Path("/run/hpckit-sandbox")
STATE = Path("/var/lib/hpckit-sandbox")
CACHE = Path("/var/cache/hpckit-sandbox")

BIN_DIR = RUN / "bin"
CONF_DIR = RUN / "etc"
SLURM_CONF = CONF_DIR / "slurm.conf"
PID_DIR = RUN / "pids"
RECORD = RUN / "sandbox.json"
LOG_DIR = STATE / "log"
MUNGE_DIR = RUN / "munge"
MUNGE_SOCKET = MUNGE_DIR / "munge.socket"
MYSQL_DIR = RUN / "mysql"
MYSQL_SOCKET = MYSQL_DIR / "mysqld.sock"
MOUNT_NAMESPACE = RUN / "namespaces" / "mount"

BRIDGE = "hpckit0"
PREFIX = "hpckit-"
SUBNET = "10.213.77"
CONTROLLER = "ctl"
CONTROLLER_ADDRESS = f"{SUBNET}.1"
CLUSTER = "sandbox"
ACCOUNT = "demo"
GPUS_PER_NODE = 4
CPUS_PER_NODE = 16
MEMORY_MB_PER_NODE = 64000

SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}
MAX_NODES = 64
PREEMPT_MODES = ("requeue", "cancel", "suspend", "off")
PREEMPT_TYPES = {"partition": "preempt/partition_prio", "qos": "preempt/qos"}


class SandboxError(Exception):
    """An error that the user can fix: the message says what happened and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: its number determines its name and its address."""

    number: int

    @property
    def name(self) -> str:
        """The node's Slurm name and hostname."""
        return f"n{self.number}"

    @property
    def address(self) -> str:
        """The address of its only link."""
        return f"{SUBNET}.{10 + self.number}"

    @property
    def namespace(self) -> str:
        """The name of its network namespace, and of the host's end of its link."""
        return f"{PREFIX}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `up`; times are in seconds.

    `max_array_size` is one more than the highest index an array element can have. `preempt_mode` is
    what happens to a preempted job, `preempt_by` what a job must have to preempt others.
    """

    nodes: int = 4
    release: str = "22.05"
    grace: int = 10
    cred_expire: int = 5
    slurmd_timeout: int = 12
    max_array_size: int = 10001
    preempt_mode: str = "requeue"
    preempt_by: str = "partition"

    def list_nodes(self) -> tuple[Node, ...]:
        """Every node, in order."""
        return tuple(Node(number=number) for number in range(1, self.nodes + 1))

    def find_node(self, name: str) -> Node:
        """Return the node of that name; raises SandboxError if there is none."""
        for node in self.list_nodes():
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.list_nodes())
        raise SandboxError(f"there is no node {name!r} in this sandbox: choose one of {known}")

    def as_dict(self) -> dict[str, int | str]:
        """Return the options by name, as recorded and as `status --json` prints them."""
        return asdict(self)

    @property
    def debian_suite(self) -> str:
        """The Debian suite that ships this Slurm release."""
        return SUITES[self.release]

    @property
    def state_folder(self) -> Path:
        """The state of one release; another release refuses to read it ("incompatible version")."""
        return STATE / "releases" / self.release

    @property
    def database_name(self) -> str:
        """The accounting database of this release."""
        return f"slurm_{self.release.replace('.', '_')}"

    @property
    def chroot_folder(self) -> Path:
        """The root of this release's own Debian, if it is not the machine's."""
        return CACHE / self.debian_suite
