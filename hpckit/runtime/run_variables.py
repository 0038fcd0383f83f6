"""The environment that all programs of a run share, in ranks and shells.

Decides whose value wins: the run's own variables, then its tracker's, then the cluster's, then the
existing ones. What differs between ranks or rounds is added by the code that starts ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from hpckit.model.cluster.gpus_asked import count_cpus_per_rank, requested_gpus_per_node
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.plan import SecretVariables
from hpckit.model.rank import THREADS
from hpckit.observe.gpu_choice import (
    CUDA,
    GPUS_ASKED,
    OF_SLURM,
    ROCR,
    VISIBLE,
    WHOLE_NODE,
    read_gpus_given_to_run,
)
from hpckit.planning.tracker import TrackedRun, build_tracker_env_variables
from hpckit.record.launches import Launch
from hpckit.record.layout import LaunchPaths
from hpckit.record.snapshot.package_zip import find_own_zip
from hpckit.record.store import read_json_object
from hpckit.runtime.environ import remove_agent_variables
from hpckit.runtime.stages import stage_variables

_IN_A_JOB = {"SLURM_OVERLAP": "1", "SUBMITIT_EXECUTOR": "slurm"}
"""An srun inside of a run would else wait for what the step of its agents has, and
`submitit.JobEnvironment()` would not know where it is."""


def run_variables(
    launch: Launch, index: int, settings: LaunchConfig, secrets: SecretVariables, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a run's programs, based on that of its agent."""
    cluster = {**launch.cluster.env, **secrets.cluster, **settings.container.env}
    around = {**remove_agent_variables(environ), **cluster}
    around.pop("PYTHONINSPECT", None)  # a rank that ends would become a prompt, which fails
    tracked = build_tracker_env_variables(settings.tracker, _describe_run_for_trackers(launch, index), around)
    merged = {**around, **tracked, **settings.env, **secrets.env}
    search = [*launch.code.python_path, *filter(None, [merged.get("PYTHONPATH"), find_own_zip()])]
    return {
        THREADS: str(count_cpus_per_rank(settings.resources)),
        "PYTHONHASHSEED": "0",
        **({} if launch.cluster.kind is ClusterKind.local else _IN_A_JOB),
        **merged,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(search)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), merged.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
        # git above the launch's folder would answer for the checkout as it is by now.
        "GIT_CEILING_DIRECTORIES": os.pathsep.join(
            [*filter(None, [merged.get("GIT_CEILING_DIRECTORIES")]), str(launch.folder)]
        ),
        **run_folder_variables(launch, index),
        **_build_visible_gpu_variables(launch, settings, merged, {**cluster, **settings.env, **secrets.env}),
    }


def _build_visible_gpu_variables(
    launch: Launch, settings: LaunchConfig, merged: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that show a run the GPUs it was given, and say what it asked for.

    `own` variables that name GPUs ask for those. On this machine nothing assigns GPUs: a run has
    as many as it asks for, the first ones. One that asks for none sees none.
    """
    here, named = launch.cluster.kind is ClusterKind.local, any(name in own for name in VISIBLE)
    asked = None if named else requested_gpus_per_node(settings.resources)
    said = "" if named or (here and asked is None) else str(asked or 0)
    found = {GPUS_ASKED: WHOLE_NODE if settings.resources.exclusive and not here else said}
    if here:  # numbers of a job around this run, which may have some of them
        found |= {name: "" for name in OF_SLURM if name in merged}
    if asked == 0 or not read_gpus_given_to_run({**merged, **found}):
        return found | {name: "" for name in VISIBLE if name in merged or name == CUDA}
    if not here or asked is None:
        return found
    lists = [name for name in VISIBLE if name in merged]
    if not lists:
        numbers = ",".join(map(str, range(asked)))
        return found | {CUDA: numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as NVML counts
    inner = [name for name in lists if name != ROCR] or lists
    return found | {name: ",".join(merged[name].split(",")[:asked]) for name in inner}


def _describe_run_for_trackers(launch: Launch, index: int) -> TrackedRun:
    head = launch.runs[index]
    return TrackedRun(
        run=head.id,
        launch=launch.id,
        stage=head.stage,
        folder=launch.paths.run_folder_text(index),
        project=launch.code.project,
        commit=_read_frozen_commit(launch.folder),
    )


@cache
def _read_frozen_commit(folder: Path) -> str | None:
    """Return the commit that the frozen code is from, with or without changes to it.

    An agent reads it before its first round: later its file system may not answer.
    """
    record = read_json_object(LaunchPaths(folder).code_record)
    return record.get("commit") if record.get("snapshot") else None


def run_folder_variables(launch: Launch, index: int) -> dict[str, str]:
    """Return the variables by which a run's programs find its folders."""
    return {
        "HPCKIT_LAUNCH_DIR": str(launch.folder),
        "HPCKIT_RUN_DIR": str(launch.paths.run(index).folder),
        "HPCKIT_RUN_INDEX": str(index),
        "HPCKIT_PROJECT": launch.code.project,
        **stage_variables(launch, index),
    }
