"""What a container shows of its node: all that a run needs, at the same path, and nothing twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import ConfigError
from hpckit.features.containers.mounts import Mount, parse_mount, plan_mounts

PARTS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
MOUNTS = st.builds(Mount, source=PARTS, target=PARTS, read_only=st.booleans())


def seen(mounts: list[Mount], path: str) -> tuple[str, bool] | None:
    """Return what a container shows at a path: of the innermost mount, the source and its mode."""
    for mount in reversed(mounts):
        inside = os.path.relpath(path, mount.target)
        if not inside.startswith(".."):
            return os.path.normpath(f"{mount.source}/{inside}"), mount.read_only
    return None


@given(needed=st.lists(PARTS, max_size=5), named=st.lists(MOUNTS, max_size=4))
def test_all_that_is_needed_or_named_is_there(needed: list[str], named: list[Mount]) -> None:
    """What is named wins at its own place; the order of mounts is one that can be mounted."""
    planned = plan_mounts(needed, named)
    last = {mount.target: mount for mount in named}
    for target, mount in last.items():
        assert seen(planned, target) == (mount.source, mount.read_only)
    for path in needed:
        if not any(path == target or path.startswith(f"{target}/") for target in last):
            assert seen(planned, path) == (path, False)
    targets = [mount.target for mount in planned]
    assert targets == sorted({*targets})


@given(needed=st.lists(PARTS, max_size=6))
def test_nothing_is_mounted_twice(needed: list[str]) -> None:
    """A folder that is there with one above it has no mount of its own."""
    targets = [mount.target for mount in plan_mounts(needed, [])]
    inner = [one for one in targets for other in targets if one.startswith(f"{other}/")]
    assert inner == []


def test_links_are_there_with_what_they_lead_to(tmp_path: Path) -> None:
    """Both by the path that the run has, and by the real one."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    planned = plan_mounts([str(link)], [])
    assert {(mount.source, mount.target) for mount in planned} == {
        (str(real), str(link)),
        (str(real), str(real)),
    }


@pytest.mark.parametrize("text", ["data", "/a:b", "/a:/b:rx", "/a:/b:ro:rw", "/a,b", "/a:/", ""])
def test_mount_that_no_runtime_can_be_told_is_refused(text: str) -> None:
    """With the key, the value and the form."""
    with pytest.raises(ConfigError) as refused:
        parse_mount(text, "container.mounts")
    assert "container.mounts" in refused.value.message
    assert repr(text) in refused.value.message


@pytest.mark.parametrize("path", ["/data/a:b", "/data/a,b"])
def test_needed_path_that_no_runtime_can_be_told_is_refused(path: str) -> None:
    """A launch folder with a colon is such a path."""
    with pytest.raises(ConfigError):
        plan_mounts([path], [])
