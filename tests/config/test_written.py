"""Promises of config.written: in hpckit's own keys a file means what an override means.

Both mean what was typed, if it is a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from hpckit.config import session
from hpckit.config.compose import compose_sweep_points
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
        ("env: {A: on, B: no, C: Yes}", "env", {"A": "on", "B": "no", "C": "Yes"}),
        ("env:\n  A: OFF # not on", "env.A", "OFF"),
        ("env: {A: &a off}", "env.A", "off"),
        ("env: {A: .inf, B: -0}", "env", {"A": ".inf", "B": "-0"}),
        ("name: on", "name", "on"),
        ("cluster: {modules: [on]}", "cluster.modules.0", "on"),
        ("command: [x.py, --b, no]", "command", ["x.py", "--b", "no"]),
        ("command: [x.py, true, False]", "command", ["x.py", True, False]),
        ("monitor: {enabled: no}", "monitor.enabled", False),
    ],
)
def test_value_that_yaml_reads_otherwise(
    line: str, key: str, value: object, request_for: Requester, write_conf: Writer
) -> None:
    """Base 60, a leading 0, zeros at the end, `on` and `no`: the text counts, as after `=`."""
    write_conf({"experiment/mine": f"# @package _global_\nentry_point: x:y\n{line}\n"})
    (point,) = compose_sweep_points(request_for("experiment=mine"))
    assert _of(point.config, key) == value


_OVERRIDES = [
    (("env.V=2024.10",), "env.V", "2024.10"),
    (("env.V=1_000",), "env.V", "1_000"),
    (("+env.V=1E5",), "env.V", "1E5"),
    (("++env.V= .5 ",), "env.V", ".5"),
    (("env={V:1.10,W:-0}",), "env", {"V": "1.10", "W": "-0"}),
    (("name=1.10",), "name", "1.10"),
    (("name=NaN",), "name", "NaN"),
    (("resources.account=1.10",), "resources.account", "1.10"),
    (("resources={account:1.10}",), "resources.account", "1.10"),
    (("tracker.project=1.10",), "tracker.project", "1.10"),
    (("cluster.modules=[2024.10, 1e3,python/3.10]",), "cluster.modules.0", "2024.10"),
    (("cluster.modules=[2024.10, 1e3,python/3.10]",), "cluster.modules.1", "1e3"),
    (("command=[sleep,1.50,5]",), "command", ["sleep", "1.50", 5]),
    (("env.V=1.10", "~env.V=1.10"), "env", {}),
    # These are no texts as they stand, or texts already.
    (("env.V='1.10'",), "env.V", "1.10"),
    (("env.V=int(1.10)",), "env.V", "1"),
    (("cluster.modules=[float(1.10),'1e3']",), "cluster.modules", ["1.1", "1e3"]),
    (("name=null",), "name", None),
    (("command=[x,true,False,null]",), "command", ["x", True, False, None]),
    (("+v=1.10", "env.V=${v}"), "env.V", "1.1"),
    (("checkpoint.interval_min=1e2",), "checkpoint.interval_min", 100.0),
]


@pytest.mark.parametrize(("words", "key", "value"), _OVERRIDES)
def test_number_that_is_typed_for_a_text(
    words: tuple[str, ...], key: str, value: object, request_for: Requester
) -> None:
    """An unquoted number of a key that takes texts is what was typed; its words are kept."""
    given = ("experiment=command", "command=[x]", *words)
    (point,) = compose_sweep_points(request_for(*given))
    assert repr(_of(point.config, key)) == repr(value)
    assert point.overrides == given


def test_number_is_read_alike_beside_hydras_own_section(request_for: Requester, write_conf: Writer) -> None:
    """Where a file sets some of it, Hydra itself composes."""
    write_conf({"config": "defaults: [hpckit, _self_]\nhydra: {job: {name: x}}\n"})
    words = ("+experiment=command", "command=[x]", "env={V:1.10}", "name=1.10")
    (point,) = compose_sweep_points(request_for(*words))
    assert (point.config["env"], point.config["name"]) == ({"V": "1.10"}, "1.10")


@pytest.mark.parametrize(
    ("word", "key", "values"),
    [
        ("env.V=1.10,1.20", "env.V", ["1.10", "1.20"]),
        ("env.V=choice(1.10, 1E5)", "env.V", ["1.10", "1E5"]),
        ("+env.V= 1.10 ,x", "env.V", ["1.10", "x"]),
        ("env.V=range(1,2,0.5)", "env.V", ["1.0", "1.5"]),
        ("name=1.10,null", "name", ["1.10", None]),
        ("command=1.10,5", "command", ["1.10", 5]),
        ("cluster.modules=[1.10],[1.20,2]", "cluster.modules", [["1.10"], ["1.20", "2"]]),
        ("env={V:1.10},{V:1.20}", "env.V", ["1.10", "1.20"]),
        ("resources.additional_parameters.q=1.10,2", "resources.additional_parameters.q", None),
    ],
)
def test_swept_numbers_of_a_text(
    word: str, key: str, values: list[object] | None, request_for: Requester
) -> None:
    """Each point has what was typed for it, and so has a run with its overrides alone."""
    words = ("experiment=command", "command=[x]", word)
    points = compose_sweep_points(request_for(*words, multirun=True))
    assert [_of(point.config, key) for point in points] == (values or ["1.10", 2])
    for point in points:
        assert compose_sweep_points(request_for(*point.overrides)) == (point,)


def test_columns_and_words_of_stages_are_read_alike(
    tmp_path: Path, request_for: Requester, write_conf: Writer
) -> None:
    """As they would be typed on the command line."""
    (tmp_path / "p.csv").write_text("env.V,+lr\n1.10,1e3\n1.20,2.50\n", encoding="utf-8")
    words = ("experiment=command", "command=[x]", "sweep.points=p.csv")
    points = compose_sweep_points(request_for(*words, multirun=True))
    assert [(p.config["env"]["V"], p.config["lr"]) for p in points] == [("1.10", 1000.0), ("1.20", 2.5)]
    stages = "stages: {a: {overrides: [env.X=2.10, +lr=2.10]}, b: {after: afterok}}\n"
    write_conf({"experiment/mine": f"# @package _global_\nentry_point: x:y\n{stages}"})
    first, second = compose_sweep_points(request_for("experiment=mine", "b:env.X=3.10"))
    assert (first.config["env"], first.config["lr"]) == ({"X": "2.10"}, 2.1)
    assert second.config["env"] == {"X": "3.10"}


@pytest.mark.parametrize("word", ["env=1.10", "cluster.modules=1.10", "stages=1.10"])
def test_number_for_several_texts_is_refused_as_a_number(word: str, request_for: Requester) -> None:
    """It is no text of theirs: the error names what it is."""
    with pytest.raises(ConfigError, match=r"=1\.10: .*\bfloat\b"):
        compose_sweep_points(request_for("experiment=command", "command=[x]", word))


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
        compose_sweep_points(request_for("experiment=mine"))
    assert "conf/experiment/mine.yaml: " in caught.value.message
    assert " takes a whole number" in caught.value.hint


def test_values_of_the_user_are_what_hydra_reads(request_for: Requester, write_conf: Writer) -> None:
    """The same application may be started without hpckit: each value is that of plain Hydra."""
    params = "{a: 1:30:00, b: 22:22, c: 010, d: 1_000, e: 1e3, f: 1.10, g: [0o7, 0b1, 1:2.5], "
    params += "h: on, i: [no, Yes], j: .inf, k: -0}"
    text = f"params: {params}\nmy: {{timeout_min: 1:30, port: 010}}\n"
    folder = write_conf({"app": text, "hpc": "defaults: [hpckit, app, _self_]\n"})
    words = ["params.a=1.10", "params.b=[1_000,{x:1E5}]", "+my.name=.50", "++env2={V:1.10}"]
    given = ("+experiment=command", "command=[x]", *words)
    (point,) = compose_sweep_points(request_for(*given, config_name="hpc"))
    (unchanged,) = compose_sweep_points(request_for(*given[:2], config_name="hpc"))
    with initialize_config_dir(config_dir=str(folder), **session.VERSION_BASE):
        typed: Any = OmegaConf.to_container(hydra_compose("app", overrides=words))
        plain: Any = OmegaConf.to_container(hydra_compose("app"))
    assert repr({key: point.config[key] for key in typed}) == repr(typed)
    assert repr({key: unchanged.config[key] for key in plain}) == repr(plain)
    assert plain["params"]["a"] == 5400


def test_file_below_two_packages_has_units_where_they_are_ours(
    request_for: Requester, write_conf: Writer
) -> None:
    """What one of them makes of a value does not reach the other."""
    mine = "# @package _global_\ndefaults: [/resources@params.r: long, override /resources: long]\n"
    for text in ("2h", "2:00:00"):
        write_conf(
            {"resources/long": f"timeout_min: {text}\n", "experiment/mine": f"{mine}entry_point: x:y\n"}
        )
        (point,) = compose_sweep_points(request_for("experiment=mine"))
        assert point.settings.resources.timeout_min == 120
        assert point.config["params"]["r"]["timeout_min"] == ("2h" if text == "2h" else 7200)


def test_file_of_a_package_is_read_alike(
    tmp_path: Path, request_for: Requester, write_conf: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search path may name a Python package instead of a folder."""
    folder = tmp_path / "written_conf" / "resources"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "long.yaml").write_text("timeout_min: 1:30:00\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    write_conf({"config": "defaults: [hpckit, _self_]\nhydra: {searchpath: ['pkg://written_conf']}\n"})
    (point,) = compose_sweep_points(request_for("resources=long"))
    assert point.settings.resources.timeout_min == 90
