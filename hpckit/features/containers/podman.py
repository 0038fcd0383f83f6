"""The words of Podman without root, and of podman-hpc."""

from __future__ import annotations

from hpckit.features.containers.spec import ContainerSpec
from hpckit.model.node_setup import ContainerGpu

PROGRAMS = ("podman-hpc", "podman")
_GPU = {
    ContainerGpu.nvidia: ["--device=nvidia.com/gpu=all"],
    ContainerGpu.rocm: ["--device=/dev/kfd", "--device=/dev/dri"],
}


def build_words(spec: ContainerSpec) -> list[str]:
    """Return the words before those that run inside: a container as open as those of other runtimes.

    An image is a folder, or a name that `podman` knows.
    """
    # Its own files come into a layer above the image, which stays as it is.
    image = ["--rootfs", f"{spec.image}:O"] if spec.image.startswith("/") else [spec.image]
    mounts = (f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}" for mount in spec.mounts)
    return [
        *(spec.program, "run", "--rm", "--replace", f"--name={spec.name}"),
        *("--network=host", "--pid=host", "--ipc=host", "--uts=host"),
        *([] if spec.by_root else ["--userns=keep-id"]),
        *("--security-opt=label=disable", "--ulimit=host", "--entrypoint="),
        *_GPU.get(spec.gpu, []),
        *(f"--env={name}" for name in spec.variables),
        *(f"--volume={mount}" for mount in mounts),
        *spec.options,
        *image,
    ]
