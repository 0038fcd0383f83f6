"""Which program starts a container, and what every container of a run is told of its node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from string import Template
from typing import Any

from hpckit.errors import ConfigError, ContainerError
from hpckit.features.containers.mounts import Mount, parse_mount, plan_mounts
from hpckit.features.containers.spec import ContainerSpec, Runtime
from hpckit.model.cluster.gpus_asked import requested_gpus_per_node
from hpckit.model.launch import Cluster, LaunchConfig
from hpckit.model.node_setup import ContainerGpu, ContainerRuntime, FrozenContainer
from hpckit.record.launches import Launch, configured_checkpoint_dir
from hpckit.run_features import find_run_hooks

RUNTIMES: Mapping[ContainerRuntime, Runtime] = {
    kind: import_module(f"hpckit.features.containers.{kind}").RUNTIME
    for kind in ContainerRuntime
    if kind not in {ContainerRuntime.none, ContainerRuntime.auto}
}
"""In the order in which `auto` looks for their programs. That of pyxis is srun."""

_PASSED = ("SLURM", "HPCKIT_", "NCCL_", "GLOO_", "UCX_", "FI_", "PMI", "NVIDIA_", "CUDA_", "ROCR_", "HIP_")
_PASSED_TOO = {"HOME", "USER", "LOGNAME", "TERM", "LANG", "TZ", "TMPDIR", "PYTHONPATH", "GPU_DEVICE_ORDINAL"}
_PROXIES = {"http_proxy", "https_proxy", "no_proxy"}
OF_RANKS = ("RANK", "WORLD_", "LOCAL_", "GROUP_", "ROLE_", "NODE_RANK", "MASTER_", "TORCH", "OMP_", "PYTHON")
"""What a rank is told of itself, if only its command is in a container."""
_OF_PROGRAMS = ("APPTAINER_", "SINGULARITY_", "CH_", "XDG_", "CONTAINERS_")


def find_program(runtime: ContainerRuntime, cluster: Cluster, environ: Mapping[str, str]) -> str:
    """Return the path of the program that starts containers here; raises ContainerError if it is not here.

    One that the site names is that of its runtime only.
    """
    if runtime is ContainerRuntime.pyxis:
        return "srun"
    fits = cluster.container_runtime in {ContainerRuntime.none, ContainerRuntime.auto, runtime}
    named = cluster.container_bin if fits else None
    names = (named,) if named else RUNTIMES[runtime].programs
    found = find_first_program(names, environ)
    if found is None:
        wanted = named or f"{' or '.join(names)} in PATH"
        raise ContainerError(
            f"there is no {wanted} here",
            hint="name the program (cluster.container_bin=PATH), or what provides it (cluster.modules)",
        )
    return found


def find_first_program(names: Iterable[str], environ: Mapping[str, str]) -> str | None:
    """Return the path of the first of these programs that is here."""
    path = environ.get("PATH", os.defpath)
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


def choose_runtime(settings: LaunchConfig, environ: Mapping[str, str]) -> ContainerRuntime:
    """Return what `container.runtime` means, here if it is `auto`; raises ConfigError."""
    cluster, runtime = settings.cluster, settings.container.runtime
    if runtime is ContainerRuntime.auto:
        runtime = cluster.container_runtime
    if runtime not in {ContainerRuntime.none, ContainerRuntime.auto}:
        return runtime
    named = cluster.container_bin or ""
    programs = {name: kind for kind, known in RUNTIMES.items() for name in known.programs}
    known = programs.get(Path(named).name) if named else None
    found = find_first_program([named] if known else [] if named else programs, environ)
    if found is not None:
        return known or programs[Path(found).name]
    raise ConfigError(
        f"container=auto finds none of {', '.join(programs)} in PATH here",
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
    """Return the container of a run on this node; raises ContainerError."""
    program = find_program(container.runtime, settings.cluster, environ)
    needed = _list_needed(launch, index, settings, config, environ)
    try:
        mounts = tuple(plan_mounts(needed, list_named_mounts(settings)))
    except ConfigError as error:
        raise ContainerError(error.message, hint=error.hint) from error
    digest = container.digest.removeprefix("sha256:")
    return ContainerSpec(
        program=program,
        image=container.file,
        name=f"hpckit_{digest[:12]}_{environ.get('SLURM_JOB_ID', launch.id)}",
        mounts=mounts,
        variables=tuple(sorted(_select_variables(environ))),
        gpu=_choose_gpu(settings),
        home=settings.container.home,
        by_root=os.geteuid() == 0,
        options=tuple(settings.container.options),
    )


def _select_variables(environ: Mapping[str, str]) -> set[str]:
    """Return what passes from outside: Slurm's variables, those of GPUs and networks, and the user's name.

    What else there is speaks of the host's own programs. It can be named in `container.env`.
    """
    named = _PASSED_TOO & environ.keys()
    return named | {name for name in environ if name.startswith(_PASSED) or name.lower() in _PROXIES}


def build_program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program that starts the container: what passes, and its own."""
    own = {name for name in environ if name.startswith(_OF_PROGRAMS) or name == "PATH"}
    return {name: environ[name] for name in own | _select_variables(environ)}


def list_named_mounts(settings: LaunchConfig, *, site: bool = True) -> list[Mount]:
    """Return the mounts that the user, and with `site` the cluster's file name; raises ConfigError."""
    named = {"cluster.container_mounts": settings.cluster.container_mounts if site else []}
    named["container.mounts"] = settings.container.mounts
    return [parse_mount(text, key) for key, texts in named.items() for text in texts]


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
