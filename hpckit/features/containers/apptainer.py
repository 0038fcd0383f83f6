"""Apptainer, or Singularity."""

from __future__ import annotations

from hpckit.features.containers.digests import ImageKind
from hpckit.features.containers.spec import ContainerSpec, Runtime
from hpckit.model.node_setup import ContainerGpu


def build_words(spec: ContainerSpec) -> list[str]:
    """Return the words; --pid would change the processes' numbers, and with --sharens no signal arrives."""
    gpu = {ContainerGpu.nvidia: ["--nv"], ContainerGpu.rocm: ["--rocm"]}
    return [
        *(spec.program, "--quiet", "--nocolor", "exec"),
        *([] if spec.home else ["--no-home"]),
        *gpu.get(spec.gpu, []),
        *(word for bind in spec.binds for word in ("--bind", bind)),
        *(*spec.options, spec.image),
    ]


RUNTIME = Runtime(
    programs=("apptainer", "singularity"),
    images=(ImageKind.sif, ImageKind.squashfs, ImageKind.folder),
    build_words=build_words,
)
