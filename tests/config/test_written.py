"""Promises of config.written: in hpckit's own keys a file means what an override means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from hpckit.config.compose import compose
from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError

Requester = Callable[..., ComposeRequest]
Writer = Callable[[Mapping[str, str]], Path]


def _of(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[int(part)] if isinstance(config, list) else config[part]
    return config


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("resources: {timeout_min: 24:00:00}", "resources.timeout_min", 1440),
        ("resources: {timeout_min: 1:30:00}", "resources.timeout_min", 90),
        ("runtime: {hang_min_s: 2:30}", "runtime.hang_min_s", 150),
        ("checkpoint: {interval_min: 1:30}", "checkpoint.interval_min", 1.5),
        ("resources: &r {timeout_min: 2:00:00}\nmy: {<<: *r}", "resources.timeout_min", 120),
        ("resources: &r {timeout_min: 2:00:00}\nmy: {<<: *r}", "my.timeout_min", 7200),
        ("seed: 010", "seed", 10),
        ("seed: 0x10", "seed", 16),
        ("seed: 1_000", "seed", 1000),
        ("recovery: {restarts: {crash: 010}}", "recovery.restarts.crash", 10),
        ("cluster: {account: 0123}", "cluster.account", "0123"),
        ("cluster: {modules: [cuda, 2024.10]}", "cluster.modules.1", "2024.10"),
        ("env: {PORT: 22:22}", "env.PORT", "22:22"),
        ("env: {V: 1.10}", "env.V", "1.10"),
        ("cluster: {env: {V: 3}}", "cluster.env.V", "3"),
        ("resources: {gres: 010}", "resources.gres", "010"),
        ("env: {A.B: 010}", "env", {"A.B": "010"}),
        ("command: [sleep, 1:30, 5]", "command.1", "1:30"),
        ("command: [sleep, 1:30, 5]", "command.2", 5),
    ],
)
def test_number_that_yaml_reads_otherwise(
    line: str, key: str, value: object, request_for: Requester, write_conf: Writer
) -> None:
    """Base 60, a leading 0 and zeros at the end: the text counts, as after `=`."""
    write_conf({"experiment/mine": f"# @package _global_\nentry_point: x:y\n{line}\n"})
    (point,) = compose(request_for("experiment=mine"))
    assert _of(point.config, key) == value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("resources: {nodes: 2:30}", "resources.nodes: Value '2:30'"),
        ("resources: {timeout_min: 2:30}", "resources.timeout_min: Value '2:30'"),
        ("resources: {timeout_min: '2h,3h'}", "resources.timeout_min: Value '2h,3h'"),
        ("cluster: {max_parallel: 1:2}", "cluster.max_parallel: Value '1:2'"),
    ],
)
def test_text_that_is_no_number_of_the_key_is_refused(
    line: str, said: str, request_for: Requester, write_conf: Writer
) -> None:
    """With its file, the key, the text and what is allowed."""
    write_conf({"experiment/mine": f"# @package _global_\nentry_point: x:y\n{line}\n"})
    with pytest.raises(ConfigError, match=said) as caught:
        compose(request_for("experiment=mine"))
    assert "conf/experiment/mine.yaml: " in caught.value.message
    assert " takes a whole number" in caught.value.hint


def test_values_of_the_user_are_what_hydra_reads(
    request_for: Requester, write_conf: Writer
) -> None:
    """The same application may be started without hpckit: each value is that of plain Hydra."""
    params = "{a: 1:30:00, b: 22:22, c: 010, d: 1_000, e: 1e3, f: 1.10, g: [0o7, 0b1, 1:2.5]}"
    text = f"params: {params}\nmy: {{timeout_min: 1:30, port: 010}}\n"
    folder = write_conf({"app": text, "hpc": "defaults: [hpckit, app, _self_]\n"})
    (point,) = compose(request_for("+experiment=command", "command=[x]", config_name="hpc"))
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        plain: Any = OmegaConf.to_container(hydra_compose("app"))
    assert {key: point.config[key] for key in ("params", "my")} == plain
    assert plain["params"]["a"] == 5400


def test_file_below_two_packages_has_units_where_they_are_ours(
    request_for: Requester, write_conf: Writer
) -> None:
    """What one of them makes of a value does not reach the other."""
    mine = "# @package _global_\ndefaults: [/resources@params.r: long, override /resources: long]\n"
    for text in ("2h", "2:00:00"):
        write_conf(
            {
                "resources/long": f"timeout_min: {text}\n",
                "experiment/mine": f"{mine}entry_point: x:y\n",
            }
        )
        (point,) = compose(request_for("experiment=mine"))
        assert point.settings.resources.timeout_min == 120
        assert point.config["params"]["r"]["timeout_min"] == ("2h" if text == "2h" else 7200)


def test_file_of_a_package_is_read_alike(
    tmp_path: Path,
    request_for: Requester,
    write_conf: Writer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search path may name a Python package instead of a folder."""
    folder = tmp_path / "written_conf" / "resources"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "long.yaml").write_text("timeout_min: 1:30:00\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    write_conf(
        {"config": "defaults: [hpckit, _self_]\nhydra: {searchpath: ['pkg://written_conf']}\n"}
    )
    (point,) = compose(request_for("resources=long"))
    assert point.settings.resources.timeout_min == 90
