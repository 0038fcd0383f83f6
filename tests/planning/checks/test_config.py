"""Promises of planning.checks.config: the right form of an entry point, prices that can be."""

from __future__ import annotations

import pytest

from hpckit.errors import ConfigError
from hpckit.model.launch import Checkpoint, Cluster, ClusterKind, LaunchConfig, Recovery
from hpckit.planning.checks.config import check_settings_are_consistent
from hpckit.values import replace


@pytest.mark.parametrize(
    ("given", "said", "meant"),
    [
        ("w.py:train", "names a file", "w:train"),
        ("w.py", "names a file", "w:main"),
        ("w/train.py:main", "names a file", "w.train:main"),
        ("./w/train.py:main", "names a file", "w.train:main"),
        ("/home/me/train.py", "names a file", "home.me.train:main"),
        ("w/train:main", "names a path", "w.train:main"),
        ("w/train", "names a path", "w.train:main"),
        ("w.train", "is not of the form", "w:train"),
        ("train", "is not of the form", "train:main"),
        ("train:", "is not of the form", "train:main"),
        (":main", "is not of the form", "train:main"),
        ("train:Trainer.run", "is not of the form", "train:main"),
        ("a b:c", "is not of the form", "train:main"),
        ("", "is not of the form", "train:main"),
    ],
)
def test_entry_point_of_another_form_is_answered_with_the_right_one(
    given: str, said: str, meant: str
) -> None:
    """A file, a path, a dotted name: what is meant is written out."""
    with pytest.raises(ConfigError, match=said) as caught:
        check_settings_are_consistent(LaunchConfig(entry_point=given))
    assert caught.value.hint.startswith(f"write entry_point={meant}")


@pytest.mark.parametrize(
    ("cluster", "said", "example"),
    [
        (Cluster(pue=0.9), "cluster.pue is 0.9; it must be at least 1", "pue=1.2"),
        (Cluster(pue=float("nan")), "cluster.pue is nan", "pue=1.2"),
        (Cluster(price_per_gpu_hour=-1), "hour is -1; it must be at least 0", "hour=1.5"),
        (Cluster(carbon_g_per_kwh=float("inf")), "carbon_g_per_kwh is inf", "kwh=350"),
    ],
)
def test_prices_that_cannot_be_are_refused(cluster: Cluster, said: str, example: str) -> None:
    """Energy and money are not computed from nonsense; the hint has a usual value."""
    with pytest.raises(ConfigError, match=said) as caught:
        check_settings_are_consistent(LaunchConfig(entry_point="a:b", cluster=cluster))
    assert caught.value.hint.endswith(example)
    check_settings_are_consistent(
        LaunchConfig(entry_point="a:b", cluster=Cluster(pue=1, price_per_gpu_hour=0))
    )


def test_relative_path_of_weights_is_refused() -> None:
    """Ranks start in a folder of the run; the hint has what a shell makes the whole path of."""
    task = LaunchConfig(entry_point="a:b", checkpoint=Checkpoint(weights="out/m.safetensors"))
    with pytest.raises(ConfigError, match="is a relative path") as caught:
        check_settings_are_consistent(task)
    assert '"$PWD/out/m.safetensors"' in caught.value.hint
    for path in ("/models/m.pt", "~/m.pt"):
        check_settings_are_consistent(LaunchConfig(entry_point="a:b", checkpoint=Checkpoint(weights=path)))


@pytest.mark.parametrize(
    ("recovery", "said"),
    [
        (Recovery(grow_on_oom=1.5), "grow_on_oom=1.5 multiplies resources.mem_gb, which is not set"),
        (Recovery(grow_on_timeout=2), "grow_on_timeout=2 multiplies resources.timeout_min, which is not set"),
        (Recovery(grow_on_oom=1.0), "grow_on_oom is 1; it must be more than 1"),
        (Recovery(grow_max=float("inf")), "grow_max is inf; it must be more than 1"),
    ],
)
def test_growth_of_what_nobody_asked_for_is_refused(recovery: Recovery, said: str) -> None:
    """There is nothing to multiply; on this machine nothing grows, and nothing is refused for that."""
    slurm = LaunchConfig(entry_point="a:b", recovery=recovery, cluster=Cluster(kind=ClusterKind.slurm))
    with pytest.raises(ConfigError, match=said):
        check_settings_are_consistent(slurm)
    check_settings_are_consistent(
        replace(slurm, recovery=Recovery(grow_on_oom=2), cluster=Cluster(kind=ClusterKind.local))
    )
