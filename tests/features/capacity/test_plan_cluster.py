"""Plans on the cluster of a site: its facts count, and its name is in the line to launch."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.whole


@pytest.fixture
def site(shell: Any) -> Any:
    """Return a shell in a project with the facts of a cluster of nodes of four."""
    folder = shell.cwd / "conf" / "cluster"
    folder.mkdir(parents=True)
    facts = "kind: slurm\ngpu: A100-80\ngpus_per_node: 4\nprice_per_gpu_hour: 1\n"
    (folder / "lab.yaml").write_text(facts)
    return shell


LAB = ("plan", "cluster=lab", "--model", "llama3-8b", "--gpus", "64", "--recompute", "full")


@pytest.mark.parametrize("more", [("--parallel", "shard=64"), ("--search",)])
def test_line_that_launches_a_plan_fits_the_cluster(site: Any, more: tuple[str, ...]) -> None:
    """Nodes are the cluster's, and its name is in the line, of a search, too."""
    found = json.loads(site(*LAB, *more, "--json").out)
    overrides = (found.get("best") or found)["overrides"]
    assert overrides[0] == "cluster=lab"
    assert "resources.gpus_per_node=4" in overrides
    said = site("launch", "--dry-run", *overrides, "experiment=digits")
    assert said.code == 0, said.err


def test_link_of_more_gpus_than_a_node_has_is_refused(site: Any) -> None:
    """NVLink pairs in a node of four are fine."""
    assert "gpus_per_link=8" in site(*LAB, "--gpu", "A100-80 gpus_per_link=8").err
    found = json.loads(site(*LAB, "--gpu", "A100-80 gpus_per_link=2", "--json").out)
    assert "resources.gpus_per_node=4" in found["overrides"]


def test_prices_of_a_cluster_say_nothing_of_states_alone(site: Any) -> None:
    """Who gave none is not refused for one."""
    said = site("plan", "cluster=lab", "--model", "parameters=7e9", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["cost"] is None


def test_pue_of_a_cluster_counts_as_it_is_set(site: Any) -> None:
    """Also 1; and what cannot be is refused as `launch` does."""
    power = ("plan", "--power", "--gpus", "10", "cluster=lab")
    one, none = (json.loads(site(*power, *more, "--json").out) for more in (("cluster.pue=1.0",), ()))
    assert one["facility_w"] == one["node_w"]
    assert none["facility_w"] == pytest.approx(1.1 * none["node_w"])
    for word in ("cluster.pue=0.5", "cluster.power_cap_w=-3", "cluster.power_cap_option=time"):
        said = site(*power, word)
        assert said.code == 2
        assert word.partition("=")[0] in said.err
    assert "less 0 W" not in site(*power, "cluster.power_cap_w=900").out


def test_secret_among_cluster_words_is_not_printed(site: Any) -> None:
    """Neither in what launches a plan, nor in what plans it again."""
    site.environ["WANDB_API_KEY"] = "sekret-123456"
    more = ("+cluster.env.WANDB_API_KEY=sekret-123456",)
    for form in ((), ("--json",), ("--search",), ("--search", "--json")):
        said = site(*LAB[:2], *more, *LAB[2:], *form)
        assert said.code == 0, said.err
        assert "sekret" not in said.out + said.err


def test_cap_of_a_cluster_that_a_gpu_cannot_have_names_its_key(site: Any) -> None:
    """Nobody gave --power-cap-w."""
    said = site(*LAB, "--gpu", "B200", "cluster.power_cap_w=100")
    assert said.code == 2
    assert "cluster.power_cap_w: a power cap of 100 W" in said.err


OWN = "A100-80 network_gb_per_s=6.25 gpus_per_link=4 memory_gib=64"


def test_facts_of_the_cluster_are_those_of_its_file(shell: Any) -> None:
    """Its GPU, cap, PUE and price; options win, and the words to launch name the cluster."""
    folder = shell.cwd / "conf" / "cluster"
    folder.mkdir(parents=True)
    (folder / "lab.yaml").write_text(
        f"kind: slurm\ngpu: {OWN}\npower_cap_w: 300\npue: 1.4\nprice_per_gpu_hour: 2\n"
    )
    words = ("plan", "cluster=lab", "--model", "llama3-8b", "--gpus", "64", "--recompute", "full")
    found = json.loads(shell(*words, "--json").out)
    assert found["gpu"] == OWN
    assert found["power_w"] == 64 * 300
    assert found["facility_w"] == pytest.approx(1.4 * found["node_w"])
    assert found["cost"] == pytest.approx(2 * found["gpu_hours"])
    assert found["overrides"][0] == "cluster=lab"
    searched = json.loads(shell(*words[:5], "1", "--search", "--json").out)
    assert searched["fits"] is False
    assert searched["smallest"]["overrides"][0] == "cluster=lab"
    other = json.loads(shell(*words, "--gpu", "V100", "--pue", "1.2", "--power-cap-w", "250", "--json").out)
    assert (other["gpu"], other["power_w"]) == ("V100", 64 * 250)
    assert other["facility_w"] == pytest.approx(1.2 * other["node_w"])
    missing = shell("plan", "--model", "gpt2")
    assert missing.code == 2
    assert "cluster.gpu is not set" in missing.err
