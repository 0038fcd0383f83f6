"""The words that start a container, by runtime: as written down here, and nothing quoted."""

from __future__ import annotations

import pytest

from hpckit.features.containers.mounts import Mount
from hpckit.features.containers.runtimes import BUILD_WORDS, PROGRAMS, find_named_program
from hpckit.features.containers.spec import ContainerSpec
from hpckit.model.launch import Cluster
from hpckit.model.node_setup import ContainerGpu, ContainerRuntime
from hpckit.values import replace

SPEC = ContainerSpec(
    program="/bin/prog",
    image="/images/a b.sif",
    name="hpckit_0123456789ab_17",
    mounts=(
        Mount(source="/data/x y", target="/data/x y", read_only=True),
        Mount(source="/out", target="/work"),
    ),
    variables=("PYTHONPATH", "SLURM_JOB_ID"),
    gpu=ContainerGpu.nvidia,
    options=("--more",),
)
WORDS = {
    "apptainer": "/bin/prog|--quiet|--nocolor|exec|--no-home|--nv|--bind|/data/x y:/data/x y:ro|--bind"
    "|/out:/work|--more|/images/a b.sif",
    "charliecloud": "/bin/prog|--bind=/data/x y:/data/x y|--bind=/out:/work|--more|/images/a b.sif|--",
    "podman": "/bin/prog|run|--rm|--replace|--name=hpckit_0123456789ab_17|--network=host|--pid=host"
    "|--ipc=host|--uts=host|--userns=keep-id|--security-opt=label=disable|--ulimit=host|--entrypoint="
    "|--device=nvidia.com/gpu=all|--env=PYTHONPATH|--env=SLURM_JOB_ID|--volume=/data/x y:/data/x y:ro"
    "|--volume=/out:/work:rw|--more|--rootfs|/images/a b.sif:O",
    "pyxis": "--container-image=/images/a b.sif|--container-name=hpckit_0123456789ab_17"
    "|--container-mounts=/data/x y:/data/x y:ro,/out:/work|--container-env=PYTHONPATH,SLURM_JOB_ID"
    "|--no-container-mount-home|--container-writable|--more",
}


@pytest.mark.parametrize("runtime", WORDS)
def test_words_of_a_runtime(runtime: str) -> None:
    """All that a specification says is in them."""
    assert "|".join(BUILD_WORDS[ContainerRuntime(runtime)](SPEC)) == WORDS[runtime]


def test_every_runtime_has_words_and_is_known_by_its_program() -> None:
    """But `auto`, which is another one, and pyxis, whose program is srun."""
    real = {*ContainerRuntime} - {ContainerRuntime.none, ContainerRuntime.auto}
    assert BUILD_WORDS.keys() == real
    assert PROGRAMS.keys() == real - {ContainerRuntime.pyxis}


@pytest.mark.parametrize(("gpu", "word"), [(ContainerGpu.rocm, "--rocm"), (ContainerGpu.none, None)])
def test_apptainer_shows_what_is_asked_for(gpu: ContainerGpu, word: str | None) -> None:
    """And its option for the home folder is that to leave it out."""
    words = BUILD_WORDS[ContainerRuntime.apptainer](replace(SPEC, home=True, gpu=gpu))
    assert {"--nv", "--rocm", "--no-home"} & {*words} == ({word} if word else set())


def test_program_that_a_site_names_is_that_of_its_runtime() -> None:
    """Another runtime is looked for in PATH; a site that names no runtime means the one that is asked for."""
    site = Cluster(container_runtime=ContainerRuntime.apptainer, container_bin="/opt/apptainer")
    assert find_named_program(ContainerRuntime.apptainer, site) == "/opt/apptainer"
    assert find_named_program(ContainerRuntime.podman, site) is None
    assert find_named_program(ContainerRuntime.podman, Cluster(container_bin="/opt/p")) == "/opt/p"
