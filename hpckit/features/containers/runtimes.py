"""Which program starts a container, and what every container of a run is told of its node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Any

from hpckit.errors import ConfigError, ContainerError
from hpckit.features.containers import apptainer, charliecloud, podman, pyxis
from hpckit.features.containers.mounts import Mount, parse_mount, plan_mounts
from hpckit.features.containers.spec import ContainerSpec
from hpckit.model.cluster.gpus_asked import requested_gpus_per_node
from hpckit.model.launch import Cluster, LaunchConfig
from hpckit.model.node_setup import ContainerGpu, ContainerRuntime, FrozenContainer
from hpckit.record.launches import Launch, configured_checkpoint_dir
from hpckit.run_features import find_run_hooks

PROGRAMS: Mapping[ContainerRuntime, tuple[str, ...]] = {
    ContainerRuntime.apptainer: apptainer.PROGRAMS,
    ContainerRuntime.charliecloud: charliecloud.PROGRAMS,
    ContainerRuntime.podman: podman.PROGRAMS,
}
"""Runtimes that the doorway starts, in the order in which `auto` looks for them."""

BUILD_WORDS: Mapping[ContainerRuntime, Callable[[ContainerSpec], list[str]]] = {
    ContainerRuntime.apptainer: apptainer.build_words,
    ContainerRuntime.charliecloud: charliecloud.build_words,
    ContainerRuntime.podman: podman.build_words,
    ContainerRuntime.pyxis: pyxis.build_words,
}

_PASSED = ("SLURM", "HPCKIT_", "NCCL_", "GLOO_", "UCX_", "FI_", "PMI", "NVIDIA_", "CUDA_", "ROCR_", "HIP_")
_PASSED_NAMES = {
    "HOME",
    "USER",
    "LOGNAME",
    "TERM",
    "LANG",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "GPU_DEVICE_ORDINAL",
}
_PROXIES = {"http_proxy", "https_proxy", "no_proxy"}
OF_RANKS = ("RANK", "WORLD_", "LOCAL_", "GROUP_", "ROLE_", "NODE_RANK", "MASTER_", "TORCH", "OMP_", "PYTHON")
"""What a rank is told of itself, if only its command is in a container."""
_OF_PROGRAMS = ("APPTAINER_", "SINGULARITY_", "CH_", "XDG_", "CONTAINERS_")


def find_named_program(runtime: ContainerRuntime, cluster: Cluster) -> str | None:
    """Return the program that the site names for a runtime; None if it names that of another one, or none."""
    known = cluster.container_runtime
    fits = known in {ContainerRuntime.none, ContainerRuntime.auto, runtime}
    return cluster.container_bin if fits else None


def find_program(runtime: ContainerRuntime, cluster: Cluster, environ: Mapping[str, str]) -> str | None:
    """Return the path of the program that starts containers here; None if it is not here."""
    named = find_named_program(runtime, cluster)
    names = (named,) if named else PROGRAMS[runtime]
    path = environ.get("PATH", os.defpath)
    return next((found for name in names if name and (found := shutil.which(name, path=path))), None)


def choose_runtime(settings: LaunchConfig, environ: Mapping[str, str]) -> ContainerRuntime:
    """Return what `container.runtime` means, here if it is `auto`; raises ConfigError."""
    cluster, runtime = settings.cluster, settings.container.runtime
    if runtime is ContainerRuntime.auto:
        runtime = cluster.container_runtime
    if runtime not in {ContainerRuntime.none, ContainerRuntime.auto}:
        return runtime
    named = Path(cluster.container_bin or "").name
    for known, programs in PROGRAMS.items():
        if (not named or named in programs) and find_program(known, cluster, environ):
            return known
    raise ConfigError(
        "container=auto finds none of "
        f"{', '.join(name for names in PROGRAMS.values() for name in names)} in PATH here",
        hint="name what the nodes have: cluster.container_runtime=…, or container=apptainer; or its program: "
        "cluster.container_bin=PATH",
    )


def build_spec(
    launch: Launch,
    index: int,
    settings: LaunchConfig,
    config: Mapping[str, Any],
    container: FrozenContainer,
    environ: Mapping[str, str],
) -> ContainerSpec:
    """Return the container of a run on this node; raises ContainerError, ConfigError."""
    if container.runtime is ContainerRuntime.pyxis:
        program: str | None = "srun"
    else:
        program = find_program(container.runtime, settings.cluster, environ)
    if program is None:
        named = find_named_program(container.runtime, settings.cluster)
        wanted = named or f"{' or '.join(PROGRAMS[container.runtime])} in PATH"
        raise ContainerError(
            f"this node has no {wanted}",
            hint="name the program (cluster.container_bin=PATH), or what provides it (cluster.modules)",
        )
    needed = _list_needed(launch, index, settings, config, environ)
    try:
        mounts = tuple(plan_mounts(needed, list_named_mounts(settings)))
    except ConfigError as error:
        raise ContainerError(error.message, hint=error.hint) from error
    return ContainerSpec(
        program=program,
        image=container.file,
        name=name_container(container, environ.get("SLURM_JOB_ID", launch.id)),
        mounts=mounts,
        variables=tuple(sorted(select_variables(environ))),
        gpu=_choose_gpu(settings),
        home=settings.container.home,
        by_root=os.geteuid() == 0,
        options=tuple(settings.container.options),
    )


def name_container(container: FrozenContainer, job: str) -> str:
    """Return the name of a container, for runtimes that keep one while the job lasts."""
    return f"hpckit_{container.digest.removeprefix('sha256:')[:12]}_{job}"


def select_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what passes from outside: Slurm's variables, those of GPUs and networks, and the user's name.

    What else there is speaks of the host's own programs. It can be named in `container.env`.
    """
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_PASSED) or name in _PASSED_NAMES or name.lower() in _PROXIES
    }


def build_program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program that starts the container: what passes, and its own."""
    own = {name: value for name, value in environ.items() if name.startswith(_OF_PROGRAMS) or name == "PATH"}
    return select_variables(environ) | own


def list_named_mounts(settings: LaunchConfig) -> list[Mount]:
    """Return the mounts that site and user name; raises ConfigError."""
    return [
        *(parse_mount(text, "cluster.container_mounts") for text in settings.cluster.container_mounts),
        *(parse_mount(text, "container.mounts") for text in settings.container.mounts),
    ]


def _list_needed(
    launch: Launch, index: int, settings: LaunchConfig, config: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str]:
    """Return the folders and files that a run needs; those that are not there are left out."""
    saves = configured_checkpoint_dir(settings.checkpoint)
    if saves is not None:
        with suppress(OSError):  # what is not there cannot be mounted; the check inside names it
            saves.mkdir(parents=True, exist_ok=True)
    weights = settings.checkpoint.weights
    named: list[object] = [
        launch.folder.parent,
        launch.folder,
        *([] if launch.code.snapshot else [launch.code.project]),
        *filter(None, [saves, weights and Path(weights).expanduser(), environ.get("TMPDIR")]),
        *(Template(folder).safe_substitute(environ) for folder in settings.cluster.node_scratch),
    ]
    for hook in find_run_hooks(settings, config, "list_mounts"):
        named += hook(launch=launch, index=index, settings=settings, config=config)
    return [str(path) for path in map(Path, map(str, named)) if path.is_absolute() and path.exists()]


def _choose_gpu(settings: LaunchConfig) -> ContainerGpu:
    asked = settings.container.gpu
    if asked is not ContainerGpu.auto:
        return asked
    if requested_gpus_per_node(settings.resources) == 0:
        return ContainerGpu.none
    if Path("/dev/nvidiactl").exists():
        return ContainerGpu.nvidia
    return ContainerGpu.rocm if Path("/dev/kfd").exists() else ContainerGpu.none
