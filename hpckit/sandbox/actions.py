"""The actions of `hpckit sandbox`: print a line or a table, and errors as one line.

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

from hpckit.sandbox import faults, lifecycle, status
from hpckit.sandbox.settings import (
    BIN_DIR,
    MAX_NODES,
    PREEMPT_MODES,
    PREEMPT_TYPES,
    SLURM_CONF,
    SUITES,
    Options,
    SandboxError,
)

_LOCKED = Path("/run")  # a folder can be locked too, without a lock file
_NODE_VERBS: dict[str, Callable[[str], str]] = {
    "kill-node": faults.kill_node,
    "revive-node": faults.revive_node,
    "cut-node": faults.cut_node,
    "heal-node": faults.heal_node,
    "slow-link": faults.slow_link,
}
_CONTROLLER_VERBS: dict[str, Callable[[], str]] = {
    "stop-controller": faults.stop_controller,
    "start-controller": faults.start_controller,
}


def run_action(arguments: argparse.Namespace) -> int:
    """Run one action; returns the exit code."""
    try:
        return _run(arguments)
    except SandboxError as error:
        print(f"hpckit: error: {error}", file=sys.stderr)
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("hpckit: interrupted; `hpckit sandbox down` tidies up", file=sys.stderr)
    return 1


def _run(arguments: argparse.Namespace) -> int:
    if arguments.action == "status":
        return _status(as_json=arguments.json)
    if arguments.action == "env":
        return _env()
    with _sole_use():
        return _change(arguments)


def _change(arguments: argparse.Namespace) -> int:
    verb: str = arguments.action
    if verb == "up":
        return _up(arguments)
    if verb == "install":
        lifecycle.install(Options(release=arguments.release))
        print(f"Slurm {arguments.release} is installed: `hpckit sandbox up` starts it")
    elif verb == "down":
        lifecycle.take_down(purge=arguments.purge)
        print("the sandbox is down" + (" and its state and caches are gone" * arguments.purge))
    elif verb in _NODE_VERBS:
        print(_NODE_VERBS[verb](arguments.node))
    else:
        print(_CONTROLLER_VERBS[verb]())
    return 0


def _up(arguments: argparse.Namespace) -> int:
    names = Options().as_dict()
    options = Options(**{name: getattr(arguments, name) for name in names})
    started = time.monotonic()
    lifecycle.bring_up(options)
    took = time.monotonic() - started
    print(f"Slurm {options.release} is up: {options.nodes} nodes, after {took:.1f} s")
    print('use it with: eval "$(hpckit sandbox env)", or cluster=sandbox in hpckit')
    return 0


def _status(*, as_json: bool) -> int:
    seen = status.sandbox_status()
    print(json.dumps(seen) if as_json else status.format_status(seen))
    return 0 if seen["state"] == "up" else 3


def _env() -> int:
    lifecycle.required_options()
    print(f'export PATH="{BIN_DIR}:$PATH"')
    print(f'export SLURM_CONF="{SLURM_CONF}"')
    return 0


@contextlib.contextmanager
def _sole_use() -> Iterator[None]:
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


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    verbs = parser.add_subparsers(
        dest="action",
        required=True,
        metavar="ACTION",
        help="what to do (`hpckit sandbox ACTION --help` says more)",
        parser_class=argparse.ArgumentParser,
    )
    _add_up(verbs.add_parser("up", help="make it what the options say; installs what is missing"))
    install = verbs.add_parser("install", help="install what is missing, and start nothing")
    _add_release(install)
    down = verbs.add_parser("down", help="stop it and leave nothing behind")
    down.add_argument("--purge", action="store_true", help="also delete its state and caches")
    show = verbs.add_parser("status", help="what is alive; exit code 0 when all is, else 3")
    show.add_argument("--json", action="store_true", help="one JSON object")
    verbs.add_parser("env", help='print exports for a shell: eval "$(hpckit sandbox env)"')
    for name, act in _NODE_VERBS.items():
        verbs.add_parser(name, help=_as_help(act.__doc__)).add_argument("node", metavar="NODE")
    for name, control in _CONTROLLER_VERBS.items():
        verbs.add_parser(name, help=_as_help(control.__doc__))


def _as_help(text: str | None) -> str:
    sentence = (text or "").removesuffix(".")
    return sentence[:1].lower() + sentence[1:]


def _add_up(up: argparse.ArgumentParser) -> None:
    usual = Options()
    up.add_argument("--nodes", type=_between(1, MAX_NODES), default=usual.nodes, metavar="N")
    _add_release(up)
    seconds = {
        "--grace": (usual.grace, 0, "between the notice of a preemption and the end"),
        "--cred-expire": (usual.cred_expire, 5, "a requeued job waits this and one more"),
        "--slurmd-timeout": (usual.slurmd_timeout, 2, "after which a silent node is down"),
    }
    for name, (default, least, what) in seconds.items():
        number = _between(least, 86400)
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
        type=_between(2, 1_000_001),
        default=usual.max_array_size,
        metavar="N",
        help="one more than the highest index in an array",
    )


def _add_release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", choices=sorted(SUITES), default=Options().release)


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {most}")
        return int(text)

    return number
