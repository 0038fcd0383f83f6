"""Promises of planning.checks.config about entry points: the right form is named."""

from __future__ import annotations

import pytest

from hpckit.errors import ConfigError
from hpckit.model.launch import LaunchConfig
from hpckit.planning.checks.config import check_settings


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
        check_settings(LaunchConfig(entry_point=given))
    assert caught.value.hint.startswith(f"write entry_point={meant}")
