"""`data=stage` chooses hpckit's data group only where `data` is nothing of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.config.compose import compose_sweep_points
from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError


def _compose(
    folder: Path, *words: str, files: dict[str, str] | None = None, many: bool = False
) -> list[object]:
    for name, text in (files or {}).items():
        path = folder / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    request = ComposeRequest(
        overrides=words, command=None if files else ("true",), environ={}, cwd=folder, multirun=many
    )
    points = compose_sweep_points(request)
    assert all(word in points[0].overrides for word in words if "," not in word)
    return [point.config.get("data") for point in points]


def test_the_word_adds_the_group(tmp_path: Path) -> None:
    """`data=stage` works without a plus, with keys below it, in any order; the record keeps the words."""
    words = ("+data.stage.a.source=/x", "data.dir=/local", "data=stage")
    (found,) = _compose(tmp_path, *words)
    assert isinstance(found, dict)
    assert (found["dir"], found["stage"]) == ("/local", {"a": {"source": "/x"}})
    assert _compose(tmp_path, "+data=stage") == _compose(tmp_path, "data=stage")


def test_the_group_can_be_swept_below(tmp_path: Path) -> None:
    """Points of a sweep may have other sources."""
    found = _compose(tmp_path, "data=stage", "+data.stage.a.source=/x,/y", many=True)
    assert [one["stage"]["a"]["source"] for one in found] == ["/x", "/y"]  # type: ignore[index]


def test_without_the_word_there_is_no_data(tmp_path: Path) -> None:
    """Runs that stage nothing have no such section."""
    assert _compose(tmp_path) == [None]


def test_a_key_of_the_user_stays_a_key(tmp_path: Path) -> None:
    """A program with its own `data` sees what it always saw: a text, a mapping, or an added key."""
    own = {"config.yaml": "defaults: [hpckit, _self_]\ncommand: 'true'\ndata: a.csv\n"}
    assert _compose(tmp_path, "data=b.csv", files=own) == ["b.csv"]
    assert _compose(tmp_path, "data=stage", files=own) == ["stage"]
    assert _compose(tmp_path, "data=b.csv,c.csv", files=own, many=True) == ["b.csv", "c.csv"]
    own = {"config.yaml": "defaults: [hpckit, _self_]\ncommand: 'true'\n"}
    assert _compose(tmp_path, "+data=b.csv", files=own) == ["b.csv"]
    assert _compose(tmp_path, "+data.path=x", files=own) == [{"path": "x"}]


def test_a_group_of_the_user_stays_the_users(tmp_path: Path) -> None:
    """Options of a group of this name in the user's conf are chosen as ever."""
    own = {
        "config.yaml": "defaults: [hpckit, _self_, data: cifar]\ncommand: 'true'\n",
        "data/cifar.yaml": "classes: 10\n",
        "data/imagenet.yaml": "classes: 1000\n",
    }
    assert _compose(tmp_path, files=own) == [{"classes": 10}]
    assert _compose(tmp_path, "data=imagenet", files=own) == [{"classes": 1000}]
    assert _compose(tmp_path, "data=cifar,imagenet", files=own, many=True) == [
        {"classes": 10},
        {"classes": 1000},
    ]


def test_a_file_may_choose_it(tmp_path: Path) -> None:
    """In a defaults list the group is chosen as any other; then the word changes nothing."""
    own = {"config.yaml": "defaults: [hpckit, _self_, data: stage]\ncommand: 'true'\n"}
    (found,) = _compose(tmp_path, "data.dir=/local", files=own)
    assert isinstance(found, dict)
    assert found["dir"] == "/local"
    assert _compose(tmp_path, "data=stage", "data.dir=/local", files=own) == [found]


def test_none_is_no_data(tmp_path: Path) -> None:
    """Also where a file chooses the group; a key of the user's is set as ever."""
    assert _compose(tmp_path, "data=none") == _compose(tmp_path, "+data=none") == [None]
    own = {"config.yaml": "defaults: [hpckit, _self_, data: stage]\ncommand: 'true'\n"}
    assert _compose(tmp_path, "data=none", files=own) == [None]
    own = {"config.yaml": "defaults: [hpckit, _self_]\ncommand: 'true'\ndata: a.csv\n"}
    assert _compose(tmp_path, "data=none", files=own) == ["none"]


def test_another_word_is_told_of_the_group(tmp_path: Path) -> None:
    """A name of a source is no option of the group."""
    with pytest.raises(ConfigError, match=r"Did you mean data=stage"):
        _compose(tmp_path, "data=imagenet")


def test_an_unknown_key_below_it_is_refused(tmp_path: Path) -> None:
    """A typing mistake below the group is found as below any other."""
    with pytest.raises(ConfigError, match=r"there is no key data\.dri"):
        _compose(tmp_path, "data=stage", "data.dri=/x")


@pytest.mark.parametrize(
    "word", ["data.stage.a.source=/x", "data.stage.a={source: /x}", "data.out.a.every_s=9"]
)
def test_an_item_without_a_plus_is_told_how_to_write_it(tmp_path: Path, word: str) -> None:
    """It is no key of the user's own, nor a misspelt one."""
    with pytest.raises(ConfigError) as raised:
        _compose(tmp_path, "data=stage", word)
    assert "there is no item a in data." in raised.value.message
    assert raised.value.hint == f"To add it, write +{word}"
