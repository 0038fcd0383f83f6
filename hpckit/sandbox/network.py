"""The nodes' network: a bridge, a namespace and a link per node, and their names in /etc/hosts.

Everything made here has the sandbox's prefix or is between its two marks, and only that is ever removed.
"""

from pathlib import Path

from hpckit.sandbox import process
from hpckit.sandbox.settings import BRIDGE, CONTROLLER, CONTROLLER_ADDRESS, PREFIX, Node, SandboxError

HOSTS = Path("/etc/hosts")
BEGIN, END = "# hpckit sandbox begin", "# hpckit sandbox end"
NAMESPACES = Path("/run/netns")


def make_bridge() -> None:
    """Make the bridge between the nodes, with the controller's address on it."""
    if not _link_exists(BRIDGE):
        try:
            _run_ip("link", "add", BRIDGE, "type", "bridge")
        except SandboxError as error:
            raise SandboxError(
                f"this kernel or container allows no bridge ({error}): the sandbox needs root with "
                "CAP_NET_ADMIN and CAP_SYS_ADMIN, in a container for instance --privileged"
            ) from None
        _run_ip("addr", "add", f"{CONTROLLER_ADDRESS}/24", "dev", BRIDGE)
    _run_ip("link", "set", BRIDGE, "up")


def make_node_network(node: Node) -> None:
    """Make a namespace with a link to the bridge; repair what an interrupted attempt left."""
    place = NAMESPACES / node.namespace
    if not process.is_mounted(place):
        place.unlink(missing_ok=True)  # left by a machine that went down with the sandbox up
        _run_ip("netns", "add", node.namespace)
    if not _link_exists(node.namespace):
        _run_ip("link", "add", node.namespace, "type", "veth", "peer", "name", "eth0",
            "netns", node.namespace)  # fmt: skip
        _run_ip_in_node(node, "addr", "add", f"{node.address}/24", "dev", "eth0")
    _run_ip("link", "set", node.namespace, "master", BRIDGE, "up")
    _run_ip_in_node(node, "link", "set", "lo", "up")
    _run_ip_in_node(node, "link", "set", "eth0", "up")
    _run_ip_in_node(node, "route", "replace", "default", "via", CONTROLLER_ADDRESS)


def set_node_link_up_or_down(node: Node, *, up: bool) -> None:
    """Set the host's end of the node's link up or down, like plugging or pulling its cable."""
    _run_ip("link", "set", node.namespace, "up" if up else "down")


def limit_link_speed(node: Node, mbit_per_s: int | None) -> None:
    """Let the node's link carry no more than this, in both directions; None: all it can.

    A bucket of tokens (tc-tbf) at each end bounds what that end sends.
    """
    for place, device in ((["-n", node.namespace], "eth0"), ([], node.namespace)):
        tc = ["tc", *place, "qdisc"]
        root = ["dev", device, "root"]
        if mbit_per_s is None:
            process.run_command([*tc, "del", *root], check=False)  # fails where there is none
        else:
            bucket = ["rate", f"{mbit_per_s}mbit", "burst", "64kb", "latency", "200ms"]
            process.run_command([*tc, "replace", *root, "tbf", *bucket])


def is_link_up(node: Node) -> bool:
    """Whether the node's link is up."""
    flags = Path(f"/sys/class/net/{node.namespace}/flags")
    return flags.exists() and bool(int(flags.read_text(), 16) & 1)


def list_network_namespaces() -> list[str]:
    """List the sandbox's network namespaces, with whatever options they were made."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(path.name for path in NAMESPACES.iterdir() if path.name.startswith(PREFIX))


def remove_network() -> None:
    """Remove every namespace, link and bridge of the sandbox; the namespaces must be empty."""
    for namespace in list_network_namespaces():
        _run_ip("link", "del", namespace, check=False)
        _run_ip("netns", "del", namespace)
    if _link_exists(BRIDGE):
        _run_ip("link", "del", BRIDGE)
    if NAMESPACES.is_dir() and not any(NAMESPACES.iterdir()):
        # `ip netns add` makes the folder its own mount and never removes it.
        process.run_command(["umount", str(NAMESPACES)], check=False)
        NAMESPACES.rmdir()


def write_etc_hosts_block(nodes: tuple[Node, ...]) -> None:
    """Name the controller and the nodes in the marked block in /etc/hosts."""
    text = _read_etc_hosts_without_block()
    if text and not text.endswith("\n"):
        text += "\n"
    lines = [f"{CONTROLLER_ADDRESS} {CONTROLLER}", *(f"{n.address} {n.name}" for n in nodes)]
    block = "\n".join([BEGIN, *lines, END])
    HOSTS.write_text(f"{text}{block}\n")  # in place: containers mount this one file


def remove_etc_hosts_block() -> None:
    """Remove the marked block from /etc/hosts."""
    text = _read_etc_hosts_without_block()
    if text != HOSTS.read_text():
        HOSTS.write_text(text)


def _read_etc_hosts_without_block() -> str:
    before, _, rest = HOSTS.read_text().partition(f"{BEGIN}\n")
    return before + rest.partition(f"{END}\n")[2]


def _link_exists(link: str) -> bool:
    return Path(f"/sys/class/net/{link}").exists()


def _run_ip_in_node(node: Node, *arguments: str) -> None:
    _run_ip("-n", node.namespace, *arguments)


def _run_ip(*arguments: str, check: bool = True) -> None:
    process.run_command(["ip", *arguments], check=check)
