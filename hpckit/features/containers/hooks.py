"""Where containers take part in a run: what the core calls, by name (`hpckit/run_features.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from hpckit.context import Context
from hpckit.errors import ConfigError, ContainerError, SchedulerError
from hpckit.features.containers.check import check_inside, explain_failed_start
from hpckit.features.containers.digests import compute_digest, find_digest, read_kind_and_platform, read_stamp
from hpckit.features.containers.mounts import plan_mounts
from hpckit.features.containers.runtimes import (
    OF_RANKS,
    RUNTIMES,
    build_program_environment,
    build_spec,
    choose_runtime,
    find_program,
    list_named_mounts,
)
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.node_setup import (
    ContainerCheck,
    ContainerGpu,
    ContainerInside,
    ContainerRuntime,
    ContainerStep,
    FrozenContainer,
    find_container_of_run,
    find_data_settings,
)
from hpckit.model.plan import LaunchPlan, RunSpec
from hpckit.planning.jobs.shared_jobs import do_runs_share_jobs
from hpckit.planning.secrecy import is_secret_variable
from hpckit.record.launches import Launch
from hpckit.slurm.commands import SlurmCommands
from hpckit.values import replace


def find_container(*, settings: LaunchConfig, output_dir: Path, context: Context) -> FrozenContainer:
    """Return the image of a run as it is now; raises ConfigError."""
    asked = settings.container
    if not asked.image:
        raise ConfigError(
            f"container={asked.runtime} has no image",
            hint="container.image=FILE (.sif, .sqsh), a folder, or a reference such as docker://NAME:TAG",
        )
    _refuse_bad_settings(settings)
    list_named_mounts(settings)
    runtime = choose_runtime(settings, context.environ)
    if "://" in asked.image:
        find = import_module("hpckit.features.containers.images").resolve_image
        suffix = ".sif" if runtime is ContainerRuntime.apptainer else ".sqsh"
        file = Path(find(asked.image, suffix, settings.cluster, output_dir, context.environ).file)
    else:  # not resolved: a node may reach the file by this path only
        file = Path(os.path.normpath(context.cwd / Path(asked.image).expanduser()))
    try:
        stamp, (_, platform) = read_stamp(file), read_kind_and_platform(file)
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
        platform=platform,
        file=str(file),
        bytes=size,
        stamp=stamp,
    )


def find_problems(*, plan: LaunchPlan, run: RunSpec, context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the container of a run: an error if that is sure.

    What this machine does not have, the nodes of a cluster may: a warning.
    """
    settings, container = run.settings, find_container_of_run(plan.containers, run.index)
    if container is None:
        return
    kind, runtime = read_kind_and_platform(Path(container.file))[0], container.runtime
    if kind not in (taken := RUNTIMES[runtime].images):
        yield build_error_finding(
            "container.image",
            container.image,
            f"{container.file} is {kind or 'no image'}, and container={runtime} takes {' or '.join(taken)}",
            f"`hpckit image pull REFERENCE container={runtime}` makes what it takes; of an unpacked image "
            "name the folder that has its /usr or /bin",
        )
    try:
        plan_mounts(_list_paths(plan, run, context), list_named_mounts(settings))
    except ConfigError as error:
        yield build_error_finding("container.mounts", container.image, error.message, error.hint)
    on_nodes = plan.cluster.kind is ClusterKind.slurm
    for key, value, missing, hint in _find_missing(run, container, context, on_nodes=on_nodes):
        if on_nodes:
            words = f"{missing}; unless the nodes have it, runs fail there"
            yield build_warning_finding(key, value, words, hint)
        else:
            yield build_error_finding(key, value, missing, hint)


def _list_paths(plan: LaunchPlan, run: RunSpec, context: Context) -> list[str]:
    """Return the paths, as far as they are known before the launch, that a container is to show."""
    settings, data = run.settings, find_data_settings(run.config)
    named = [
        *(Path(plan.folder).parent, "" if settings.code.snapshot else context.cwd),
        *(settings.checkpoint.dir, settings.checkpoint.weights, *settings.cluster.node_scratch),
        *([] if data is None else [data.dir, *(item.get("source") for item in data.stage.values())]),
    ]
    return [path for path in map(str, filter(None, named)) if path.startswith("/")]


def _find_missing(
    run: RunSpec, container: FrozenContainer, context: Context, *, on_nodes: bool
) -> Iterator[tuple[str, str, str, str]]:
    """Yield what is not here: key, value, the words for that, and what to do."""
    cluster, runtime = run.settings.cluster, container.runtime
    try:
        find_program(runtime, cluster, context.environ)
    except ContainerError as error:
        if not on_nodes or not (cluster.modules or cluster.setup):  # which may bring it
            yield "cluster.container_bin", str(cluster.container_bin), error.message, error.hint
    if runtime is ContainerRuntime.pyxis and run.index == container.runs[0]:
        commands = SlurmCommands(bin_dir=cluster.bin_dir, environ=context.environ)
        with suppress(SchedulerError):  # which is said elsewhere
            if "--container-image" not in commands.run_with_all_output("srun", "--help"):
                hint = "is pyxis in plugstack.conf? otherwise: container=apptainer"
                yield "container.runtime", runtime, "srun has no --container-image here", hint
    for mount in list_named_mounts(run.settings, site=not on_nodes):
        if not os.path.exists(mount.source):  # noqa: PTH110
            hint = "correct it: SRC[:DST[:ro|rw]], where SRC is a folder or file of the nodes"
            yield "container.mounts", mount.source, f"{mount.source} is to be mounted, and is not here", hint


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
    return [*RUNTIMES[container.runtime].build_words(spec), python, *words[1:]]


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
    with suppress(ContainerError):  # what is wrong is said by each node's doorway, which starts instead
        check_image(container)
        variables = {"PYTHONPATH": str(launch.paths.hpckit_zip)}
        spec = build_spec(launch, index, settings, config, container, {**environ, **variables})
        if spec.gpu is ContainerGpu.nvidia:  # enroot's hook gives no GPU without these
            visible = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
            variables |= {name: value for name, value in visible.items() if name not in environ}
            spec = replace(spec, variables=tuple(sorted({*spec.variables, *variables})))
        options = tuple(RUNTIMES[container.runtime].build_words(spec))
        return ContainerStep(options=options, python=settings.container.python, variables=variables)
    return None


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
        tool = "APPTAINER" if Path(spec.program).name.startswith("apptainer") else "SINGULARITY"
        passed |= {f"{tool}ENV_{name}": environ[name] for name in told}  # they win over the image's own
    spec = replace(spec, variables=tuple(sorted({*spec.variables, *ours})))
    environ.clear()
    environ.update(passed)
    program = settings.container.python if words[0] == "python" else words[0]
    return [*RUNTIMES[container.runtime].build_words(spec), program, *words[1:]]


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
