"""Podman without root, and podman-hpc."""

from __future__ import annotations

from hpckit.features.containers.digests import ImageKind
from hpckit.features.containers.spec import ContainerSpec, Runtime
from hpckit.model.node_setup import ContainerGpu


def build_words(spec: ContainerSpec) -> list[str]:
    """Return the words of a container that is as open as those of other runtimes."""
    gpu = {
        ContainerGpu.nvidia: ["--device=nvidia.com/gpu=all"],
        ContainerGpu.rocm: ["--device=/dev/kfd", "--device=/dev/dri"],
    }
    return [
        *(spec.program, "run", "--rm", "--replace", f"--name={spec.name}"),
        *("--network=host", "--pid=host", "--ipc=host", "--uts=host"),
        *([] if spec.by_root else ["--userns=keep-id"]),
        *("--security-opt=label=disable", "--ulimit=host", "--entrypoint="),
        *gpu.get(spec.gpu, []),
        *(f"--env={name}" for name in spec.variables),
        *(f"--volume={bind}" for bind in spec.binds),
        # Its own files come into a layer above the image, which stays as it is.
        *(*spec.options, "--rootfs", f"{spec.image}:O"),
    ]


RUNTIME = Runtime(programs=("podman-hpc", "podman"), images=(ImageKind.folder,), build_words=build_words)
