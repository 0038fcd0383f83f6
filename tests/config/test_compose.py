"""What a request composes to, on shipped configuration alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig

from hpckit.config.compose import compose_parallel_and_resources, compose_sweep_points
from hpckit.config.explain import load_config
from hpckit.config.request import ComposeRequest, shipped_conf_folder
from hpckit.config.session import Session, open_hydra_session
from hpckit.errors import ConfigError
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.parallel.settings import FallbackLayout, Parallel
from hpckit.model.plain import from_plain

Requester = Callable[..., ComposeRequest]

_OPTIONS = sorted(f"{file.parent.name}={file.stem}" for file in shipped_conf_folder().glob("*/*.yaml"))


def test_layouts_to_fall_back_to_survive_a_change_of_another_key(tmp_path: Path) -> None:
    """What a run has listed is written as an override again, and read as the same."""
    listed = [FallbackLayout(replicate=1, shard="rest"), FallbackLayout(tensor="node", shard=2)]
    present = LaunchConfig(entry_point="a:b", parallel=Parallel(pipeline="nodes", fallback=listed))
    found = compose_parallel_and_resources(("parallel.compile=true",), present, environ={}, cwd=tmp_path)
    changed = dataclasses.replace(present.parallel, compile=True)
    assert found == dataclasses.replace(present, parallel=changed)


def test_compose_of_nothing_chooses_nothing_to_run(request_for: Requester) -> None:
    """A bare launch has a place for its outputs, and no example to run."""
    (point,) = compose_sweep_points(request_for())
    assert (point.settings.entry_point, point.settings.command) == (None, None)
    assert point.settings.output_dir == "outputs"
    assert point.overrides == ()


@pytest.mark.parametrize("option", _OPTIONS)
def test_compose_takes_every_shipped_option(option: str, request_for: Requester) -> None:
    """Every file of every group composes to typed, frozen, JSON-able settings."""
    open_keys = ["command=[true]"] if option == "experiment=command" else []
    open_keys += ["entry_point=a:b"] if option == "experiment=function" else []
    (point,) = compose_sweep_points(request_for(option, *open_keys, environ={"SCRATCH": "/scratch"}))
    assert json.loads(json.dumps(point.config)) == point.config
    assert from_plain(LaunchConfig, point.config) == point.settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.settings.resources.nodes = 3  # type: ignore[misc]


def test_compose_takes_the_line_of_the_readme(request_for: Requester) -> None:
    """Groups and values on the command line win over the experiment's."""
    words = ("cluster=sandbox", "resources.nodes=2", "resources.tasks_per_node=2")
    (point,) = compose_sweep_points(request_for(*words))
    assert point.overrides == words
    assert point.settings.cluster.kind is ClusterKind.slurm
    assert point.settings.cluster.partitions == ["batch", "urgent"]
    assert (point.settings.resources.nodes, point.settings.resources.tasks_per_node) == (2, 2)


def test_compose_takes_gpus_from_the_cluster(request_for: Requester) -> None:
    """`one_node` is all GPUs of a node, whatever cluster is chosen."""
    words = ("experiment=command", "command=[true]", "cluster=sandbox", "resources=one_node")
    (point,) = compose_sweep_points(request_for(*words))
    assert point.settings.resources.gpus_per_node == 4
    assert point.settings.resources.tasks_per_node == 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("+x=1",), {"x": 1}),
        (("++x.y=[1,2]",), {"x": {"y": [1, 2]}}),
        (("+params.lr=1e-3",), {"params": {"lr": 0.001}}),
        (("+env.FOO=1",), {"env": {"FOO": "1"}}),
        (("recovery=never",), {"recovery": {"restarts": {}, "requeue": False}}),
        (("~recovery",), {"recovery": {"restarts": {}, "requeue": False}}),
        (('name="a, b $(c)"',), {"name": "a, b $(c)"}),
        (("+x=1", "name=n${x}"), {"name": "n1"}),
        (("resources={nodes:3}", "resources.mem_gb=1.5"), {"resources": {"nodes": 3}}),
    ],
)
def test_compose_takes_the_override_grammar(
    words: tuple[str, ...], expected: dict[str, Any], request_for: Requester
) -> None:
    """Adding, forcing, removing, quoting, nesting and interpolating work as Hydra documents."""
    (point,) = compose_sweep_points(request_for("experiment=command", "command=[true]", *words))
    for key, value in expected.items():
        found = point.config[key]
        part = key in {"resources", "recovery"}
        assert value.items() <= found.items() if part else found == value


@pytest.mark.parametrize(("environ", "kind"), [({}, ClusterKind.local), ({"PATH": "bin"}, ClusterKind.slurm)])
def test_compose_decides_auto_by_sbatch(
    environ: dict[str, str], kind: ClusterKind, tmp_path: Path, request_for: Requester
) -> None:
    """`cluster=auto` is Slurm where sbatch is on PATH, else this machine."""
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.touch(mode=0o755)
    absolute = {name: str(tmp_path / value) for name, value in environ.items()}
    (point,) = compose_sweep_points(request_for("cluster=auto", environ=absolute))
    assert point.settings.cluster.kind is kind
    assert point.config["cluster"]["kind"] == kind.value


def test_compose_finds_sbatch_in_bin_dir(tmp_path: Path, request_for: Requester) -> None:
    """`cluster=auto` looks into cluster.bin_dir where it is given."""
    (tmp_path / "sbatch").touch(mode=0o755)
    (point,) = compose_sweep_points(request_for(f"cluster.bin_dir={tmp_path}"))
    assert point.settings.cluster.kind is ClusterKind.slurm


def test_compose_reads_the_given_environment_only(
    monkeypatch: pytest.MonkeyPatch, request_for: Requester
) -> None:
    """`${oc.env:...}` reads the request's environment, not the process's."""
    monkeypatch.setenv("HPCKIT_OUTPUTS", "/wrong")
    (point,) = compose_sweep_points(request_for(environ={"HPCKIT_OUTPUTS": "/data/runs"}))
    assert point.settings.output_dir == "/data/runs"


def test_compose_leaves_no_hydra_behind(request_for: Requester) -> None:
    """Composing again, and a user's own Hydra afterwards, find a clean state."""
    first, second = compose_sweep_points(request_for("seed=3")), compose_sweep_points(request_for("seed=3"))
    assert first == second
    assert not GlobalHydra.instance().is_initialized()


def test_compose_decides_nothing_from_the_working_directory_of_the_process(
    tmp_path: Path, request_for: Requester
) -> None:
    """A relative --config-dir starts at the request's directory."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text(
        "defaults: [hpckit, _self_]\nname: mine\ncommand: [x]\n", encoding="utf-8"
    )
    (point,) = compose_sweep_points(request_for(config_dir=Path("mine")))
    assert point.settings.name == "mine"


@pytest.mark.parametrize(
    ("words", "compositions"), [((), 1), (("+params.i=1,2,3",), 1), (("recovery=never,patient",), 2)]
)
def test_compose_composes_no_point_twice(
    words: tuple[str, ...], compositions: int, request_for: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first point, which says how to sweep, is not composed again as the first of all."""
    loads: list[Sequence[str]] = []

    def counted(session: Session, overrides: Sequence[str]) -> DictConfig:
        loads.append(overrides)
        return load_config(session, overrides)

    monkeypatch.setattr("hpckit.config.sweep.load_config", counted)
    words = ("experiment=command", "command=[true]", *words)
    compose_sweep_points(request_for(*words, multirun=len(words) > 2))
    assert len(loads) == compositions


def test_groups_are_those_that_hydra_lists(request_for: Requester) -> None:
    """The listing reads the sources itself, and finds what Hydra's own finds."""
    with open_hydra_session(request_for()) as session:
        found = session.list_option_groups()
        assert "recovery" in found
        for group, options in found.items():
            listed = session.loader.get_group_options(group, results_filter=ObjectType.CONFIG)
            assert options == tuple(name for name in listed if not name.startswith("_"))
        top = session.loader.list_groups("")
        # `data` counts where a word chooses from it: it may be a key of the user's.
        assert {name.split("/")[0] for name in found} == set(top) - {"hydra", "data"}


@pytest.mark.parametrize("plus", ["", "+", "++"])
@pytest.mark.parametrize(
    "key", ["env.A", "cluster.env.A", "resources.additional_parameters.licenses", "params.lr"]
)
def test_keys_of_open_sections_need_no_plus(request_for: Requester, key: str, plus: str) -> None:
    """The sections are plain mappings; `+` stays allowed."""
    (point,) = compose_sweep_points(request_for("experiment=command", "command=[true]", f"{plus}{key}=x"))
    found: Any = point.config
    for name in key.split("."):
        found = found[name]
    assert found == "x"


def test_next_to_params_of_a_file_another_one_is_an_error_without_plus(
    request_for: Requester, write_conf: Callable[..., Path]
) -> None:
    """A mistyped name would train with the old value."""
    write_conf({"config": "defaults: [hpckit, _self_]\nparams: {lr: 1}\n"})
    words = ("+experiment=command", "command=[true]")
    with pytest.raises(ConfigError, match=r"Did you mean params\.lr"):
        compose_sweep_points(request_for(*words, "params.lrr=2"))
    (point,) = compose_sweep_points(request_for(*words, "+params.more=2"))
    assert point.config["params"] == {"lr": 1, "more": 2}
