"""`hpckit init` writes what Slurm says, with its sources, and nothing that it does not know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_world import verb_said
from features.site.conftest import DATA, RELEASES, WRITTEN, Cluster

Maker = Callable[[Path], Cluster]


@pytest.mark.parametrize("release", RELEASES)
def test_file_of_a_recorded_cluster_composes_and_says_what_slurm_said(
    release: str, cluster_of: Maker
) -> None:
    """On each release: its name is the cluster's, and a launch takes all its keys."""
    cluster = cluster_of(DATA / release)
    said = cluster.init()
    assert said.code == 0, said.err
    keys = cluster.keys("sandbox")
    assert keys["partition"] == "batch"
    assert keys["partitions"] == ["batch", "urgent"]
    assert keys["time_limits_min"] == {"batch": 10080, "urgent": 10080}
    assert keys["gpu_types"] == {"batch": {"gpu": 4}, "urgent": {"gpu": 4}}
    assert (keys["gpus_per_node"], keys["cpus_per_node"]) == (4, 16)
    given = ("cluster=sandbox", "cluster.account=recorded_team", "experiment=digits")
    composed = verb_said("launch", *given, "--cfg", "cluster", folder=cluster.project)
    assert composed.code == 0, composed.err
    assert f"Slurm {release}" in cluster.file("sandbox").read_text()


@pytest.mark.parametrize("release", RELEASES)
def test_a_cluster_is_asked_six_questions_and_few_trials(release: str, cluster_of: Maker) -> None:
    """Its controller and its database are not asked twice, and sbatch only tests."""
    cluster = cluster_of(DATA / release)
    assert cluster.init("lab").code == 0
    asked = cluster.asked
    assert len([line for line in asked if not line.startswith("sbatch")]) <= 6
    trials = [line for line in asked if line.startswith("sbatch")]
    assert 0 < len(trials) <= 5
    assert all("--test-only" in line for line in trials)


def test_every_value_has_its_source_and_its_day(cluster_of: Maker) -> None:
    """A reader of the file can ask again."""
    cluster = cluster_of(DATA / RELEASES[0])
    cluster.init("lab")
    text = cluster.file("lab").read_text()
    day = text.partition("written by `hpckit init` on ")[2][:10]
    for key in ("partition", "partitions", "time_limits_min", "gpus_per_node", "gpu_types", "cpus_per_node"):
        (line,) = (line for line in text.splitlines() if line.startswith(f"{key}:"))
        assert day in line
        assert "sinfo" in line or "scontrol" in line


def test_what_differs_within_a_cluster_is_left_to_each_run(cluster_of: Maker) -> None:
    """No default partition, several accounts, unlike nodes: the file chooses none of them."""
    cluster = cluster_of(WRITTEN)
    said = cluster.init()
    assert said.code == 0, said.err
    keys = cluster.keys("manifold")
    assert keys["partition"] == keys["account"] == "???"
    assert "choose account there: yours: physics, chemistry" in said.out
    assert "chemistry in gpu" in said.out
    assert "gpus_per_node" not in keys
    assert keys["cpus_per_node"] == 112
    assert keys["time_limits_min"] == {"gpu": 2880, "slices": 720, "nightly": 480}
    assert keys["gpu_types"] == {
        "gpu": {"a100": 4, "nvidia_h100_80gb_hbm3": 8},
        "slices": {"a100": 1, "a100_1g.10gb": 21},
    }
    refused = verb_said(
        "launch", "cluster=manifold", "experiment=digits", "--dry-run", folder=cluster.project
    )
    assert refused.code == 2
    assert "cluster.partition, cluster.account are mandatory" in refused.err


def test_partitions_that_refuse_the_user_are_named_with_the_reason(cluster_of: Maker) -> None:
    """For root, for another group, for other accounts; a hidden one that takes the user stays."""
    cluster = cluster_of(WRITTEN)
    said = cluster.init("lab", "--json")
    assert cluster.keys("lab")["partitions"] == ["gpu", "slices", "cpu", "nightly"]
    assert json.loads(said.out)["closed_partitions"] == {
        "admin": "RootOnly=YES",
        "theirs": "AllowGroups=biology_of_others",
        "bought": "AllowAccounts=rich",
    }
    assert "nightly: 20 nodes, 8 h at most, hidden, now DOWN" in cluster.file("lab").read_text()


@pytest.mark.parametrize(
    "words",
    [
        "gpu: 4 nodes with 64 CPUs (2:32:1), 503 GB, 4 GPUs of type a100, 879 GB of local disk",
        "for each GPU 16 CPUs, 125.7 GB",
        "features a100, ib",
        "QOS normal: PreemptMode=CANCEL: a preempted run has 50 s to save (GraceTime 20 s, KillWait 30 s)",
        "Slurm ends it for good, and hpckit submits it again",
        "QOS debug: PreemptMode=REQUEUE: a preempted run has 150 s to save",
        "job_container/tmpfs: each job has a /tmp of its own",
        "TopologyPlugin=block: blocks of nodes: resources.segment=N keeps N nodes in one",
        "--segment=1 in gpu: taken",
        "slices: 2 nodes, 12 h at most, 1 node a job at most, QOS slices, only QOS debug, normal",
        "debug: 30 min at most, 2 jobs (user)",
        "physics: QOS normal, debug, 100 jobs",
        "chemistry: only in partition gpu, QOS normal, 1 d at most",
    ],
)
def test_comments_say_what_it_means_for_a_run(words: str, cluster_of: Maker) -> None:
    """Nodes with the share of each GPU, preemption with the time to save, settings with what they do."""
    cluster = cluster_of(WRITTEN)
    cluster.init("lab")
    text = " ".join(cluster.file("lab").read_text().replace("\n#", " ").split())
    assert words in text


def test_file_is_never_overwritten(cluster_of: Maker) -> None:
    """What the user has written stays, and the message says how to compare it."""
    cluster = cluster_of(WRITTEN)
    cluster.file("lab").parent.mkdir(parents=True)
    cluster.file("lab").write_text("kind: slurm\n")
    said = cluster.init("lab")
    assert (said.code, cluster.file("lab").read_text()) == (2, "kind: slurm\n")
    assert "hpckit init lab --diff" in said.err


def test_diff_tells_by_its_exit_code_whether_anything_differs(cluster_of: Maker) -> None:
    """Nothing after writing; then each key, with both values; keys of the user's own count as none."""
    cluster = cluster_of(WRITTEN)
    cluster.init("lab")
    assert cluster.init("lab", "--diff").code == 0
    text = cluster.file("lab").read_text().replace("a100: 4", "a100: 8", 1).replace("slices, cpu", "cpu", 1)
    cluster.file("lab").write_text(
        f"{text}price_per_gpu_hour: 2\npartition: gpu\n".replace("partition: ???", "", 1)
    )
    calls = len(cluster.asked)
    said = cluster.init("lab", "--diff")
    assert said.code == 1
    assert "gpu_types.gpu.a100: the file says 8, Slurm says 4 (sinfo)" in said.out
    assert "partitions: the file says ['gpu', 'cpu', 'nightly']" in said.out
    assert len(said.out.splitlines()) == 2
    assert len(cluster.asked) - calls <= 6
    found = json.loads(cluster.init("lab", "--diff", "--json").out)["differences"]
    assert {one["key"] for one in found} == {"gpu_types.gpu.a100", "partitions"}


def test_diff_without_a_file_and_with_a_broken_one_is_one_clear_error(cluster_of: Maker) -> None:
    """No traceback, and nothing is written."""
    cluster = cluster_of(WRITTEN)
    assert cluster.init("lab", "--diff").code == 2
    cluster.init("lab")
    cluster.file("lab").write_text("kind: [")
    said = cluster.init("lab", "--diff")
    assert (said.code, "cannot read" in said.err) == (2, True)


def test_shared_file_has_nothing_of_its_writer(cluster_of: Maker) -> None:
    """No account, and no partition that only this user lacks."""
    cluster = cluster_of(WRITTEN)
    cluster.init("lab", "--share")
    text = cluster.file("lab").read_text()
    assert "account" not in cluster.keys("lab")
    assert not [name for name in ("physics", "chemistry", "rich", "biology") if name in text]
    assert "bought" in cluster.keys("lab")["partitions"]
    assert "admin" not in cluster.keys("lab")["partitions"]


@pytest.mark.parametrize(("program", "lost"), [("sinfo", "cpus_per_node"), ("sacctmgr", "account")])
def test_what_does_not_answer_stays_out_and_is_named(program: str, lost: str, cluster_of: Maker) -> None:
    """The rest is written all the same."""
    cluster = cluster_of(WRITTEN)
    cluster.program(program, "#!/bin/sh\necho 'error: Connection refused' >&2\nexit 1\n")
    said = cluster.init("lab")
    assert said.code == 0, said.err
    assert lost not in cluster.keys("lab")
    assert "Connection refused" in said.err
    assert "# Not known" in cluster.file("lab").read_text()


def test_cluster_that_does_not_answer_at_all_is_the_schedulers_error(cluster_of: Maker) -> None:
    """Exit code 3, and no file."""
    cluster = cluster_of(WRITTEN)
    cluster.program("scontrol", "#!/bin/sh\necho 'error: Unable to contact slurm controller' >&2\nexit 1\n")
    assert cluster.init("lab").code == 3
    assert not cluster.file("lab").exists()


@pytest.mark.parametrize("name", ["local", "../evil", "a/b", ".hidden"])
def test_name_that_cannot_be_a_file_of_a_cluster_is_refused(name: str, cluster_of: Maker) -> None:
    """Hpckit's own names, and what would be another folder."""
    cluster = cluster_of(WRITTEN)
    assert cluster.init(name).code == 2
    assert not (cluster.folder / "asked").exists()


REFUSES = """#!/bin/sh
echo "sbatch $*" >> {folder}/asked
case "$*" in {takes}) exit 0 ;; esac
echo "sbatch: error: {why}" >&2; exit 1
"""


def test_site_that_refuses_gpus_per_node_is_asked_by_gres_from_then_on(cluster_of: Maker) -> None:
    """The file says so, and a launch with it asks with --gres."""
    cluster = cluster_of(DATA / RELEASES[0])
    cluster.program("sbatch", REFUSES.replace("{takes}", "*--gres=gpu*").replace("{why}", "use --gres here"))
    cluster.init("lab")
    assert cluster.keys("lab")["gpu_option"] == "gres"
    assert "use --gres here" in cluster.file("lab").read_text()
    words = ("cluster=lab", "cluster.account=x", "experiment=digits", "resources=one_gpu", "--dry-run")
    said = verb_said("launch", *words, folder=cluster.project)
    assert "#SBATCH --gres=gpu:1" in said.out, said.err
    assert "--gpus-per-node" not in said.out


def test_site_that_wants_whole_nodes_gets_them(cluster_of: Maker) -> None:
    """The file asks for --exclusive, and still composes."""
    cluster = cluster_of(DATA / RELEASES[0])
    cluster.program(
        "sbatch", REFUSES.replace("{takes}", "*--exclusive*").replace("{why}", "whole nodes only")
    )
    cluster.init("lab")
    assert cluster.keys("lab")["resources"] == {"exclusive": True}
    words = ("cluster=lab", "cluster.account=x", "experiment=digits", "resources=one_gpu", "--dry-run")
    said = verb_said("launch", *words, folder=cluster.project)
    assert "#SBATCH --exclusive" in said.out, said.err
    assert cluster.init("lab", "--diff").code == 0


def test_refusal_that_nodes_away_may_explain_decides_nothing(cluster_of: Maker) -> None:
    """One node of the partition is drained: Slurm's words may mean that."""
    cluster = cluster_of(WRITTEN)
    why = "allocation failure: Requested node configuration is not available"
    cluster.program("sbatch", REFUSES.replace("{takes}", "nothing").replace("{why}", why))
    cluster.init("lab")
    assert "gpu_option" not in cluster.keys("lab")
    assert "not decided, as nodes are away" in cluster.file("lab").read_text().replace("\n#    ", "")
    assert len([line for line in cluster.asked if line.startswith("sbatch")]) == 1


def test_json_has_the_facts_behind_the_file(cluster_of: Maker) -> None:
    """The same as the file, for programs."""
    cluster = cluster_of(WRITTEN)
    found: dict[str, Any] = json.loads(cluster.init("lab", "--json").out)
    assert (found["cluster"], found["release"]) == ("manifold", "23.11.10")
    assert found["file"] == str(cluster.file("lab"))
    assert {one["key"]: one["value"] for one in found["values"]}["cpus_per_node"] == 112
    assert found["preemption"][0] == {"of": "QOS normal", "mode": "CANCEL", "grace_s": 20.0}
    assert found["accounts"] == ["physics", "chemistry"]
    (h100,) = (one for one in found["nodes"] if one["cpus"] == 112)
    assert (h100["nodes"], h100["names"]) == (3, "h[1-2],h3")
    assert found["differences"] is None


@pytest.mark.parametrize(
    ("kind", "partition", "option", "ranks"),
    [
        ("h100", "gpu", "nvidia_h100_80gb_hbm3:8", 8),
        ("a100", "gpu", "a100:4", 4),
        ("1g.10gb", "slices", "a100_1g.10gb:21", 21),
    ],
)
def test_whole_node_has_the_gpus_of_the_type_that_a_run_asks_for(
    kind: str, partition: str, option: str, ranks: int, cluster_of: Maker
) -> None:
    """Where nodes differ, the file states no number: Slurm is asked for the type's."""
    cluster = cluster_of(WRITTEN)
    cluster.init("lab")
    where = ("cluster=lab", f"cluster.partition={partition}", "cluster.account=physics")
    said = cluster.hpckit(
        *("launch", *where, "experiment=digits", "resources=one_node", f"resources.gpu_type={kind}"),
        *("resources.timeout_min=30", "--dry-run"),
    )
    assert f"#SBATCH --gpus-per-node={option}\n" in said.out, said.err
    assert f"#SBATCH --ntasks-per-node={ranks}\n" in said.out
