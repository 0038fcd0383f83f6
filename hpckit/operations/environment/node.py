"""The node's side of `doctor --env`: what the run does that it launches."""

from __future__ import annotations

from pathlib import Path

from hpckit.context import Context
from hpckit.errors import UsageError
from hpckit.model.plain import to_plain
from hpckit.operations.environment.collect import collect_facts
from hpckit.record.launches import Launch, load_launch
from hpckit.record.store import write_json


def token_file(launch_folder: Path) -> Path:
    """Return the file in the output folder by which both sides tell that they see the same one."""
    return launch_folder.parent / f".environment-{launch_folder.name}"


def write_node_facts(context: Context) -> None:
    """Collect the facts of this node and write them into the folder of the run around it.

    Raises UsageError outside of a run, and HpckitError if its launch cannot be read.
    """
    environ = context.environ
    try:
        folder, index = Path(environ["HPCKIT_LAUNCH_DIR"]), int(environ["HPCKIT_RUN_INDEX"])
    except (KeyError, ValueError):
        raise UsageError(
            "node-facts works inside a run only: HPCKIT_LAUNCH_DIR or HPCKIT_RUN_INDEX is not set",
            hint="`hpckit doctor --env` starts such a run",
        ) from None
    launch: Launch = load_launch(folder)
    facts = collect_facts(
        context,
        output=folder.parent,
        project=Path(environ.get("HPCKIT_PROJECT") or launch.code.project),
        bin_dir=launch.cluster.bin_dir,
        token=token_file(folder),
    )
    write_json(launch.paths.run(index).node_facts, to_plain(facts))
