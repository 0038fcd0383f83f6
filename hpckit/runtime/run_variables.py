"""The environment that all programs of a run share, in ranks and shells.

Decides whose value wins: the run's own variables, then its tracker's, then the cluster's, then the
existing ones. What
differs between ranks or rounds is added by the code that starts ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hpckit.model.launch import LaunchConfig
from hpckit.model.plan import SecretVariables
from hpckit.planning.tracker import TrackedRun, tracker_variables
from hpckit.record.launches import Launch
from hpckit.runtime.environ import without_agent
from hpckit.runtime.stages import stage_variables


def run_variables(
    launch: Launch,
    index: int,
    settings: LaunchConfig,
    secrets: SecretVariables,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment of a run's programs, based on that of its agent."""
    cluster = {**launch.cluster.env, **secrets.cluster}
    around = {**without_agent(environ), **cluster}
    tracked = tracker_variables(settings.tracker, _tracked(launch, index), around)
    merged = {**around, **tracked, **settings.env, **secrets.env}
    search = [*launch.code.python_path, *filter(None, [merged.get("PYTHONPATH")])]
    return {
        "OMP_NUM_THREADS": str(settings.resources.cpus_per_task),
        "PYTHONHASHSEED": "0",
        **merged,
        "PYTHONPATH": os.pathsep.join(search),
        "PATH": os.pathsep.join([str(Path(launch.python).parent), merged.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
        **place_variables(launch, index),
    }


def _tracked(launch: Launch, index: int) -> TrackedRun:
    head = launch.runs[index]
    return TrackedRun(
        run=head.id,
        launch=launch.id,
        stage=head.stage,
        folder=launch.paths.run_text(index),
        project=launch.code.project,
    )


def place_variables(launch: Launch, index: int) -> dict[str, str]:
    """Return the variables by which a run's programs find its folders."""
    return {
        "HPCKIT_LAUNCH_DIR": str(launch.folder),
        "HPCKIT_RUN_DIR": str(launch.paths.run(index).folder),
        "HPCKIT_RUN_INDEX": str(index),
        "HPCKIT_PROJECT": launch.code.project,
        **stage_variables(launch, index),
    }
