"""Settings of what a node has before its ranks start: a container's image, data, an environment.

Like the rest of the configuration it has names, types and defaults only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from hpckit.model.plain import from_plain
from hpckit.values import dataclass, field, field_names

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
SQUASHFS_SUFFIXES = (".sqsh", ".squashfs", ".sqfs")
"""Of staged files that become folders on a node."""


class ContainerRuntime(StrEnum):
    """The program that starts a container."""

    none = "none"
    """no container"""
    auto = "auto"
    """`cluster.container_runtime`, else the first that is found"""
    apptainer = "apptainer"
    """Apptainer, or Singularity"""
    pyxis = "pyxis"
    """srun's `--container-image`, by the plugin pyxis and enroot"""
    charliecloud = "charliecloud"
    """`ch-run`"""
    podman = "podman"
    """Podman without root, or podman-hpc"""


class ContainerInside(StrEnum):
    """What runs in the container."""

    agents = "agents"
    """the agent of each node and all ranks; the image needs Python 3.11"""
    command = "command"
    """only `command`; the image needs no Python"""


class ContainerGpu(StrEnum):
    """Whose GPUs a container sees."""

    auto = "auto"
    """the node's, if `resources` ask for GPUs"""
    nvidia = "nvidia"
    """NVIDIA's"""
    rocm = "rocm"
    """AMD's"""
    none = "none"
    """none"""


class PackedEnvironment(StrEnum):
    """How the environment of `cluster.python` gets to the nodes."""

    none = "none"
    """it is used where it is"""
    auto = "auto"
    """`squashfs` where nodes can mount one, else `tar`"""
    squashfs = "squashfs"
    """one file, mounted on each node"""
    tar = "tar"
    """one file, unpacked on each node"""


class EnvironmentSource(StrEnum):
    """What makes the environment of a launch."""

    python = "python"
    """nothing: it is that of `cluster.python`"""
    uv = "uv"
    """`uv sync --frozen`, from uv.lock"""
    pixi = "pixi"
    """`pixi install --frozen`, from pixi.lock"""
    conda = "conda"
    """conda-lock, from conda-lock.yml, or conda, from conda-linux-64.lock"""


class KeptData(StrEnum):
    """How long staged data stays on a node."""

    job = "job"
    """until the run has ended for good: its next attempt finds it"""
    cache = "cache"
    """for later jobs, up to `data.cache_gb`; the longest unused goes first"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """The image that runs are in."""

    runtime: ContainerRuntime = ContainerRuntime.none
    """The program that starts the container."""
    image: str | None = None
    """A file (`.sif`, `.sqsh`), a folder, or a reference like `docker://NAME:TAG`, of which the launch
    keeps the digest."""
    digest: str | None = None
    """`sha256:…` of the image. Null: what it is at launch. Another image is refused."""
    python: str = "python3"
    """Python in the image, 3.11 or later."""
    inside: ContainerInside = ContainerInside.agents
    """What runs in the container."""
    mounts: list[str] = field(default_factory=list)
    """More folders, `SRC[:DST[:ro|rw]]`. Those that hpckit knows of are there, at the same path."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables inside. They win over the image's and `cluster.env`; `env` wins over them."""
    home: bool = False
    """Mount the home folder."""
    gpu: ContainerGpu = ContainerGpu.auto
    """Whose GPUs the container sees."""
    options: list[str] = field(default_factory=list)
    """More options for the program that starts it, last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenContainer:
    """The image that some `runs` of a launch are in, as it was at launch.

    `image` is what the user wrote, `file` the file or folder that it means. `stamp` is the file's inode, size
    and time of change: while they stay, so does the digest.
    """

    runtime: ContainerRuntime
    image: str
    digest: str
    platform: str
    file: str
    bytes: int
    stamp: tuple[int, ...]
    runs: tuple[int, ...] = ()

    def holds(self, run: int) -> bool:
        """Return whether a run is in this image."""
        place = bisect_left(self.runs, run)
        return self.runs[place : place + 1] == (run,)


def find_container_of_run(containers: Iterable[FrozenContainer], run: int) -> FrozenContainer | None:
    """Return the image that a run is in; None if it is in none."""
    return next((container for container in containers if container.holds(run)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerStep:
    """How srun starts agents in containers: its `options`, their Python, and variables of the step."""

    options: tuple[str, ...]
    python: str
    variables: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerCheck:
    """What an agent found in its container."""

    python: str
    torch: str = ""
    cuda: str = ""
    seconds: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What is on a node before its ranks start."""

    dir: str | None = None
    """Folder on the node. Null: the first of `cluster.node_scratch` that is there and large enough."""
    stage: dict[str, Any] = field(default_factory=dict)
    """What is brought to each node, by name: `{imagenet: {source: /shared/imagenet.sqsh}}`."""
    out: dict[str, Any] = field(default_factory=dict)
    """What is brought back from each node, by name: `{logs: {source: logs, every_s: 300}}`."""
    environment: PackedEnvironment = PackedEnvironment.none
    """How the environment of `cluster.python` gets to the nodes."""
    environment_from: EnvironmentSource = EnvironmentSource.python
    """What makes that environment at launch, once per lock file: it stands for `cluster.python` then."""
    keep: KeptData = KeptData.job
    """How long it stays there."""
    cache_gb: float = 100.0
    """Most that is kept with `keep=cache`."""
    margin_gb: float = 10.0
    """What has to stay free on the node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedData:
    """What was brought to a node. `how`: copied, tree (from another node), kept, mounted or linked."""

    node: str
    name: str
    bytes: int
    seconds: float
    how: str


def has_data_settings(config: Mapping[str, Any]) -> bool:
    """Return whether the section `data` of a configuration is ours: it has every key of the group `data`.

    Many programs have a section of this name.
    """
    section = config.get("data")
    return isinstance(section, Mapping) and {*field_names(Data)} <= {*section}


def find_data_settings(config: Mapping[str, Any]) -> Data | None:
    """Return the section `data` of a resolved configuration; None if it is not ours.

    Raises TypeError or ValueError for a value of the wrong type.
    """
    return from_plain(Data, config["data"]) if has_data_settings(config) else None
