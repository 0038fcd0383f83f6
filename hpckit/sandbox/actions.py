"""The actions of `hpckit sandbox`, faults and status too: a line or a table, errors as one line.

Exit codes: 0 done (for `status`: up), 1 something failed, 2 wrong usage, 3 `status`: not (all) up.
"""

import argparse
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpckit.sandbox import apptainer, daemons, lifecycle, network, process
from hpckit.sandbox.lifecycle import read_recorded_options, require_recorded_options
from hpckit.sandbox.settings import (
    BIN_DIR,
    LOG_DIR,
    MAX_NODES,
    PREEMPT_MODES,
    PREEMPT_TYPES,
    SLURM_CONF,
    SUITES,
    Node,
    Options,
    SandboxError,
)

Status = dict[str, Any]
"""The whole sandbox; `state` is one of up, degraded, down.

Of a node its slurmd, its link, and its state in Slurm: None if the controller is silent.
"""


def collect_sandbox_status() -> Status:
    """Return the state of the processes, the links and the nodes in Slurm."""
    options = read_recorded_options()
    alive = {name: process.find_recorded_pid(name) is not None for name in _DAEMONS}
    seen = _collect_node_status(options, answering=alive["slurmctld"]) if options else []
    return {
        "state": _summarize_sandbox_state(options, alive, seen),
        "options": options.as_dict() if options else None,
        "daemons": alive,
        "nodes": seen,
        "bin_dir": str(BIN_DIR),
        "slurm_conf": str(SLURM_CONF),
        "log_dir": str(LOG_DIR),
    }


_DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld")


def _collect_node_status(options: Options, *, answering: bool) -> list[Status]:
    states = daemons.ask_node_states() if answering else {}
    return [
        {
            "name": node.name,
            "address": node.address,
            "slurmd": process.find_recorded_pid(daemons.slurmd_record_name(node)) is not None,
            "link": network.is_link_up(node),
            "state": states.get(node.name),
        }
        for node in options.list_nodes()
    ]


def _summarize_sandbox_state(options: Options | None, alive: dict[str, bool], seen: list[Status]) -> str:
    if options is None:
        return "down"
    whole = all(alive.values()) and all(
        node["slurmd"] and node["link"] and daemons.is_node_state_usable(node["state"] or "") for node in seen
    )
    return "up" if whole else "degraded"


def format_sandbox_status(status: Status) -> str:
    """Return the status as a few lines of text."""
    if status["options"] is None:
        return "the sandbox is down"
    asked = " ".join(f"{key}={value}" for key, value in status["options"].items())
    lines, words = [f"the sandbox is {status['state']}: {asked}"], {True: "runs", False: "dead"}
    lines += [f"  {name:<10} {words[alive]}" for name, alive in status["daemons"].items()]
    for node in status["nodes"]:
        link, state = "up" if node["link"] else "down", node["state"] or "unknown"
        slurmd = f"slurmd {words[node['slurmd']]}, link {link}, {state}, {node['address']}"
        lines.append(f"  {node['name']:<10} {slurmd}")
    lines.append(f"commands: {status['bin_dir']}   logs: {status['log_dir']}")
    return "\n".join(lines)


def kill_node(name: str) -> str:
    """Kill everything on the node at once, as a power loss would."""
    node = require_recorded_options().find_node(name)
    killed = daemons.kill_node_processes(node)
    return f"{name} lost power: {killed} processes died"


def revive_node(name: str) -> str:
    """Start the node's slurmd again and return it to service."""
    options = require_recorded_options()
    node = options.find_node(name)
    network.make_node_network(node)
    daemons.start_slurmd(node, options)
    return _return_node_to_service(node, "revived")


def cut_node(name: str) -> str:
    """Cut the node's network link; its processes keep running, without contact."""
    network.set_node_link_up_or_down(require_recorded_options().find_node(name), up=False)
    return f"{name} is cut off: its link is down"


def heal_node(name: str) -> str:
    """Restore the link, at full speed; a node whose slurmd runs returns to service."""
    node = require_recorded_options().find_node(name)
    network.make_node_network(node)
    network.limit_link_speed(node, None)
    if process.find_recorded_pid(daemons.slurmd_record_name(node)) is None:
        return f"{name}'s link is up; its slurmd is dead, 'revive-node {name}' starts it"
    return _return_node_to_service(node, "healed")


SLOW_MBIT_PER_S = 50
"""A link of the sandbox carries some gigabits; this is a link that trained down."""


def slow_link(name: str) -> str:
    """Slow the node's network link down to 50 Mbit/s; its processes keep running."""
    network.limit_link_speed(require_recorded_options().find_node(name), SLOW_MBIT_PER_S)
    return f"{name}'s link carries {SLOW_MBIT_PER_S} Mbit/s now; 'heal-node {name}' repairs it"


def stop_controller() -> str:
    """Stop slurmctld, which saves its state; running jobs continue."""
    require_recorded_options()
    process.stop_daemon("slurmctld", patience=30.0)
    return "the controller is stopped"


def start_controller() -> str:
    """Start slurmctld again from its saved state."""
    options = require_recorded_options()
    daemons.start_slurmctld(options)
    reachable = [
        node.name
        for node in options.list_nodes()
        if network.is_link_up(node)
        and process.find_recorded_pid(daemons.slurmd_record_name(node)) is not None
    ]
    process.poll_until_ready(lambda: daemons.resume_and_check_nodes(reachable), 20.0, interval=0.3)
    return "the controller answers"


def _return_node_to_service(node: Node, done: str) -> str:
    if not daemons.controller_answers():
        return f"{node.name} {done}; the controller does not answer, 'start-controller' starts it"
    if not process.poll_until_ready(lambda: daemons.resume_and_check_nodes([node.name]), 30.0, interval=0.3):
        state = daemons.ask_node_states().get(node.name)
        raise SandboxError(
            f"{node.name} is {state} half a minute after it was {done}: see 'scontrol show node {node.name}'"
        )
    return f"{node.name} {done}: {daemons.ask_node_states().get(node.name)}"


_LOCKED = Path("/run")  # a folder can be locked too, without a lock file
_NODE_VERBS: dict[str, Callable[[str], str]] = {
    "kill-node": kill_node,
    "revive-node": revive_node,
    "cut-node": cut_node,
    "heal-node": heal_node,
    "slow-link": slow_link,
}
_CONTROLLER_VERBS: dict[str, Callable[[], str]] = {
    "stop-controller": stop_controller,
    "start-controller": start_controller,
}


def run_sandbox_action(arguments: argparse.Namespace) -> int:
    """Run one action; returns the exit code."""
    try:
        return _dispatch_action(arguments)
    except SandboxError as error:
        print(f"hpckit: error: {error}", file=sys.stderr)
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("hpckit: interrupted; `hpckit sandbox down` cleans up", file=sys.stderr)
    return 1


def _dispatch_action(arguments: argparse.Namespace) -> int:
    if arguments.action == "status":
        return _print_status(as_json=arguments.json)
    if arguments.action == "env":
        require_recorded_options()
        print(f'export PATH="{BIN_DIR}:$PATH"\nexport SLURM_CONF="{SLURM_CONF}"')
        return 0
    with _lock_sandbox():
        return _change_sandbox(arguments)


def _change_sandbox(arguments: argparse.Namespace) -> int:
    verb: str = arguments.action
    if verb == "up":
        return _bring_sandbox_up(arguments)
    if verb == "install":
        lifecycle.install_sandbox(Options(release=arguments.release))
        print(f"Slurm {arguments.release} is installed: `hpckit sandbox up` starts it")
        for _ in arguments.extras:
            print(f"apptainer is installed: {apptainer.install_apptainer()}")
    elif verb == "down":
        lifecycle.take_down_sandbox(purge=arguments.purge)
        print("the sandbox is down" + (" and its state and caches are gone" * arguments.purge))
    elif verb in _NODE_VERBS:
        print(_NODE_VERBS[verb](arguments.node))
    else:
        print(_CONTROLLER_VERBS[verb]())
    return 0


def _bring_sandbox_up(arguments: argparse.Namespace) -> int:
    names = Options().as_dict()
    options = Options(**{name: getattr(arguments, name) for name in names})
    started = time.monotonic()
    if arguments.extras:  # before anything is started
        apptainer.install_apptainer()
    lifecycle.bring_up_sandbox(options)
    took = time.monotonic() - started
    print(f"Slurm {options.release} is up: {options.nodes} nodes, after {took:.1f} s")
    print('use it with: eval "$(hpckit sandbox env)", or cluster=sandbox in hpckit')
    if arguments.extras:
        print(f"{apptainer.link_apptainer()} starts containers: container=apptainer container.image=FILE")
    return 0


def _print_status(*, as_json: bool) -> int:
    seen = collect_sandbox_status()
    print(json.dumps(seen) if as_json else format_sandbox_status(seen))
    return 0 if seen["state"] == "up" else 3


@contextlib.contextmanager
def _lock_sandbox() -> Iterator[None]:
    """Allow one command at a time to change the sandbox; a second one waits."""
    if os.geteuid() != 0:
        raise SandboxError("only root can do this: run it with sudo")
    lock = os.open(_LOCKED, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("hpckit: waiting for another `hpckit sandbox`", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def add_sandbox_actions(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    verbs = parser.add_subparsers(
        dest="action",
        required=True,
        metavar="ACTION",
        help="what to do (`hpckit sandbox ACTION --help` says more)",
    )
    _add_options_of_up_action(
        verbs.add_parser("up", help="start it with these options; installs what is missing")
    )
    install = verbs.add_parser("install", help="install what is missing, and start nothing")
    _add_release_option(install)
    _add_extras_option(install)
    down = verbs.add_parser("down", help="stop it and leave nothing behind")
    down.add_argument("--purge", action="store_true", help="also delete its state and caches")
    show = verbs.add_parser("status", help="what is running; exit code 0 if all of it is, else 3")
    show.add_argument("--json", action="store_true", help="one JSON object")
    verbs.add_parser("env", help='print exports for a shell: eval "$(hpckit sandbox env)"')
    for name, act in _NODE_VERBS.items():
        verbs.add_parser(name, help=_docstring_to_help(act.__doc__)).add_argument("node", metavar="NODE")
    for name, control in _CONTROLLER_VERBS.items():
        verbs.add_parser(name, help=_docstring_to_help(control.__doc__))


def _docstring_to_help(text: str | None) -> str:
    sentence = (text or "").removesuffix(".")
    return sentence[:1].lower() + sentence[1:]


def _add_options_of_up_action(up: argparse.ArgumentParser) -> None:
    usual = Options()
    up.add_argument("--nodes", type=_build_integer_parser(1, MAX_NODES), default=usual.nodes, metavar="N")
    _add_release_option(up)
    _add_extras_option(up)
    seconds = {
        "--grace": (usual.grace, 0, "between the notice of a preemption and the end"),
        "--cred-expire": (usual.cred_expire, 5, "that a requeued job waits, and one more"),
        "--slurmd-timeout": (usual.slurmd_timeout, 2, "after which a silent node is down"),
    }
    for name, (default, least, what) in seconds.items():
        number = _build_integer_parser(least, 86400)
        up.add_argument(name, type=number, default=default, metavar="S", help=f"seconds {what}")
    modes = "what happens to a job that is preempted; suspend: jobs share CPUs in turn"
    up.add_argument("--preempt-mode", choices=PREEMPT_MODES, default=usual.preempt_mode, help=modes)
    up.add_argument(
        "--preempt-by",
        choices=sorted(PREEMPT_TYPES),
        default=usual.preempt_by,
        help="which jobs preempt others: those in partition urgent, or with QOS urgent",
    )
    up.add_argument(
        "--max-array-size",
        type=_build_integer_parser(2, 1_000_001),
        default=usual.max_array_size,
        metavar="N",
        help="one more than the highest index in an array",
    )


def _add_release_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", choices=sorted(SUITES), default=Options().release)


def _add_extras_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with",
        dest="extras",
        choices=["apptainer"],
        action="append",
        default=[],
        help="also what starts containers; the machine's own apptainer is taken if it has one",
    )


def _build_integer_parser(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return number
