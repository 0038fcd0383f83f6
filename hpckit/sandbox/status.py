"""Shows what of the sandbox is alive, as text or data. Changes nothing."""

from typing import TypedDict

from hpckit.sandbox import daemons, network, process
from hpckit.sandbox.lifecycle import recorded_options
from hpckit.sandbox.settings import BIN_DIR, LOG_DIR, SLURM_CONF, Options


class NodeStatus(TypedDict):
    """One node: its slurmd, its link, and its state in Slurm (None: the controller is silent)."""

    name: str
    address: str
    slurmd: bool
    link: bool
    state: str | None


class Status(TypedDict):
    """The whole sandbox; `state` is one of up, degraded, down."""

    state: str
    options: dict[str, int | str] | None
    daemons: dict[str, bool]
    nodes: list[NodeStatus]
    bin_dir: str
    slurm_conf: str
    log_dir: str


def sandbox_status() -> Status:
    """Return the state of the processes, the links and the nodes in Slurm."""
    options = recorded_options()
    alive = {name: process.recorded_pid(name) is not None for name in _DAEMONS}
    seen = _nodes(options, answering=alive["slurmctld"]) if options else []
    return Status(
        state=_judge(options, alive, seen),
        options=options.as_dict() if options else None,
        daemons=alive,
        nodes=seen,
        bin_dir=str(BIN_DIR),
        slurm_conf=str(SLURM_CONF),
        log_dir=str(LOG_DIR),
    )


_DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld")


def _nodes(options: Options, *, answering: bool) -> list[NodeStatus]:
    states = daemons.node_states() if answering else {}
    return [
        NodeStatus(
            name=node.name,
            address=node.address,
            slurmd=process.recorded_pid(daemons.slurmd_name(node)) is not None,
            link=network.link_is_up(node),
            state=states.get(node.name),
        )
        for node in options.all_nodes()
    ]


def _judge(options: Options | None, alive: dict[str, bool], seen: list[NodeStatus]) -> str:
    if options is None:
        return "down"
    whole = all(alive.values()) and all(
        node["slurmd"] and node["link"] and daemons.is_serving(node["state"] or "") for node in seen
    )
    return "up" if whole else "degraded"


def format_status(status: Status) -> str:
    """Return the status as a few lines of text."""
    if status["options"] is None:
        return "the sandbox is down"
    asked = " ".join(f"{key}={value}" for key, value in status["options"].items())
    lines = [f"the sandbox is {status['state']}: {asked}"]
    lines += [f"  {name:<10} {_word(alive)}" for name, alive in status["daemons"].items()]
    lines += [_node_line(node) for node in status["nodes"]]
    lines.append(f"commands: {status['bin_dir']}   logs: {status['log_dir']}")
    return "\n".join(lines)


def _node_line(node: NodeStatus) -> str:
    link = "link up" if node["link"] else "link down"
    state = node["state"] or "unknown"
    return (
        f"  {node['name']:<10} slurmd {_word(node['slurmd'])}, {link}, {state}, {node['address']}"
    )


def _word(alive: bool) -> str:  # noqa: FBT001 - its only argument
    return "runs" if alive else "dead"
