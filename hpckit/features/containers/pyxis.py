"""The words of pyxis, which are options of srun: the plugin makes each task of the step a container's."""

from __future__ import annotations

from hpckit.features.containers.spec import ContainerSpec


def build_words(spec: ContainerSpec) -> list[str]:
    """Return the options of srun. A later step with the same name does not unpack the image again."""
    binds = (f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in spec.mounts)
    return [
        f"--container-image={spec.image}",
        f"--container-name={spec.name}",
        f"--container-mounts={','.join(binds)}",
        f"--container-env={','.join(spec.variables)}",
        "--container-mount-home" if spec.home else "--no-container-mount-home",
        "--container-writable",
        *spec.options,
    ]
