"""Charliecloud."""

from __future__ import annotations

from hpckit.features.containers.digests import ImageKind
from hpckit.features.containers.spec import ContainerSpec, Runtime


def build_words(spec: ContainerSpec) -> list[str]:
    """Return the words; it has no options for GPUs and read-only mounts, and passes on all variables."""
    return [
        *(spec.program, *(["--home"] if spec.home else [])),
        *(f"--bind={mount.source}:{mount.target}" for mount in spec.mounts),
        *(*spec.options, spec.image, "--"),
    ]


RUNTIME = Runtime(
    programs=("ch-run",), images=(ImageKind.folder, ImageKind.squashfs), build_words=build_words
)
