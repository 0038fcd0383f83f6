"""Which program starts a container, and what every container of a run is told of its node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
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
from hpckit.runtime.environ import rank_info

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
    """Return the path of the program that starts containers here; raises ContainerError if it is not here."""
    if runtime is ContainerRuntime.pyxis:
        return "srun"
    names = list_programs(runtime, cluster)
    if (found := find_first_program(names, environ)) is None:
        hint = "name the program (cluster.container_bin=PATH), or what has it in PATH (cluster.modules)"
        raise ContainerError(f"there is no {' or '.join(names)} here", hint=hint)
    return found


def list_programs(runtime: ContainerRuntime, cluster: Cluster) -> Sequence[str]:
    """Return the programs of a runtime; one that the site names is that of its runtime only."""
    is_its = cluster.container_runtime in {ContainerRuntime.none, ContainerRuntime.auto, runtime}
    return [cluster.container_bin] if cluster.container_bin and is_its else RUNTIMES[runtime].programs


def find_first_program(names: Iterable[str], environ: Mapping[str, str]) -> str | None:
    """Return the path of the first of these programs that is here."""
    path = environ.get("PATH", os.defpath)
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


def find_named_runtime(settings: LaunchConfig) -> ContainerRuntime:
    """Return the runtime that a run, or else its cluster, names; `auto` if neither does."""
    named = (settings.container.runtime, settings.cluster.container_runtime)
    return next((runtime for runtime in named if runtime in RUNTIMES), ContainerRuntime.auto)


def choose_runtime(settings: LaunchConfig, environ: Mapping[str, str]) -> ContainerRuntime:
    """Return what `container.runtime` means, here if it is `auto`; raises ConfigError."""
    named = find_named_runtime(settings)
    if named in RUNTIMES:
        return named
    program = settings.cluster.container_bin
    programs = {name: kind for kind, known in RUNTIMES.items() for name in known.programs}
    wanted = [program] if program else programs
    found = find_first_program((name for name in wanted if Path(name).name in programs), environ)
    if found is not None:
        return programs[Path(found).name]
    hint = "name what nodes have: container=apptainer, cluster.container_runtime=…, cluster.container_bin=…"
    raise ConfigError(f"container=auto finds none of {', '.join(programs)} in PATH here", hint=hint)


def build_spec(
    launch: Launch,
    index: int,
    settings: LaunchConfig,
    config: Mapping[str, Any],
    container: FrozenContainer,
    environ: Mapping[str, str],
) -> ContainerSpec:
    """Return the container of a run on this node; raises ContainerError."""
    needed = _list_needed(launch, index, settings, config, environ)
    try:
        mounts = tuple(plan_mounts(needed, list_named_mounts(settings)))
    except ConfigError as error:
        raise ContainerError(error.message, hint=error.hint) from error
    digest = container.digest.removeprefix("sha256:")
    name = f"hpckit_{digest[:12]}_{environ.get('SLURM_JOB_ID', launch.id)}"
    if container.runtime is not ContainerRuntime.pyxis:  # which finds it by its name for a later step
        name += f"_{index}_{rank_info(environ).rank}"
    return ContainerSpec(
        program=find_program(container.runtime, settings.cluster, environ),
        image=container.file,
        name=name,
        mounts=mounts,
        variables=tuple(sorted(_select_variables(environ))),
        gpu=choose_gpu(settings),
        home=settings.container.home,
        by_root=os.geteuid() == 0,
        options=tuple(settings.container.options),
    )


def _select_variables(environ: Mapping[str, str]) -> set[str]:
    """Return what passes from outside; what else there is speaks of the host's own programs."""
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


def choose_gpu(settings: LaunchConfig) -> ContainerGpu:
    """Return whose GPUs containers of this node see."""
    if settings.container.gpu is not ContainerGpu.auto:
        return settings.container.gpu
    devices = {ContainerGpu.nvidia: "/dev/nvidiactl", ContainerGpu.rocm: "/dev/kfd"}
    asked = requested_gpus_per_node(settings.resources) != 0
    there = (kind for kind, device in devices.items() if asked and Path(device).exists())
    return next(there, ContainerGpu.none)
