"""Promises of the names under which MLflow stores keys."""

from __future__ import annotations

import posixpath
import re

from hypothesis import given
from hypothesis import strategies as st

from hpckit.features.exporting.exported_run import build_mlflow_names

KEYS = st.text(st.sampled_from("ab@#/. _é"), max_size=6) | st.text(max_size=300)


@given(keys=st.lists(KEYS, unique=True, max_size=8))
def test_each_key_has_a_name_of_its_own_that_mlflow_takes(keys: list[str]) -> None:
    """The rules are those of its validation; in whatever order keys come, names are the same."""
    names = build_mlflow_names(keys)
    assert len(set(names.values())) == len(keys)
    assert build_mlflow_names(keys[::-1]) == names
    for name in names.values():
        assert re.fullmatch(r"[A-Za-z0-9_. :/-]{1,250}", name)
        assert posixpath.normpath(name) == name != "."
        assert not name.startswith(("..", "/"))


def test_a_key_that_mlflow_allows_keeps_its_name() -> None:
    """Also beside another one that would be the same; one that is alone needs no digest."""
    names = build_mlflow_names(["val/acc_1", "val/acc@1", "d@1", "/abs", "a//b", ""])
    assert names["val/acc_1"] == "val/acc_1"
    assert re.fullmatch(r"val/acc_1_[0-9a-f]{8}", names["val/acc@1"])
    assert [names[key] for key in ("d@1", "/abs", "a//b", "")] == ["d_1", "_/abs", "a/_/b", "_"]
