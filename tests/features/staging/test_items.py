"""What a configuration may say of data, and what is refused in one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import ConfigError
from hpckit.features.staging.items import How, StageItem, choose_how, read_items
from hpckit.features.staging.sources import freeze_sources, read_source
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig
from hpckit.planning.signature import compute_run_signature

DATA: dict[str, Any] = {
    "dir": "/local/x",
    "stage": {},
    "out": {},
    "environment": "none",
    "environment_from": "python",
    "keep": "job",
    "cache_gb": 100.0,
    "margin_gb": 10.0,
}


def _config(**changed: Any) -> dict[str, Any]:
    return {"data": {**DATA, **changed}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"stage": {"a": {"source": "/x", "hwo": "copy"}}}, "data.stage.a.hwo: there is no such key"),
        ({"stage": {"a-b": {"source": "/x"}}}, "'a-b' is not a name for a variable"),
        ({"stage": {"a": {"source": "/x"}, "A": {"source": "/y"}}}, "are one variable"),
        ({"stage": {"out": {"source": "/x"}}}, "hpckit itself uses this name"),
        ({"out": {"a": {"to": "res"}, "b": {"to": "./res"}}}, "go to one folder"),
        ({"stage": {"a": "/x"}}, "data.stage.a is '/x', not a mapping"),
        ({"stage": {"a": {}}}, "data.stage.a"),
        ({"stage": {"a": {"source": ""}}}, "data.stage.a.source is empty"),
        ({"stage": {"a": {"source": 3}}}, "data.stage.a.source"),
        ({"stage": {"a": {"source": "/x", "how": "teleport"}}}, "data.stage.a.how"),
        ({"stage": ["/x"]}, "data.stage"),
        ({"keep": "forever"}, "data.keep"),
        ({"margin_gb": -1.0}, "data.margin_gb is -1"),
        ({"other": 1}, "data.other: there is no such key"),
        ({"out": {"a": {"source": "../x"}}}, "data.out.a.source is '../x'"),
        ({"out": {"a": {"to": "/x"}}}, "data.out.a.to is '/x'"),
        ({"out": {"a": {"every_s": 0}}}, "data.out.a.every_s is 0"),
    ],
)
def test_a_wrong_value_is_one_clear_error(changed: dict[str, Any], said: str) -> None:
    """The error names the key, the value, and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        read_items(_config(**changed))
    assert said in raised.value.message
    assert raised.value.hint or "must be" in raised.value.message


@pytest.mark.parametrize(
    ("name", "how"),
    [("a.tar", How.extract), ("a.tgz", How.extract), ("a.sqsh", How.mount), ("a.bin", How.copy)],
)
def test_auto_follows_the_name_of_the_source(tmp_path: Path, name: str, how: How) -> None:
    """A tar is unpacked, a squashfs mounted, all else copied."""
    (tmp_path / name).write_bytes(b"x")
    source = read_source(tmp_path / name)[0]
    assert choose_how(StageItem(name="a", source=name), source) is how
    if how is How.copy:
        for other in (How.extract, How.mount):
            with pytest.raises(ConfigError, match="needs"):
                choose_how(StageItem(name="a", source=name, how=other), source)


def _freeze(
    tmp_path: Path, source: str, kind: ClusterKind = ClusterKind.slurm, **changed: Any
) -> dict[str, Any]:
    settings = LaunchConfig(cluster=Cluster(kind=kind))
    config = _config(stage={"a": {"source": source}}, **changed)
    return freeze_sources([(settings, config)], tmp_path / "outputs" / "launch", tmp_path, {"PATH": ""})


def test_a_source_is_frozen_as_it_is(tmp_path: Path) -> None:
    """Its place, size and time are in the launch; a relative one is found from the working folder."""
    (tmp_path / "a.bin").write_bytes(b"12345")
    found = _freeze(tmp_path, "a.bin")["sources"]["a.bin"]
    assert (found["place"], found["bytes"]) == (str(tmp_path / "a.bin"), 5)
    assert found["mtime_ns"] == (tmp_path / "a.bin").stat().st_mtime_ns


@pytest.mark.parametrize(
    ("source", "changed", "said"),
    [
        ("missing.bin", {}, "missing.bin does not exist"),
        ("a.bin", {"dir": None}, "data.dir is not set, and cluster.node_scratch has no folders"),
        ("a.bin", {"dir": "here"}, "data.dir=here is not absolute"),
        ("hf://one", {}, "is not the address of a model"),
        ("s3://bucket", {}, "is not the address of an object"),
    ],
)
def test_a_launch_is_refused_before_it_begins(
    tmp_path: Path, source: str, changed: dict[str, Any], said: str
) -> None:
    """What cannot be staged is found when it is launched."""
    (tmp_path / "a.bin").write_bytes(b"12345")
    with pytest.raises(ConfigError) as raised:
        _freeze(tmp_path, source, **changed)
    assert said in raised.value.message
    assert raised.value.hint


def test_a_shared_folder_is_refused_at_launch(tmp_path: Path) -> None:
    """On Slurm, data.dir below the folder of launches would be one folder for all nodes."""
    (tmp_path / "a.bin").write_bytes(b"12345")
    with pytest.raises(ConfigError, match="all nodes would write the same files"):
        _freeze(tmp_path, "a.bin", dir=str(tmp_path / "outputs" / "scratch"))


def test_names_and_sources_alone_are_part_of_a_run() -> None:
    """Where data lies on a node, and how long, does not make another computation of a run."""
    base = {"command": "true", **_config(stage={"a": {"source": "/x"}, "b": {"source": "/y"}})}
    same = {"command": "true", **_config(stage={"b": {"source": "/y"}, "a": {"source": "/x", "how": "copy"}})}
    same["data"] |= {"dir": "/other", "keep": "cache", "margin_gb": 1.0}
    other = {"command": "true", **_config(stage={"a": {"source": "/z"}, "b": {"source": "/y"}})}
    assert compute_run_signature(base) == compute_run_signature(same) != compute_run_signature(other)
