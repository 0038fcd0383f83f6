"""What --cfg and --info show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from hpckit.config.request import ComposeRequest, shipped_conf_folder
from hpckit.config.show import render_config, render_config_sources
from hpckit.errors import ConfigError

Requester = Callable[..., ComposeRequest]
Writer = Callable[[Mapping[str, str]], Path]


def test_show_config_shows_what_is_still_open(request_for: Requester) -> None:
    """The plain view needs nothing: missing values and interpolations stand as written."""
    text = render_config(request_for("experiment=command", "resources=one_node"))
    shown = yaml.safe_load(text)
    assert shown["command"] == "???"
    assert shown["resources"]["nodes"] == 1
    assert shown["resources"]["gpus_per_node"] == "${cluster.gpus_per_node}"


def test_show_config_takes_a_part(request_for: Requester) -> None:
    """A dotted path shows that part alone, a single value too; a wrong one names the nearest."""
    request = request_for("recovery=never")
    shown = yaml.safe_load(render_config(request, package="recovery"))
    assert (shown["recovery"]["requeue"], shown["recovery"]["restarts"]) == (False, {})
    assert render_config(request, package="recovery.requeue") == "recovery.requeue: false\n"
    with pytest.raises(ConfigError, match=r"Did you mean recovery\?"):
        render_config(request, package="recovry")


def test_show_config_of_a_sweep_shows_every_point(request_for: Requester) -> None:
    """Points are YAML documents headed by their overrides."""
    text = render_config(request_for("seed=1,2", multirun=True))
    assert [document["seed"] for document in yaml.safe_load_all(text)] == [1, 2]
    assert text.startswith("# seed=1\n")


def test_show_info_tells_searchpath_groups_and_files(request_for: Requester, write_conf: Writer) -> None:
    """The user's folder comes before ours; groups list the options of both."""
    conf = write_conf({"cluster/lab": "kind: slurm\n"})
    text = render_config_sources(request_for("cluster=lab", "experiment=digits"))
    assert text.index(str(conf)) < text.index(str(shipped_conf_folder()))
    assert "cluster: auto, lab, local, sandbox, slurm" in text
    assert text.index("hpckit_schema") < text.index("cluster/lab") < text.index("experiment/digits")
    assert "Groups" not in render_config_sources(request_for(), "searchpath")


def test_show_info_of_something_else_lists_what_there_is(request_for: Requester) -> None:
    """An unknown topic is an error that lists the topics."""
    with pytest.raises(ConfigError, match="Did you mean groups") as caught:
        render_config_sources(request_for(), "group")
    assert "searchpath" in caught.value.hint
