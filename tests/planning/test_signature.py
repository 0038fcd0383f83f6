"""Promises of planning.signature: what makes two runs the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hpckit.model.node_setup import Data
from hpckit.model.plain import to_plain
from hpckit.planning.signature import compute_run_signature

CONFIG: dict[str, Any] = {
    "seed": 0,
    "lr": 0.1,
    "entry_point": "train:main",
    "resources": {"nodes": 1, "tasks_per_node": 2, "gpus_per_node": 0, "mem_gb": 4},
}


def test_signature_is_sixteen_hex_digits() -> None:
    """A signature is short enough to type and safe in file names."""
    assert re.fullmatch(r"[0-9a-f]{16}", compute_run_signature(CONFIG))


def test_signature_is_stable_over_releases() -> None:
    """The signature of a given configuration never changes: folders of old launches hold it."""
    assert compute_run_signature(CONFIG) == "ac6e23cd953dd058"


def turned(value: Any, *path: str) -> Any:
    """Return a configuration with the mapping at this path in reverse order."""
    if not path:
        return dict(reversed(value.items()))
    return {**value, path[0]: turned(value[path[0]], *path[1:])}


TREE = {"net": {"layers": {"conv": 1, "relu": 2}}, "params": {"b": {"y": 1, "x": 2}, "a": 1}}


@pytest.mark.parametrize("path", [(), ("resources",), ("env",)])
def test_signature_does_not_depend_on_the_order_of_names(path: tuple[str, ...]) -> None:
    """Keys of the root and of hpckit's sections are read by name: their order does not matter."""
    config = {**CONFIG, **TREE, "env": {"B": "1", "A": "2"}}
    assert compute_run_signature(turned(config, *path)) == compute_run_signature(config)


@pytest.mark.parametrize("path", [("net", "layers"), ("params",), ("params", "b")])
def test_signature_depends_on_the_order_of_mappings_of_the_users_own(path: tuple[str, ...]) -> None:
    """A function may go through them: layers in another order are another model."""
    config = {**CONFIG, **TREE}
    assert compute_run_signature(turned(config, *path)) != compute_run_signature(config)


def test_signature_of_a_command_does_not_depend_on_the_order_of_params() -> None:
    """It takes them by name, `${params.lr}`, so the words of a launch may come in any order."""
    config = {**CONFIG, **TREE, "entry_point": None, "command": ["python", "train.py", "1"]}
    assert compute_run_signature(turned(config, "params")) == compute_run_signature(config)
    assert compute_run_signature(turned(config, "params", "b")) != compute_run_signature(config)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"output_dir": "/elsewhere"},
        {"cluster": {"kind": "slurm", "partition": "gpu", "setup": [], "python": None}},
        {"recovery": {"max_identical_failures": 9}},
        {"checkpoint": {"dir": "/c", "weights": None, "weights_strict": False}},
        {"runtime": {"device": "auto", "cwd": "run", "hang_min_s": 1.0}},
        {"observe": {"interval_s": 1.0}},
        {"tracker": {"kind": "wandb"}},
        {"notify": {"events": ["failed"]}},
        {"code": {"snapshot": False}},
        {"chaos": ["kill rank=0 step=3"]},
        {"resources": {**CONFIG["resources"], "mem_gb": 64, "partition": "urgent"}},
    ],
)
def test_signature_ignores_where_and_how_a_run_runs(change: dict[str, Any]) -> None:
    """Name, place, cluster, recovery and planned faults do not change what is computed."""
    assert compute_run_signature({**CONFIG, **change}) == compute_run_signature(CONFIG)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.2},
        {"checkpoint": {"dir": None, "weights": "/models/m.pt"}},
        {"cluster": {"env": {"MODE": "b"}}},
        {"cluster": {"setup": ["source other/bin/activate"]}},
        {"cluster": {"modules": ["cuda/12"]}},
        {"cluster": {"python": "/other/bin/python"}},
        {"runtime": {"device": "cpu"}},
        {"runtime": {"cwd": "project"}},
        {"seed": 1},
        {"extra": None},
        {"parallel": {"shard": 2}},
        {"entry_point": "train:other"},
        {"resources": {**CONFIG["resources"], "nodes": 2}},
        {"resources": {**CONFIG["resources"], "tasks_per_node": 4}},
        {"resources": {**CONFIG["resources"], "gpus_per_node": 1}},
    ],
)
def test_signature_changes_with_what_is_computed(change: dict[str, Any]) -> None:
    """A user's key, the seed, the task, its environment and the shape of the world each count."""
    assert compute_run_signature({**CONFIG, **change}) != compute_run_signature(CONFIG)


def of_resources(**asked: object) -> str:
    """Return the signature of a run that asks for this."""
    return compute_run_signature({**CONFIG, "resources": {"nodes": 1, "tasks_per_node": 4, **asked}})


@pytest.mark.parametrize(
    "asked",
    [
        {"gres": "gpu:a100:4"},
        {"gpus_per_node": 0, "gres": "gpu:4"},
        {"additional_parameters": {"gpus": 4}},
        {"additional_parameters": {"gpus_per_task": 1}},
        {"additional_parameters": {"gres": "gpu:4"}},
    ],
)
def test_signature_counts_gpus_by_whichever_option_asks(asked: dict[str, Any]) -> None:
    """A run with four GPUs is never taken for one without, and is the same by any option."""
    assert of_resources(**asked) == of_resources(gpus_per_node=4) != of_resources(gpus_per_node=0)


def test_signature_of_an_edited_configuration_is_another_one() -> None:
    """Also where no run could have it: a resume compares it with the frozen one."""
    assert of_resources(nodes=0) != of_resources()


def test_archive_that_stays_a_file_is_another_run() -> None:
    """Its programs see a file instead of a folder; they don't see whether it is a copy."""

    def sign(source: str, how: str) -> str:
        data = {**to_plain(Data()), "stage": {"a": {"source": source, "how": how}}}
        return compute_run_signature({**CONFIG, "data": data})

    assert sign("/d.tar", "auto") == sign("/d.tar", "extract") != sign("/d.tar", "copy")
    assert sign("/d.tar", "copy") == sign("/d.tar", "link")
    assert sign("/d.bin", "auto") == sign("/d.bin", "copy") == sign("/d.bin", "link")
