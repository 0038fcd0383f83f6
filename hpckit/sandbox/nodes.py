"""Slurm's view of the nodes, and how repaired nodes return to service."""

from hpckit.sandbox import process
from hpckit.sandbox.settings import BIN_DIR

_SERVING = {"idle", "mixed", "allocated", "completing", "planned"}
_HELD_BACK = {"down", "drained", "draining"}


def states() -> dict[str, str]:
    """Return the state of every node; empty if the controller does not answer."""
    argv = [str(BIN_DIR / "sinfo"), "--noheader", "--Node", "--format=%N %T", "--partition=batch"]
    done = process.run(argv, check=False, timeout=30.0)
    return dict(line.split() for line in done.stdout.splitlines() if done.returncode == 0)


def is_serving(state: str) -> bool:
    """Whether a node in that state takes jobs; a trailing `*` means that it does not answer."""
    return state.rstrip("-+") in _SERVING


def serve(names: list[str]) -> bool:
    """Return whether all these nodes take jobs; make Slurm resume those down or drained."""
    known = states()
    for name in names:
        if known.get(name) in _HELD_BACK:
            resume = ["update", f"nodename={name}", "state=resume"]
            process.run([str(BIN_DIR / "scontrol"), *resume], check=False, timeout=30.0)
    return all(is_serving(known.get(name, "unknown")) for name in names)


def describe_nodes() -> str:
    """Return all nodes with their states, in one line."""
    return ", ".join(f"{name} {state}" for name, state in sorted(states().items())) or "none known"
