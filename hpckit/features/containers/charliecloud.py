"""The words of Charliecloud (`ch-run`). It passes on all variables, and starts folders and SquashFS files."""

from __future__ import annotations

from hpckit.features.containers.spec import ContainerSpec

PROGRAMS = ("ch-run",)


def build_words(spec: ContainerSpec) -> list[str]:
    """Return the words before those that run inside.

    It has no option for GPUs: NVIDIA's libraries are in the image (`ch-fromhost --nvidia`) or in a mount. It
    has no read-only mounts either: what is mounted can be written if the user may.
    """
    return [
        spec.program,
        *(["--home"] if spec.home else []),
        *(f"--bind={mount.source}:{mount.target}" for mount in spec.mounts),
        *spec.options,
        *(spec.image, "--"),
    ]
