"""What every runtime is told of a container. Each runtime has a module beside this.

A runtime's module has the function `build_words(spec) -> list[str]`, which is pure: what stands before the
words that run inside.
"""

from __future__ import annotations

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
