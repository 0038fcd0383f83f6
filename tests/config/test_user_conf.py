"""A user's own configuration in front of the shipped one, and what can be wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest, list_template_folders, shipped_conf_folder
from hpckit.config.session import open_hydra_session
from hpckit.config.slips import warn_about_suspicious_input
from hpckit.errors import ConfigError

Requester = Callable[..., ComposeRequest]
Writer = Callable[[Mapping[str, str]], Path]

_MINE = """\
# @package _global_
defaults:
  - override /resources: one_gpu
entry_point: train:main
lr: 0.5
model: {width: 3}
"""
_PRIMARY = """\
defaults:
  - hpckit
  - _self_
  - experiment: mine
  - override cluster: sandbox
lr: 0.1
extra: 1
"""


def test_user_experiment_uses_our_groups(request_for: Requester, write_conf: Writer) -> None:
    """Without a primary configuration of their own, an experiment stands in the shipped one."""
    write_conf({"experiment/mine": _MINE})
    (point,) = compose_sweep_points(request_for("experiment=mine", "model.width=5"))
    assert point.settings.resources.gpus_per_node == 1
    assert point.config["model"] == {"width": 5}
    assert point.config["lr"] == 0.5


def test_user_keys_are_swept_like_ours(request_for: Requester, write_conf: Writer) -> None:
    """Keys an experiment defines need no `+`."""
    write_conf({"experiment/mine": _MINE})
    points = compose_sweep_points(request_for("experiment=mine", "lr=1,2", multirun=True))
    assert [point.config["lr"] for point in points] == [1, 2]


def test_user_choice_on_the_command_line_wins(request_for: Requester, write_conf: Writer) -> None:
    """An experiment may choose resources; the command line has the final event."""
    write_conf({"experiment/mine": _MINE})
    (point,) = compose_sweep_points(request_for("experiment=mine", "resources=cpu"))
    assert point.settings.resources.gpus_per_node == 0


def test_user_primary_extends_ours(request_for: Requester, write_conf: Writer) -> None:
    """A config.yaml that builds on hpckit's is taken; its experiment still wins over it."""
    write_conf({"config": _PRIMARY, "experiment/mine": _MINE})
    (point,) = compose_sweep_points(request_for())
    assert (point.config["lr"], point.config["extra"]) == (0.5, 1)
    assert point.settings.cluster.partition == "batch"


def test_user_primary_is_chosen_by_name(request_for: Requester, write_conf: Writer) -> None:
    """--config-name takes any primary configuration, also one on top of the shipped config."""
    write_conf({"train": "defaults: [config, _self_]\nlr: 3\n"})
    (point,) = compose_sweep_points(request_for(config_name="train"))
    assert point.config["lr"] == 3


def test_user_primary_may_leave_self_out(request_for: Requester, write_conf: Writer) -> None:
    """Leaving `_self_` out means the end of the list, without a warning."""
    write_conf({"config": "defaults: [hpckit]\nlr: 3\n"})
    (point,) = compose_sweep_points(request_for())
    assert point.config["lr"] == 3


def test_user_search_path_is_followed(tmp_path: Path, request_for: Requester, write_conf: Writer) -> None:
    """hydra.searchpath of the primary configuration adds folders behind ours."""
    (tmp_path / "site" / "cluster").mkdir(parents=True)
    (tmp_path / "site" / "cluster" / "lab.yaml").write_text("partition: ???\n", encoding="utf-8")
    path = f"hydra: {{searchpath: ['file://{tmp_path}/site']}}\n"
    write_conf({"config": f"defaults: [hpckit, _self_]\n{path}"})
    (point,) = compose_sweep_points(request_for("cluster=lab", "cluster.partition=a"))
    assert point.settings.cluster.partition == "a"
    with pytest.raises(ConfigError, match=r"cluster\.partition is mandatory"):
        compose_sweep_points(request_for("cluster=lab"))


def test_users_hydra_section_is_checked_by_hydra(request_for: Requester, write_conf: Writer) -> None:
    """A slip in it is an error, and a right one composes, though no run reads it."""
    write_conf({"config": "defaults: [hpckit, _self_]\nhydra: {run: {dirr: x}}\n"})
    with pytest.raises(ConfigError, match=r"hydra\.run\.dirr"):
        compose_sweep_points(request_for())
    files = "[hpckit, _self_, {override hydra/job_logging: disabled}]"
    write_conf({"config": f"defaults: {files}\nhydra: {{run: {{dir: x}}}}\nlr: 3\n"})
    (point,) = compose_sweep_points(request_for())
    assert (point.config["lr"], "hydra" in point.config) == (3, False)


def test_plugins_that_an_application_chooses_need_not_be_installed(
    request_for: Requester, write_conf: Writer
) -> None:
    """A launcher or logging of its `hydra:` section is for its own start; no run of ours reads it."""
    own = "[_self_, {hydra: mine}, {override hydra/launcher: of_another_site}]"
    write_conf(
        {
            "config": "defaults: [hpckit, app, _self_]\n",
            "app": f"defaults: {own}\nlr: 3\nhydra: {{launcher: {{timeout_min: 5}}, job: {{name: x}}}}\n",
            "hydra/mine": "defaults: [{override job_logging: colourful}]\nrun: {dir: x}\n",
        }
    )
    (point,) = compose_sweep_points(request_for("command=true"))
    assert (point.config["lr"], "hydra" in point.config) == (3, False)
    with open_hydra_session(request_for()) as session:
        assert session.list_composed_files()[-2:] == ("app", "config")


def test_user_folder_is_the_one_named_first(tmp_path: Path, request_for: Requester) -> None:
    """--config-dir is taken before HPCKIT_CONFIG_DIR, and that before ./conf."""
    for name in ("option", "variable", "conf"):
        (tmp_path / name).mkdir()
        text = f"defaults: [hpckit, _self_]\nname: {name}\n"
        (tmp_path / name / "config.yaml").write_text(text, encoding="utf-8")
    environ = {"HPCKIT_CONFIG_DIR": str(tmp_path / "variable")}
    requests = (
        request_for(config_dir=tmp_path / "option", environ=environ),
        request_for(environ=environ),
        request_for(environ={"HPCKIT_CONFIG_DIR": ""}),
    )
    names = [compose_sweep_points(request)[0].settings.name for request in requests]
    assert names == ["option", "variable", "conf"]


def test_site_folder_is_searched_after_the_users(
    tmp_path: Path, request_for: Requester, write_conf: Writer
) -> None:
    """A site's clusters and defaults hold for all users; a user's own file of a name is taken."""
    site, folders = tmp_path / "site" / "conf", {"cluster/lab": "partition: site\n"}
    primary = "defaults: [hpckit, _self_, {experiment: null}]\nname: theirs\n"
    texts = {"config": primary, **folders}
    for name, text in {**texts, "cluster/other": "partition: other\n"}.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / f"{name}.yaml").write_text(text, encoding="utf-8")
    (site.parent / "slurm_templates").mkdir()
    environ = {"HPCKIT_SITE_CONFIG_DIR": str(site)}

    words = ("experiment=command", "command=[true]")
    own = replace(request_for("cluster=lab", *words), environ=environ)
    assert compose_sweep_points(own)[0].settings.cluster.partition == "site"
    assert compose_sweep_points(own)[0].settings.name == "theirs"
    write_conf({"cluster/lab": "partition: mine\n"})
    (point,) = compose_sweep_points(own)
    assert (point.settings.name, point.settings.cluster.partition) == ("theirs", "mine")
    other = replace(request_for("cluster=other", *words), environ=environ)
    assert compose_sweep_points(other)[0].settings.cluster.partition == "other"
    shipped = shipped_conf_folder().parent / "slurm_templates"
    assert list_template_folders(own) == (site.parent / "slurm_templates", shipped)
    with pytest.raises(ConfigError, match="from HPCKIT_SITE_CONFIG_DIR"):
        compose_sweep_points(replace(own, environ={"HPCKIT_SITE_CONFIG_DIR": "/no"}))
    site.chmod(0o777)
    with pytest.raises(ConfigError, match="every user can write there"):
        compose_sweep_points(own)


def test_user_templates_lie_beside_their_conf(
    tmp_path: Path, request_for: Requester, write_conf: Writer
) -> None:
    """Templates are looked for beside the user's conf first, then among the shipped ones."""
    write_conf({"experiment/mine": _MINE})
    shipped = shipped_conf_folder().parent / "slurm_templates"
    assert list_template_folders(request_for()) == (shipped,)
    (tmp_path / "slurm_templates").mkdir()
    assert list_template_folders(request_for()) == (tmp_path / "slurm_templates", shipped)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"config_dir": Path("nope")}, "/nope (from --config-dir) does not exist"),
        ({"config_dir": Path("file")}, "/file (from --config-dir) is not a folder"),
        ({"environ": {"HPCKIT_CONFIG_DIR": "/no"}}, "/no (from HPCKIT_CONFIG_DIR) does not exist"),
        ({"config_name": "confg"}, "Did you mean config?"),
    ],
)
def test_user_conf_that_is_not_there_is_named(
    fields: dict[str, object], message: str, tmp_path: Path, request_for: Requester
) -> None:
    """A folder or a primary configuration that does not exist is an error, never passed over."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        compose_sweep_points(request_for(**fields))
    assert message in caught.value.message
    assert caught.value.hint


_LAB = "conf/cluster/lab.yaml"
_WRONG = {
    "not YAML": ("kind: slurm\n  x: [1\n", f"{_LAB}, line 2, column 4: not valid YAML"),
    "not closed": ("kind: slurm\nx: [1\n", f"{_LAB}, line 3, column 1: not valid YAML"),
    "double key": ("kind: slurm\nkind: local\n", f"{_LAB}, line 2, .*duplicate key kind"),
    "unknown key": ("partitoin: x\n", f"{_LAB}: cluster.partitoin is not.*mean partition"),
    "wrong type": ("gpus_per_node: x\n", f"{_LAB}: cluster.gpus_per_node: Value 'x'.*Integer"),
    "a list": ("- a\n- b\n", f"{_LAB}: it is a list, but must be a mapping"),
    "mandatory": ("partition: ???\n", "^cluster.partition is mandatory"),
    "not text": ("kind: \udcff\n", f"{_LAB} is not text in UTF-8"),
    "lost default": ("defaults: [nope]\n", f"{_LAB}: there is no cluster/nope|no option 'nope'"),
    "lost override": ("defaults: [{override /nope: x}]\n", f"{_LAB}: .*nope"),
}


@pytest.mark.parametrize(("text", "message"), _WRONG.values(), ids=_WRONG.keys())
def test_user_file_that_is_wrong_is_named(
    text: str, message: str, request_for: Requester, write_conf: Writer
) -> None:
    """What is wrong inside a user's file is told with the file, and the line where YAML fails."""
    conf = write_conf({"cluster/lab": ""})
    (conf / "cluster" / "lab.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        compose_sweep_points(request_for("cluster=lab"))
    assert re.search(message, caught.value.message), caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: 3\n", "conf/config.yaml does not build on hpckit's configuration"),
        ("defaults: [hpckti]\n", "conf/config.yaml: there is no hpckti"),
        ("defaults: {hpckit: 3}\n", "defaults must be a list|must be a list"),
        ("defaults: [hpckit, {override clster: a}]\n", "conf/config.yaml: .*clster"),
        ("defaults: [hpckit, {override cluster: sandbax}]\n", "Did you mean sandbox"),
        ("defaults: [hpckit, _self_]\ncluster: null\n", "conf/config.yaml: cluster: "),
        ("defaults: [hpckit, _self_]\nx: !!binary aGVsbG8=\n", "x is a bytes"),
        ("defaults: [hpckit]\nhydra: {searchpath: ['file:///no']}\n", "/no is not available"),
    ],
)
def test_user_primary_that_is_wrong_is_told(
    text: str, message: str, request_for: Requester, write_conf: Writer
) -> None:
    """A primary configuration that cannot work says which file it is and what is wrong."""
    write_conf({"config": text})
    with pytest.raises(ConfigError) as caught:
        compose_sweep_points(request_for())
    assert re.search(message, caught.value.message), caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("line", ["base_config", "model: base_linear", "resources: big"])
def test_what_code_stores_in_hydra_is_suspected_where_it_is_missing(
    line: str, request_for: Requester, write_conf: Writer
) -> None:
    """An application that imports its structured configs itself works only with `imports`."""
    conf = write_conf({"config": f"defaults: [hpckit, {{{line}}}, _self_]\n"})
    if ":" not in line:
        (conf / "config.yaml").write_text(f"defaults: [hpckit, {line}, _self_]\n")
    with pytest.raises(ConfigError, match=line.partition(":")[0]) as caught:
        compose_sweep_points(request_for())
    assert "imports=[myapp.config]" in caught.value.hint


def test_primary_beside_a_foreign_one_works_as_it_is_advised(
    request_for: Requester, write_conf: Writer
) -> None:
    """Both defaults lists that the error names compose; another one says what it lacks."""
    experiment = "# @package _global_\nentry_point: x:y\nlr: 5\n"
    write_conf(
        {
            "config": "lr: 3\nmodel: {depth: 2}\n",
            "experiment/mine": experiment,
            "hpc": "defaults: [hpckit, config, _self_, experiment: null]\n",
            "plain": "defaults: [hpckit, _self_]\n",
        }
    )
    with pytest.raises(ConfigError) as caught:
        compose_sweep_points(request_for())
    assert "defaults: [hpckit, _self_]" in caught.value.hint
    assert "defaults: [hpckit, config, _self_, experiment: null]" in caught.value.hint
    (point,) = compose_sweep_points(request_for("experiment=mine", config_name="hpc"))
    assert (point.config["lr"], point.config["model"]) == (5, {"depth": 2})
    with pytest.raises(ConfigError) as caught:
        compose_sweep_points(request_for("experiment=mine", config_name="plain"))
    assert "has no experiment to replace" in caught.value.message
    assert "Write +experiment=mine" in caught.value.hint
    assert compose_sweep_points(request_for("+experiment=mine", config_name="plain"))[0].config["lr"] == 5


def test_user_values_are_made_plain(request_for: Requester, write_conf: Writer) -> None:
    """Keys become text, as JSON will make them, so that a run reads what was planned."""
    write_conf({"config": "defaults: [hpckit, _self_]\ntable: {1: a, x: [b, {2: c}]}\n"})
    (point,) = compose_sweep_points(request_for())
    assert point.config["table"] == {"1": "a", "x": ["b", {"2": "c"}]}


def test_files_take_units_as_overrides_do(request_for: Requester, write_conf: Writer) -> None:
    """What works on the command line works where people keep it: in every file, at any package."""
    mine = "# @package _global_\nentry_point: train:main\nresources: {mem_gb: 512MB}\nwait_s: 2h\n"
    group = "defaults: [cpu]\ntimeout_min: 2h\n"
    write_conf({"experiment/mine": mine, "resources/long": group})
    for _ in range(2):
        (point,) = compose_sweep_points(request_for("experiment=mine", "resources=long"))
        resources = point.settings.resources
        assert (resources.timeout_min, resources.mem_gb) == (120, 0.5)
    assert point.config["wait_s"] == "2h"
    write_conf({"resources/long": "timeout_min: 2 parsecs\n"})
    with pytest.raises(ConfigError, match="timeout_min"):
        compose_sweep_points(request_for("experiment=mine", "resources=long"))


def test_file_of_ours_that_a_command_would_not_read_is_refused(
    request_for: Requester, write_conf: Writer
) -> None:
    """Without `hpckit` in its defaults list it counts as another program's: nothing of it holds."""
    request = replace(request_for(), command=("true",))
    write_conf({"config": "lr: 0.1\nresources: {of: cpu}\n"})
    (point,) = compose_sweep_points(request)
    assert "lr" not in point.config
    write_conf({"config": "resources: {timeout_min: 60}\ncluster: {partition: batch}\n"})
    with pytest.raises(ConfigError) as caught:
        compose_sweep_points(request)
    assert "sets cluster.partition, resources.timeout_min, and has no `hpckit`" in caught.value.message
    write_conf({"config": "defaults: [hpckit, _self_]\nresources: {timeout_min: 60}\n"})
    (point,) = compose_sweep_points(request)
    assert point.settings.resources.timeout_min == 60


def test_cluster_of_the_site_holds_beside_a_users_primary(
    tmp_path: Path, request_for: Requester, write_conf: Writer
) -> None:
    """cluster/auto.yaml is what users get who choose none, whoever wrote the config.yaml."""
    site = tmp_path / "site"
    (site / "cluster").mkdir(parents=True)
    text = "kind: auto\npartition: batch\naccount: demo\n"
    (site / "cluster" / "auto.yaml").write_text(text, encoding="utf-8")
    environ = {"HPCKIT_SITE_CONFIG_DIR": str(site)}
    for defaults in ("[hpckit, _self_]", "[_self_]"):  # one of theirs, one of another program
        write_conf({"config": f"defaults: {defaults}\n"})
        (point,) = compose_sweep_points(replace(request_for(), command=("true",), environ=environ))
        cluster = point.settings.cluster
        assert (cluster.partition, cluster.account) == ("batch", "demo")


def test_keys_that_stand_before_hpckit_are_told(request_for: Requester, write_conf: Writer) -> None:
    """Its own values would count instead, silently; in the right order nothing is said."""
    write_conf({"config": "seed: 42\nlr: 1\n"})
    for order, told in (("config, hpckit", ["seed"]), ("hpckit, config", [])):
        write_conf({"hpc": f"defaults: [{order}, _self_]\n"})
        request = request_for(config_name="hpc")
        assert [
            one.key for one in warn_about_suspicious_input(request, compose_sweep_points(request))
        ] == told


@pytest.mark.filterwarnings(r"ignore:\s*'hydra/:UserWarning")
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("hydra/config", None),  # Hydra takes none at all
        ("hydra/launcher/basic", "_target_: some.Launcher"),
        ("hydra/sweeper/basic", "max_batch_size: null"),
    ],
)
def test_file_in_place_of_hydras_own_is_checked_by_hydra(
    file: str, line: str | None, request_for: Requester, write_conf: Writer
) -> None:
    """It is composed as by every Hydra program, and what Hydra refuses in it is told."""
    if line is not None:
        write_conf({file: line})
        compose_sweep_points(request_for("experiment=command", "command=[x]"))
    write_conf({file: "nothing_of_hydra: 3\n"})
    with pytest.raises(ConfigError, match=r"nothing_of_hydra|'hydra/config' is validated"):
        compose_sweep_points(request_for("experiment=command", "command=[x]"))


@pytest.mark.parametrize("line", ['x: "\\ud800"', '"\\ud800": 1', 'x: ["a\\udfff"]'])
def test_half_a_character_is_refused(line: str, request_for: Requester, write_conf: Writer) -> None:
    """YAML takes it, and no file that a launch writes could hold it."""
    write_conf({"experiment/mine": f"# @package _global_\nentry_point: x:y\n{line}\n"})
    with pytest.raises(ConfigError, match=r"ud800|udfff") as caught:
        compose_sweep_points(request_for("experiment=mine"))
    assert caught.value.message.isascii()
