"""`hpckit init` on a real Slurm: the file that it writes launches without an edit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from integration.project import Project

pytestmark = pytest.mark.slurm


@pytest.mark.release
@pytest.mark.main
def test_written_file_launches_without_an_edit(sandbox: Any, project: Project) -> None:
    """With a job on a node that told of itself; and the file agrees with the cluster from then on."""
    bin_dir = f"--bin-dir={sandbox.bin_dir}"
    done = project.hpckit("init", "lab", bin_dir, "--probe", "batch", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    (probe,) = said["probes"]
    assert probe["said"]["node"][0] in sandbox.nodes
    assert said["release"].startswith(sandbox.options["release"])
    assert [one["takes"] for one in said["tried"]] == [True, True]
    assert project.hpckit("init", "lab", bin_dir, "--diff").returncode == 0
    words = ("experiment=function", "entry_point=task:fine", "cluster=lab", "resources=one_gpu")
    done = project.hpckit("launch", *words, "runtime.device=cpu", "--wait")
    assert done.returncode == 0, done.stderr
    assert "1 completed" in done.stdout + done.stderr


def test_check_warns_of_a_file_that_the_cluster_has_left_behind(sandbox: Any, project: Project) -> None:
    """A partition that is gone, a limit that is lower, GPUs that are fewer: one warning each."""
    project.hpckit("init", "lab", f"--bin-dir={sandbox.bin_dir}")
    file = project.folder / "conf" / "cluster" / "lab.yaml"
    text = file.read_text().replace("partitions: [batch,", "partitions: [gone, batch,")
    file.write_text(
        text.replace("batch: 10080", "batch: 99999").replace("batch: {gpu: 4}", "batch: {gpu: 8}")
    )
    words = ("experiment=function", "entry_point=task:fine", "cluster=lab", "resources=cpu_pair")
    said = json.loads(project.hpckit("check", "--json", *words).stdout)
    keys = {one["key"] for one in said["findings"] if one["severity"] == "warning"}
    assert {"cluster.partitions", "cluster.time_limits_min.batch", "cluster.gpu_types.batch"} <= keys
    assert said["ok"] is True
