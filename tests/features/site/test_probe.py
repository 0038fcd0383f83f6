"""`hpckit init --probe`: a small job on each kind of node, bounded, with nothing left behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from features.site.conftest import WRITTEN, Cluster

import hpckit.features.site as room

Maker = Callable[[Path], Cluster]

RUNS = """#!/bin/sh
echo "sbatch $*" >> {folder}/asked
case "$*" in *--test-only*) exit 0 ;; esac
number=$(grep -c -- --parsable {folder}/asked)
for word in "$@"; do
  case "$word" in
    --output=*) out=$(echo "${word#--output=}" | sed "s/%j/$number/; s/%%/%/g") ;;
    *.sh) script=$word ;;
  esac
done
{does}
echo "$number;manifold"
"""
QUEUE = """#!/bin/sh
echo "squeue $*" >> {folder}/asked
exit 1
"""
CANCEL = """#!/bin/sh
echo "scancel $*" >> {folder}/asked
"""


def with_jobs(cluster: Cluster, does: str) -> Cluster:
    """Give the cluster jobs that do this at once."""
    cluster.program("sbatch", RUNS.replace("{does}", does))
    for name, text in (("squeue", QUEUE), ("sacct", QUEUE), ("scancel", CANCEL)):
        cluster.program(name, text)
    return cluster


def test_probe_of_a_partition_is_one_small_job_for_each_kind_of_node(cluster_of: Maker) -> None:
    """Two minutes, one CPU, one GPU of the kind's own type, on none of the other kind's nodes."""
    cluster = with_jobs(cluster_of(WRITTEN), 'sh "$script" /usr/bin/python3 / > "$out"')
    said = cluster.init("lab", "--probe", "gpu", "--json")
    assert said.code == 0, said.err
    a100, h100 = (line for line in cluster.asked if "--parsable" in line)
    assert "--time=2 " in a100
    assert "--gpus-per-node=a100:1" in a100
    assert "--exclude=h[1-2],h3" in a100
    assert "--gpus-per-node=nvidia_h100_80gb_hbm3:1" in h100
    assert "--exclude=g[1-3],g4" in h100
    probes = json.loads(said.out)["probes"]
    assert [one["problem"] for one in probes] == ["", ""]
    assert probes[0]["said"]["python"]
    assert "seen by a job there" in cluster.file("lab").read_text()
    assert not any("scancel" in line for line in cluster.asked)
    assert sorted(path.name for path in cluster.project.iterdir()) == ["conf"]


def test_probe_that_stays_pending_is_cancelled_and_said(cluster_of: Maker) -> None:
    """What is known is written, and neither a job nor a folder is left."""
    cluster = with_jobs(cluster_of(WRITTEN), "true")
    said = cluster.init("lab", "--probe", "cpu", "--wait-s", "0")
    assert said.code == 0, said.err
    assert "partition cpu was not probed: job 1 wrote nothing" in said.err
    assert "cpu: not seen: job 1" in cluster.file("lab").read_text()
    assert "scancel 1" in cluster.asked
    assert sorted(path.name for path in cluster.project.iterdir()) == ["conf"]


def test_probe_that_sbatch_refuses_is_said_in_its_words(cluster_of: Maker) -> None:
    """The file is written without it."""
    cluster = with_jobs(cluster_of(WRITTEN), "echo 'sbatch: error: not you' >&2; exit 1")
    said = cluster.init("lab", "--probe", "cpu")
    assert said.code == 0
    assert "not you" in said.err


NODE = """cat > "$out" <<E
node=n$number
runtime=podman podman version 5.1
runtime=apptainer apptainer version 1.4.5
tmpdir=/local/job.7
scratch=/local/job.7 xfs 100 90
scratch=/tmp ext4 100 90
scratch=/dev/shm tmpfs 100 90
{more}
end=yes
E"""


def test_file_has_runtime_scratch_and_fabric_that_all_probed_nodes_have(cluster_of: Maker) -> None:
    """What only one kind of node has would not hold for the others."""
    more = "$([ $number = 1 ] && echo scratch=/nvme ext4 9 9; echo fabric=mlx5_0 InfiniBand 400 Gb/sec)"
    cluster = with_jobs(cluster_of(WRITTEN), NODE.replace("{more}", more))
    said = cluster.init("lab", "--probe", "gpu")
    assert said.code == 0, said.err
    keys = cluster.keys("lab")
    keys = keys.get("cluster", keys)
    assert keys["container_runtime"] == "apptainer"
    assert keys["node_scratch"] == ["$TMPDIR", "/tmp"]  # noqa: S108  # what the node said
    assert keys["fabric"] == "infiniband"
    assert cluster.hpckit("check", "cluster=lab", "command=true").code in (0, 2)
    both = "fabric=$([ $number = 3 ] && echo efa_0 || echo hsn0 Slingshot)"
    with_jobs(cluster, NODE.replace("{more}", both))
    assert cluster.init("other", "--probe", "gpu").code == 0
    assert "fabric: nodes have different ones" in cluster.file("other").read_text()


def test_srun_that_starts_containers_is_the_runtime(cluster_of: Maker) -> None:
    """Pyxis shows in srun's own help; no job and no question to the controller is needed."""
    cluster = cluster_of(WRITTEN)
    cluster.program("srun", "#!/bin/sh\necho slurm 24.11.1\necho '      --container-image=[USER@]'\n")
    assert cluster.init("lab").code == 0
    keys = cluster.keys("lab")
    assert keys.get("cluster", keys)["container_runtime"] == "pyxis"


def test_probe_of_no_partition_is_a_usage_error(cluster_of: Maker) -> None:
    """Before any job, and nothing is written."""
    cluster = with_jobs(cluster_of(WRITTEN), "true")
    said = cluster.init("lab", "--probe", "gpuu")
    assert said.code == 2
    assert "partitions: admin, bought, cpu, gpu" in said.err
    assert not cluster.file("lab").exists()


def test_script_of_the_probe_runs_where_nothing_is_installed(tmp_path: Path) -> None:
    """It ends well, and says what there is, with a PATH of the system alone and an odd TMPDIR."""
    odd = tmp_path / "a b"
    odd.mkdir()
    script = Path(room.__file__).with_name("probe.sh")
    done = subprocess.run(
        ["/bin/sh", script, "/nowhere/python", str(odd)],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(odd)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[-1] == "end=yes"
    assert any(line.startswith(f"scratch={odd} ") for line in lines)
    assert all("=" in line for line in lines)
    assert done.stderr == ""
    assert list(odd.iterdir()) == []
