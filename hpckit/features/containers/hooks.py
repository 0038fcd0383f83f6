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
from hpckit.features.containers.check import check_container, explain_failed_start  # noqa: F401  # a hook
from hpckit.features.containers.digests import compute_digest, find_digest, read_kind_and_platform, read_stamp
from hpckit.features.containers.mounts import plan_mounts
from hpckit.features.containers.runtimes import (
    OF_RANKS,
    RUNTIMES,
    build_program_environment,
    build_spec,
    choose_gpu,
    choose_runtime,
    find_program,
    list_named_mounts,
)
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.node_setup import (
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
    runtime = choose_runtime(settings, context.environ)
    _refuse_bad_settings(settings, runtime)
    list_named_mounts(settings)
    image, wanted = str(settings.container.image), settings.container.digest
    if "://" in image:
        find = import_module("hpckit.features.containers.images").resolve_image
        suffix = ".sif" if runtime is ContainerRuntime.apptainer else ".sqsh"
        file = Path(find(image, suffix, settings.cluster, output_dir, context.environ).file)
    else:  # not resolved: a node may reach the file by this path only
        file = Path(os.path.normpath(context.cwd / Path(image).expanduser()))
    try:
        stamp, (_, platform) = read_stamp(file), read_kind_and_platform(file)
        digest, size = find_digest(file, stamp, output_dir)
    except OSError as error:
        hint = (
            "name a file or folder that all nodes can read, or a reference with a scheme: docker://NAME:TAG"
        )
        raise ConfigError(f"container.image={image} cannot be read: {error.strerror}", hint=hint) from error
    if wanted not in {None, digest}:
        hint = "use the image that has this digest, or leave container.digest out"
        raise ConfigError(f"image {image} is {digest}, and container.digest is {wanted}", hint=hint)
    return FrozenContainer(
        runtime=runtime,
        image=image,
        digest=digest,
        platform=platform,
        file=str(file),
        bytes=size,
        stamp=stamp,
    )


def find_problems(*, plan: LaunchPlan, run: RunSpec, context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the container of a run; what only nodes may have is a warning."""
    container = find_container_of_run(plan.containers, run.index)
    if container is None:
        return
    file, runtime = Path(container.file), container.runtime
    kind, _ = read_kind_and_platform(file)
    if kind not in (taken := RUNTIMES[runtime].images):
        words = f"{file} is {kind or 'no image'}, and container={runtime} takes {' or '.join(taken)}"
        hint = "`hpckit image pull` makes .sif and .sqsh files; of a folder, name that which has /usr or /bin"
        yield build_error_finding("container.image", container.image, words, hint)
    try:
        plan_mounts(_list_paths(plan, run, context), list_named_mounts(run.settings))
    except ConfigError as error:
        yield build_error_finding("container.mounts", container.image, error.message, error.hint)
    on_nodes = plan.cluster.kind is ClusterKind.slurm
    build = build_warning_finding if on_nodes else build_error_finding
    then = "; unless the nodes have it, runs fail there" if on_nodes else ""
    for key, value, missing, hint in _find_missing(run, container, context, on_nodes=on_nodes):
        yield build(key, value, f"{missing}{then}", hint)


def _list_paths(plan: LaunchPlan, run: RunSpec, context: Context) -> list[str]:
    """Return the paths, as far as they are known before the launch, that a container is to show."""
    settings, data = run.settings, find_data_settings(run.config)
    named = [
        *(Path(plan.folder).parent, "" if settings.code.snapshot else context.cwd),
        *(settings.checkpoint.dir, settings.checkpoint.weights, *settings.cluster.node_scratch),
        *([] if data is None else [data.dir, *(item.get("source") for item in data.stage.values())]),
    ]
    local = [Path(path).expanduser() for path in map(str, filter(None, named)) if "://" not in path]
    return [os.path.normpath(context.cwd / path) for path in local]


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


def explain_agent_end(*, launch: Launch, index: int, words: list[str], environ: Mapping[str, str]) -> None:
    """Raise ContainerError if the image's Python is missing or too old, or no container starts here."""
    container = launch.find_container(index)
    if container is not None and "-P" in words:
        explain_failed_start(container.image, words[: words.index("-P")], environ)


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
    if container is None or container.runtime is not ContainerRuntime.pyxis:
        return None
    with suppress(ContainerError):  # what is wrong is said by each node's doorway, which starts instead
        check_image(container)
        variables = {"PYTHONPATH": str(launch.paths.hpckit_zip)}
        if choose_gpu(settings) is ContainerGpu.nvidia:  # enroot's hook gives no GPU without these
            visible = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
            variables |= {name: value for name, value in visible.items() if name not in environ}
        spec = build_spec(launch, index, settings, config, container, {**environ, **variables})
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
        # It passes on all variables but these two.
        told = ours | {name for name in ("PATH", "LD_LIBRARY_PATH") if name in settings.container.env}
        tool = "APPTAINER" if Path(spec.program).name.startswith("apptainer") else "SINGULARITY"
        # They win over the image's own, and no shell evaluates them.
        passed |= {f"{tool}ENV_{name}": environ[name] for name in told} | {f"{tool}_NO_EVAL": "1"}
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
        hint = "keep images on a file system that all nodes see"
        raise ContainerError(f"image {file} cannot be read here: {error.strerror}", hint=hint) from error
    if digest != container.digest:
        changed = f"image {file} is {digest} now; the launch was frozen with {container.digest}"
        raise ContainerError(changed, hint="launch again, or keep images by digest (cluster.image_dir)")


def _refuse_bad_settings(settings: LaunchConfig, runtime: ContainerRuntime) -> None:
    asked = settings.container
    for_command = asked.inside is ContainerInside.command
    has_own_srun = settings.cluster.kind is ClusterKind.slurm and not do_runs_share_jobs(settings)
    if not asked.image:
        hint = "container.image=FILE (.sif, .sqsh), a folder, or a reference such as docker://NAME:TAG"
        raise ConfigError(f"container={runtime} has no image", hint=hint)
    if for_command and settings.command is None:
        message = "container.inside=command is for runs with a command, and this one has an entry_point"
        raise ConfigError(message, hint="leave container.inside out: the image then needs Python 3.11")
    if runtime is ContainerRuntime.pyxis and (for_command or not has_own_srun):
        raise ConfigError(
            "container=pyxis is an option of srun: it cannot be used on this machine, for runs that share "
            "jobs, or with container.inside=command",
            hint="take another runtime: container=apptainer",
        )
    secret = next((name for name, value in asked.env.items() if is_secret_variable(name, value)), None)
    if secret is not None:
        message = f"container.env.{secret} looks like a secret, and the record shows container.env"
        raise ConfigError(message, hint=f"name it in env, whose secrets are kept apart: env.{secret}=…")
