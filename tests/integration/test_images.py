"""`hpckit image pull --on PARTITION` on a real Slurm: a job on a node makes the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from containers_world import CheapImage, make_cheap_root
from image_registry import image_registry
from integration.project import Project

from hpckit.sandbox.settings import CONTROLLER_ADDRESS

pytestmark = pytest.mark.slurm


def test_sandbox_starts_containers_on_its_nodes(
    sandbox: Any, apptainer: str, cheap_image: CheapImage
) -> None:
    """By the program that `cluster=sandbox` names; bringing it once more changes nothing else."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in sandbox.options.items()]
    assert str(sandbox.bin_dir) in sandbox.act("up", *options, "--with=apptainer")
    program = sandbox.bin_dir / "apptainer"
    assert program.resolve() == Path(apptainer).resolve()
    words = (program, "-q", "exec", "-B", *cheap_image.mounts, cheap_image.folder, "/usr/bin/ls", "/")
    assert "IMAGE" in sandbox.slurm("srun", *map(str, words)).split()


@pytest.mark.main
def test_job_on_a_node_pulls_into_the_folder_of_images(
    sandbox: Any, project: Project, apptainer: str, tmp_path: Path
) -> None:
    """Once; a program that fails there says why, and neither leaves a job or a file."""
    make_cheap_root(tmp_path / "root")
    with image_registry(CONTROLLER_ADDRESS) as registry:
        digest = registry.push("team/app", "1", tmp_path / "root")
        words = ("image", "pull", f"docker://{registry.host}/team/app:1", "cluster=sandbox", "--json")
        program = f"cluster.container_bin={apptainer}"
        done = project.hpckit(*words, program, "--plain-http", "--on", "batch")
        assert done.returncode == 0, done.stderr
        (image,) = json.loads(done.stdout)["images"]
        assert (image["digest"], image["partition"]) == (digest, "batch")
        again = project.hpckit(*words, program, "--plain-http", "--on", "batch")
        assert json.loads(again.stdout)["new"] is False, again.stderr
        failed = project.hpckit(*words, "cluster.container_bin=false", "--plain-http", "--on", "urgent")
        assert failed.returncode == 1, failed.stderr
        refused = project.hpckit(*words, program, "--plain-http", "--on", "nowhere")
        assert refused.returncode == 3, refused.stderr
    folder = Path(image["file"]).parent
    assert sorted(path.name for path in folder.iterdir()) == [image["name"], f"{image['name']}.json"]
    sandbox.wait_until(lambda: not sandbox.queued(), "no job is left")
