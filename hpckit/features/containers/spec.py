"""One container, and what starts one: each runtime has a file of its name here, with its `RUNTIME`."""

from __future__ import annotations

from collections.abc import Callable

from hpckit.features.containers.digests import ImageKind
from hpckit.features.containers.mounts import Mount
from hpckit.model.node_setup import ContainerGpu
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container: `program` starts it, `name` is its name where it has one.

    `variables` are the names of those that pass from outside; their values are in the environment of the
    program. `options` are the user's, and come last.
    """

    program: str
    image: str
    name: str
    mounts: tuple[Mount, ...]
    variables: tuple[str, ...]
    gpu: ContainerGpu = ContainerGpu.none
    home: bool = False
    by_root: bool = False
    options: tuple[str, ...] = ()

    @property
    def binds(self) -> list[str]:
        """The mounts as most runtimes take them."""
        return [f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in self.mounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What starts containers: one of `programs`, from `images`, by words of the pure `build_words`."""

    programs: tuple[str, ...]
    images: tuple[ImageKind, ...]
    build_words: Callable[[ContainerSpec], list[str]]
