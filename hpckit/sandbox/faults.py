"""Breaks and repairs single parts of a running sandbox, as faults in a data centre would."""

from hpckit.sandbox import daemons, network, process
from hpckit.sandbox.lifecycle import required_options
from hpckit.sandbox.settings import Node, SandboxError


def kill_node(name: str) -> str:
    """Kill everything on the node at once, as a power loss would."""
    node = required_options().node(name)
    killed = daemons.stop_node(node)
    return f"{name} lost power: {killed} processes died"


def revive_node(name: str) -> str:
    """Start the node's slurmd again and return it to service."""
    options = required_options()
    node = options.node(name)
    network.make_node(node)
    daemons.start_node(node, options)
    return _return_to_service(node, "revived")


def cut_node(name: str) -> str:
    """Pull the node's network cable; what runs on it runs on, unheard."""
    network.set_link(required_options().node(name), up=False)
    return f"{name} is cut off: its link is down"


def heal_node(name: str) -> str:
    """Plug the cable in again, at full speed; a node whose slurmd lives returns to service."""
    node = required_options().node(name)
    network.make_node(node)
    network.slow_link(node, None)
    if process.recorded_pid(daemons.slurmd_name(node)) is None:
        return f"{name}'s link is up; its slurmd is dead, 'revive-node {name}' starts it"
    return _return_to_service(node, "healed")


SLOW_MBIT_PER_S = 50
"""A link of the sandbox carries some gigabits; this is a link that trained down."""


def slow_link(name: str) -> str:
    """Slow the node's network link down to 50 Mbit/s; what runs on it runs on."""
    network.slow_link(required_options().node(name), SLOW_MBIT_PER_S)
    return f"{name}'s link carries {SLOW_MBIT_PER_S} Mbit/s now; 'heal-node {name}' mends it"


def stop_controller() -> str:
    """Stop slurmctld, which saves its state; running jobs run on."""
    required_options()
    process.stop_daemon("slurmctld", patience=30.0)
    return "the controller is stopped"


def start_controller() -> str:
    """Start slurmctld again from its saved state."""
    options = required_options()
    daemons.start_slurmctld(options)
    reachable = [node.name for node in options.all_nodes() if _is_reachable(node)]
    process.wait_until(lambda: daemons.serve(reachable), 20.0, interval=0.3)
    return "the controller answers"


def _is_reachable(node: Node) -> bool:
    return network.link_is_up(node) and process.recorded_pid(daemons.slurmd_name(node)) is not None


def _return_to_service(node: Node, done: str) -> str:
    if not daemons.controller_answers():
        return f"{node.name} {done}; the controller does not answer, 'start-controller' starts it"
    if not process.wait_until(lambda: daemons.serve([node.name]), 30.0, interval=0.3):
        state = daemons.node_states().get(node.name)
        raise SandboxError(
            f"{node.name} is {state} half a minute after it was {done}: "
            f"see 'scontrol show node {node.name}'"
        )
    return f"{node.name} {done}: {daemons.node_states().get(node.name)}"
