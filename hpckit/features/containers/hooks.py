"""Where containers take part in a run: what the core calls, by name (`hpckit/run_features.py`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.errors import ConfigError, ContainerError
from hpckit.features.containers.apptainer import override_image_variables
from hpckit.features.containers.check import check_inside, explain_failed_start
from hpckit.features.containers.digests import compute_digest, find_digest, read_platform, read_stamp
from hpckit.features.containers.mounts import plan_mounts
from hpckit.features.containers.runtimes import (
    BUILD_WORDS,
    OF_RANKS,
    build_program_environment,
    build_spec,
    choose_runtime,
    list_named_mounts,
)
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.node_setup import (
    ContainerCheck,
    ContainerGpu,
    ContainerInside,
    ContainerRuntime,
    ContainerStep,
    FrozenContainer,
)
from hpckit.planning.jobs.shared_jobs import do_runs_share_jobs
from hpckit.planning.secrecy import is_secret_variable
from hpckit.record.launches import Launch
from hpckit.values import replace

_REFERENCES = ("docker://", "oras://", "library://", "shub://", "http://", "https://")


def find_container(*, settings: LaunchConfig, output_dir: Path, context: Context) -> FrozenContainer:
    """Return the image of a run as it is now; raises ConfigError."""
    asked = settings.container
    if not asked.image:
        raise ConfigError(
            f"container={asked.runtime} has no image",
            hint="container.image=FILE (.sif, .sqsh), a folder, or a reference such as docker://NAME:TAG",
        )
    _refuse_bad_settings(settings)
    saves, weights = settings.checkpoint.dir, settings.checkpoint.weights
    plan_mounts([str(output_dir), *filter(None, (saves, weights))], list_named_mounts(settings))
    runtime, file = choose_runtime(settings, context.environ), _find_file(settings, output_dir, context)
    try:
        stamp = read_stamp(file)
        digest, size = find_digest(file, output_dir)
    except OSError as error:
        raise ConfigError(
            f"container.image={asked.image} cannot be read: {error.strerror}",
            hint="name a file or folder that this machine and all nodes can read",
        ) from error
    if asked.digest not in {None, digest}:
        raise ConfigError(
            f"image {asked.image} is {digest}, and container.digest is {asked.digest}",
            hint="use the image that has this digest, or leave container.digest out",
        )
    return FrozenContainer(
        runtime=runtime,
        image=asked.image,
        digest=digest,
        platform=read_platform(file),
        file=str(file),
        bytes=size,
        stamp=stamp,
    )


def start_agent(  # noqa: PLR0913  # the hook's form
    *,
    launch: Launch,
    index: int,
    attempt: int,  # noqa: ARG001  # of the hook's form
    settings: LaunchConfig,
    config: Mapping[str, Any],
    words: Sequence[str],
    environ: dict[str, str],
) -> list[str]:
    """Return the words that start the agent in its image; raises ContainerError."""
    container = launch.find_container(index)
    if container is not None:
        check_image(container)
    if container is None or settings.container.inside is ContainerInside.command:
        return [*words]
    inside = build_program_environment(environ) | {"PYTHONPATH": str(launch.paths.hpckit_zip)}
    spec = build_spec(launch, index, settings, config, container, inside)
    environ.clear()
    environ.update(inside)
    python = settings.container.python if words[0] == launch.python else words[0]
    return [*BUILD_WORDS[container.runtime](spec), python, *words[1:]]


def explain_agent_end(
    *, launch: Launch, index: int, words: Sequence[str], environ: Mapping[str, str]
) -> None:
    """Raise ContainerError if the image's Python is missing or too old, or no container starts here."""
    container = launch.find_container(index)
    if container is not None and "-P" in words:
        explain_failed_start(container.image, words[: words.index("-P")], environ)


def check_container(*, launch: Launch, index: int, settings: LaunchConfig) -> ContainerCheck | None:
    """Return what an agent finds in its container; None if it is in none."""
    container = launch.find_container(index)
    if container is None or settings.container.inside is ContainerInside.command:
        return None
    return check_inside(launch, container.image, settings)


def plan_step(
    *,
    launch: Launch,
    index: int,
    settings: LaunchConfig,
    config: Mapping[str, Any],
    environ: Mapping[str, str],
) -> ContainerStep | None:
    """Return how srun starts the run's agents in containers; None if not srun but the doorway does."""
    container = launch.find_container(index)
    is_inside = settings.container.inside is ContainerInside.agents
    if container is None or container.runtime is not ContainerRuntime.pyxis or not is_inside:
        return None
    check_image(container)
    variables = {"PYTHONPATH": str(launch.paths.hpckit_zip)}
    spec = build_spec(launch, index, settings, config, container, {**environ, **variables})
    if spec.gpu is ContainerGpu.nvidia:  # enroot's hook gives no GPU without these
        visible = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
        variables |= {name: value for name, value in visible.items() if name not in environ}
        spec = replace(spec, variables=tuple(sorted({*spec.variables, *variables})))
    options = tuple(BUILD_WORDS[container.runtime](spec))
    return ContainerStep(options=options, python=settings.container.python, variables=variables)


def wrap_command(
    *,
    launch: Launch,
    index: int,
    settings: LaunchConfig,
    config: Mapping[str, Any],
    words: Sequence[str],
    environ: dict[str, str],
) -> list[str]:
    """Return the words of a rank's command in its image, if only the command is in it."""
    container = launch.find_container(index)
    if container is None or settings.container.inside is not ContainerInside.command:
        return [*words]
    spec = build_spec(launch, index, settings, config, container, environ)
    named = {*settings.cluster.env, *settings.container.env, *settings.env}
    ours = {name for name in environ if name.startswith(OF_RANKS) or name in named} - {"PATH"}
    passed = build_program_environment(environ) | {name: environ[name] for name in ours}
    if container.runtime is ContainerRuntime.apptainer:
        told = ours | {name for name in ("PATH", "LD_LIBRARY_PATH") if name in settings.container.env}
        passed |= override_image_variables(spec.program, {name: environ[name] for name in told})
    spec = replace(spec, variables=tuple(sorted({*spec.variables, *ours})))
    environ.clear()
    environ.update(passed)
    program = settings.container.python if words[0] == "python" else words[0]
    return [*BUILD_WORDS[container.runtime](spec), program, *words[1:]]


def check_image(container: FrozenContainer) -> None:
    """Raise ContainerError unless the image is the one of the launch."""
    file = Path(container.file)
    try:
        if container.stamp and read_stamp(file) == container.stamp:
            return
        digest, _ = compute_digest(file)
    except OSError as error:
        raise ContainerError(
            f"image {container.file} cannot be read here: {error.strerror}",
            hint="keep images on a file system that all nodes see",
        ) from error
    if digest != container.digest:
        raise ContainerError(
            f"image {container.file} is {digest} now; the launch was frozen with {container.digest}",
            hint="launch again, or keep images by digest (cluster.image_dir)",
        )


def _find_file(settings: LaunchConfig, output_dir: Path, context: Context) -> Path:
    image = str(settings.container.image)
    if image.startswith(_REFERENCES):
        images = import_module("hpckit.features.containers.images")
        return Path(images.resolve_image(image, settings.cluster, output_dir, context.environ))
    # Not resolved: a node may reach the file by this path only.
    return Path(os.path.normpath(context.cwd / Path(image).expanduser()))


def _refuse_bad_settings(settings: LaunchConfig) -> None:
    asked = settings.container
    if asked.inside is ContainerInside.command and settings.command is None:
        raise ConfigError(
            "container.inside=command is for runs with a command, and this one has an entry_point",
            hint="leave container.inside out: the image then needs Python 3.11",
        )
    if asked.runtime is ContainerRuntime.pyxis and (
        settings.cluster.kind is not ClusterKind.slurm
        or do_runs_share_jobs(settings)
        or asked.inside is ContainerInside.command
    ):
        raise ConfigError(
            "container=pyxis is an option of srun: it cannot be used on this machine, for runs that share "
            "jobs, or with container.inside=command",
            hint="take another runtime: container=apptainer",
        )
    secret = next((name for name, value in asked.env.items() if is_secret_variable(name, value)), None)
    if secret is not None:
        raise ConfigError(
            f"container.env.{secret} looks like a secret, and the record shows container.env",
            hint=f"name it in env, whose secrets are kept apart: env.{secret}=…",
        )
