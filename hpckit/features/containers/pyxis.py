"""Pyxis, the plugin of srun for enroot."""

from __future__ import annotations

from hpckit.features.containers.digests import ImageKind
from hpckit.features.containers.spec import ContainerSpec, Runtime


def build_words(spec: ContainerSpec) -> list[str]:
    """Return options of srun; a later step of the same name does not unpack the image again."""
    return [
        f"--container-image={spec.image}",
        f"--container-name={spec.name}",
        f"--container-mounts={','.join(spec.binds)}",
        f"--container-env={','.join(spec.variables)}",
        "--container-mount-home" if spec.home else "--no-container-mount-home",
        *("--container-writable", *spec.options),
    ]


RUNTIME = Runtime(programs=(), images=(ImageKind.squashfs,), build_words=build_words)
