"""The words that start a container, by runtime: as written down here, and nothing quoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.features.containers.mounts import Mount
from hpckit.features.containers.runtimes import RUNTIMES, find_program
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
    "|--volume=/out:/work|--more|--rootfs|/images/a b.sif:O",
    "pyxis": "--container-image=/images/a b.sif|--container-name=hpckit_0123456789ab_17"
    "|--container-mounts=/data/x y:/data/x y:ro,/out:/work|--container-env=PYTHONPATH,SLURM_JOB_ID"
    "|--no-container-mount-home|--container-writable|--more",
}


@pytest.mark.parametrize("runtime", WORDS)
def test_words_of_a_runtime(runtime: str) -> None:
    """All that a specification says is in them."""
    assert "|".join(RUNTIMES[ContainerRuntime(runtime)].build_words(SPEC)) == WORDS[runtime]


def test_every_runtime_has_words_and_is_known_by_its_program() -> None:
    """But `auto`, which is another one, and pyxis, whose program is srun."""
    real = {*ContainerRuntime} - {ContainerRuntime.none, ContainerRuntime.auto}
    assert RUNTIMES.keys() == real == {*map(ContainerRuntime, WORDS)}
    assert {kind for kind in RUNTIMES if not RUNTIMES[kind].programs} == {ContainerRuntime.pyxis}


@pytest.mark.parametrize(("gpu", "word"), [(ContainerGpu.rocm, "--rocm"), (ContainerGpu.none, None)])
def test_apptainer_shows_what_is_asked_for(gpu: ContainerGpu, word: str | None) -> None:
    """And its option for the home folder is that to leave it out."""
    words = RUNTIMES[ContainerRuntime.apptainer].build_words(replace(SPEC, home=True, gpu=gpu))
    assert {"--nv", "--rocm", "--no-home"} & {*words} == ({word} if word else set())


def test_program_that_a_site_names_is_that_of_its_runtime(tmp_path: Path) -> None:
    """Another runtime is looked for in PATH; a site that names no runtime means the one that is asked for."""
    for name in ("apptainer", "podman", "p"):
        (tmp_path / name).touch(mode=0o755)
    there, path = str(tmp_path / "apptainer"), {"PATH": str(tmp_path)}
    site = Cluster(container_runtime=ContainerRuntime.apptainer, container_bin=there)
    assert find_program(ContainerRuntime.apptainer, site, {}) == there
    assert find_program(ContainerRuntime.podman, site, path) == str(tmp_path / "podman")
    own = Cluster(container_bin=str(tmp_path / "p"))
    assert find_program(ContainerRuntime.podman, own, path) == own.container_bin
