"""Charliecloud."""

from __future__ import annotations

from hpckit.features.containers.digests import ImageKind
from hpckit.features.containers.spec import ContainerSpec, Runtime


def build_words(spec: ContainerSpec) -> list[str]:
    """`ch-run` passes on all variables.

    It has no option for GPUs: NVIDIA's libraries are in the image (`ch-fromhost --nvidia`) or in a mount. It
    has no read-only mounts either: what is mounted can be written if the user may.
    """
    return [
        *(spec.program, *(["--home"] if spec.home else [])),
        *(f"--bind={mount.source}:{mount.target}" for mount in spec.mounts),
        *(*spec.options, spec.image, "--"),
    ]


RUNTIME = Runtime(
    programs=("ch-run",), images=(ImageKind.folder, ImageKind.squashfs), build_words=build_words
)
