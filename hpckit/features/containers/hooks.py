"""Where containers take part in a run: what the core calls, by name (`hpckit/run_features.py`)."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hpckit.errors import ConfigError, ContainerError
from hpckit.features.containers.check import check_inside
from hpckit.features.containers.digests import compute_digest, find_digest, read_stamp
from hpckit.features.containers.failed_start import explain_failed_start
from hpckit.features.containers.runtimes import (
    BUILD_WORDS,
    build_program_environment,
    build_spec,
    choose_runtime,
    list_named_mounts,
)
from hpckit.model.launch import LaunchConfig
from hpckit.model.node_setup import ContainerCheck, ContainerInside, ContainerRuntime, FrozenContainer
from hpckit.planning.secrecy import is_secret_variable
from hpckit.record.launches import Launch

_REFERENCES = ("docker://", "oras://", "library://", "shub://", "http://", "https://")


def find_container(
    *, settings: LaunchConfig, output_dir: Path, environ: Mapping[str, str]
) -> FrozenContainer:
    """Return the image of a run as it is now; raises ConfigError."""
    asked = settings.container
    if not asked.image:
        raise ConfigError(
            f"container={asked.runtime} has no image",
            hint="container.image=FILE (.sif, .sqsh), a folder, or a reference such as docker://NAME:TAG",
        )
    _refuse_bad_settings(settings)
    list_named_mounts(settings)
    runtime, file = choose_runtime(settings, environ), _find_file(settings, output_dir, environ)
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
        platform=f"linux/{platform.machine()}",
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
    if container is None or settings.container.inside is ContainerInside.command:
        return [*words]
    check_image(container)
    search = [environ.get("PYTHONPATH", ""), str(launch.paths.hpckit_zip)]
    spec = build_spec(launch, index, settings, config, container, environ)
    inside = build_program_environment(environ) | {"PYTHONPATH": os.pathsep.join(filter(None, search[1:]))}
    environ.clear()
    environ.update(inside)
    python = settings.container.python if words[0] == launch.python else words[0]
    before = [] if container.runtime is ContainerRuntime.pyxis else BUILD_WORDS[container.runtime](spec)
    return [*before, python, *words[1:]]


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
            hint="launch anew, or keep images by digest (cluster.image_dir)",
        )


def _find_file(settings: LaunchConfig, output_dir: Path, environ: Mapping[str, str]) -> Path:
    image = str(settings.container.image)
    if image.startswith(_REFERENCES):
        images = import_module("hpckit.features.containers.images")
        return Path(images.resolve_image(image, settings.cluster, output_dir, environ))
    # Not resolved: a node may reach the file by this path only.
    return Path(os.path.abspath(Path(image).expanduser()))  # noqa: PTH100


def _refuse_bad_settings(settings: LaunchConfig) -> None:
    asked = settings.container
    if asked.inside is ContainerInside.command and settings.command is None:
        raise ConfigError(
            "container.inside=command is for runs with a command, and this one has an entry_point",
            hint="leave container.inside out: the image then needs Python 3.11",
        )
    secret = next((name for name, value in asked.env.items() if is_secret_variable(name, value)), None)
    if secret is not None:
        raise ConfigError(
            f"container.env.{secret} looks like a secret, and the record shows container.env",
            hint=f"name it in env, whose secrets are kept apart: env.{secret}=…",
        )
