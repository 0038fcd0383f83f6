"""Ranks and agents of a launch that still run on this host without a supervisor.

A killed supervisor leaves its agents behind: they end their ranks, which have `stop_grace_s` to
leave, and until then both write into the launch folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import HeldError
from hpckit.model.launch import ClusterKind
from hpckit.record.launches import Launch, load_run_settings
from hpckit.runtime.processes import map_run_folders_to_processes

_LOOK_S = 0.25
_AFTER_GRACE_S = 20.0
"""An agent notices that its supervisor is gone, and takes a moment to kill what stays."""


def find_living_ranks(launch: Launch, runs: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """Return the processes of each of these runs that live on this host, of local launches."""
    if launch.cluster.kind is not ClusterKind.local:
        return {}
    folders = {Path(os.path.realpath(launch.paths.run(run).folder)): run for run in runs}
    found = map_run_folders_to_processes() if folders else {}
    return {folders[folder]: pids for folder, pids in found.items() if folder in folders}


def ensure_no_living_ranks(launch: Launch, runs: Iterable[int], context: Context) -> None:
    """Wait until no process of these runs lives on this host; raises HeldError if one stays."""
    living = find_living_ranks(launch, runs)
    if not living:
        return
    grace = max(load_run_settings(launch, run)[0].runtime.stop_grace_s for run in living)
    limit_s = grace + _AFTER_GRACE_S
    context.note(
        f"waiting for {_format_first_living_rank(launch, living)}, which still lives, for {limit_s:g} s"
    )
    stayed = wait_and_name_living_rank(launch, living, context, limit_s=limit_s)
    if stayed is not None:
        raise HeldError(
            f"{stayed} is still running and would write to the files of a new attempt",
            hint="look at it with `ps`, end it with `kill`, then try again",
        )


def wait_and_name_living_rank(
    launch: Launch, runs: Iterable[int], context: Context, *, limit_s: float
) -> str | None:
    """Return which process of these runs still lives on this host after `limit_s` seconds."""
    living, waited_s = find_living_ranks(launch, runs), 0.0
    while living and waited_s < limit_s:
        context.sleep(_LOOK_S)
        waited_s += _LOOK_S
        living = find_living_ranks(launch, living)
    return _format_first_living_rank(launch, living) if living else None


def _format_first_living_rank(launch: Launch, living: dict[int, tuple[int, ...]]) -> str:
    run, pids = next(iter(living.items()))
    return f"process {pids[0]} of {launch.runs[run].id}"
