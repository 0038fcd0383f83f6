"""What `hpckit doctor --env` tells of a node of a real Slurm, through a real launch."""

from __future__ import annotations

import json
from typing import Any

import pytest
from integration.project import Project

pytestmark = pytest.mark.slurm


@pytest.mark.main
def test_doctor_compares_both_sides_and_leaves_nothing(sandbox: Any, project: Project) -> None:
    """A node of the cluster tells of itself, sees the same output folder, and the launch goes."""
    done = project.hpckit("doctor", "--env", "cluster=sandbox", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["node"]["host"] in sandbox.nodes
    assert said["node"]["host"] != said["here"]["host"]
    assert said["same_output_folder"] is True
    assert said["node"]["slurm"]["version"].split(".")[:2] == (sandbox.options["release"].split(".")[:2])
    least, most = said["clock_offset_s"]
    assert least <= 0 <= most
    assert said["node"]["variables"]["OMP_NUM_THREADS"] == "1"
    assert [one for one in said["findings"] if one["level"] == "error"] == []
    assert list(project.outputs.glob("*")) == []
    assert list(project.outputs.glob(".environment-*")) == []


@pytest.mark.usefixtures("sandbox")
def test_doctor_keeps_and_names_a_launch_that_told_nothing(project: Project) -> None:
    """Where the run ends without facts, the last lines of its log say why, and it stays."""
    broken = "cluster.setup=['echo no such module >&2; exit 7']"
    done = project.hpckit("doctor", "--env", "cluster=sandbox", broken)
    assert done.returncode == 1
    assert "no such module" in done.stderr
    assert "hpckit rm" in done.stderr
    assert "Traceback" not in done.stderr
    assert project.launch_folder().name.startswith("environment-")
    assert list(project.outputs.glob(".environment-*")) == []


@pytest.mark.usefixtures("sandbox")
def test_doctor_is_refused_what_slurm_would_refuse(project: Project) -> None:
    """A partition that does not exist is a usage error, before anything is submitted."""
    words = ("cluster=sandbox", "resources.partition=batchh", "cluster.partitions=[]")
    done = project.hpckit("doctor", "--env", *words)
    assert done.returncode == 2
    assert "batchh" in done.stderr
    assert list(project.outputs.glob("*")) == []
