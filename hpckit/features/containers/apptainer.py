"""The words of Apptainer and Singularity. They pass on all variables but PATH and LD_LIBRARY_PATH."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpckit.features.containers.spec import ContainerSpec
from hpckit.model.node_setup import ContainerGpu

PROGRAMS = ("apptainer", "singularity")
_GPU = {ContainerGpu.nvidia: ["--nv"], ContainerGpu.rocm: ["--rocm"]}


def build_words(spec: ContainerSpec) -> list[str]:
    """Return the words before those that run inside.

    Without --pid and --sharens: with the first the processes' numbers are others than outside, and with the
    second a signal does not arrive.
    """
    binds = [f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in spec.mounts]
    return [
        *(spec.program, "--quiet", "--nocolor", "exec"),
        *([] if spec.home else ["--no-home"]),
        *_GPU.get(spec.gpu, []),
        *(word for bind in binds for word in ("--bind", bind)),
        *spec.options,
        spec.image,
    ]


def override_image_variables(program: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return these variables as those that win over what the image itself sets."""
    prefix = "APPTAINERENV" if Path(program).name.startswith("apptainer") else "SINGULARITYENV"
    return {f"{prefix}_{name}": value for name, value in variables.items()}
