"""Apptainer, or Singularity."""

from __future__ import annotations

from hpckit.features.containers.digests import ImageKind
from hpckit.features.containers.spec import ContainerSpec, Runtime
from hpckit.model.node_setup import ContainerGpu


def build_words(spec: ContainerSpec) -> list[str]:
    """Apptainer and Singularity pass on all variables but PATH and LD_LIBRARY_PATH.

    Without --pid and --sharens: with the first the processes' numbers are others than outside, and with the
    second a signal does not arrive.
    """
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
