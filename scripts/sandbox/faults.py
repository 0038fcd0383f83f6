"""Breaks and mends single parts of a running sandbox, as a machine room would."""

from sandbox import daemons, network, process
from sandbox.lifecycle import is_serving, node_states, required_options
from sandbox.settings import BIN_DIR, Node, SandboxError


def kill_node(name: str) -> str:
    """The node loses power: everything on it dies at once."""
    node = required_options().node(name)
    killed = daemons.stop_node(node)
    return f"{name} lost power: {killed} processes died"


def revive_node(name: str) -> str:
    """The node boots again and returns to service."""
    options = required_options()
    node = options.node(name)
    daemons.start_node(node, options)
    return _return_to_service(node, "revived")


def cut_node(name: str) -> str:
    """The node's network cable is pulled; what runs on it runs on, unheard."""
    network.set_link(required_options().node(name), up=False)
    return f"{name} is cut off: its link is down"


def heal_node(name: str) -> str:
    """The cable is back; a node whose slurmd lives returns to service."""
    node = required_options().node(name)
    network.make_node(node)
    if process.recorded_pid(daemons.slurmd_name(node)) is None:
        return f"{name}'s link is up; its slurmd is dead, 'revive-node {name}' starts it"
    return _return_to_service(node, "healed")


def stop_controller() -> str:
    """slurmctld ends, saving its state; running jobs run on."""
    required_options()
    process.stop("slurmctld", patience=30.0)
    return "the controller is stopped"


def start_controller() -> str:
    """slurmctld starts again from its saved state."""
    daemons.start_controller(required_options())
    return "the controller answers"


def _return_to_service(node: Node, done: str) -> str:
    if not daemons.controller_answers():
        return f"{node.name} {done}; the controller does not answer, 'start-controller' starts it"
    if not process.wait_until(lambda: _serves(node), 30.0, interval=0.3):
        raise SandboxError(
            f"{node.name} is {node_states().get(node.name)} half a minute after it was {done}: "
            f"see 'scontrol show node {node.name}'"
        )
    return f"{node.name} {done}: {node_states().get(node.name)}"


def _serves(node: Node) -> bool:
    state = node_states().get(node.name, "unknown")
    if state in {"down", "drained", "draining"}:
        resume = [f"nodename={node.name}", "state=resume"]
        process.run([str(BIN_DIR / "scontrol"), "update", *resume], check=False, timeout=30.0)
    return is_serving(state)
