"""Promises of hpckit.model.cluster.nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.cluster.nodes import compress_to_hostlist, expand_hostlist, parse_task_counts

_NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,6}[0-9]{0,4}", fullmatch=True)
_FAMILIES = st.builds(
    lambda head, width, numbers: [f"{head}{number:0{width}d}" for number in numbers],
    st.sampled_from(["n", "gpu", "rack1-"]),
    st.integers(1, 3),
    st.lists(st.integers(0, 120), max_size=8),
)


@given(st.lists(_NAMES, max_size=20))
def test_compress_is_undone_by_expand(names: list[str]) -> None:
    """Any list of names comes back as it was: order, repetition and zeros kept."""
    assert expand_hostlist(compress_to_hostlist(names)) == tuple(names)


@given(st.lists(_FAMILIES, max_size=4))
def test_compress_of_numbered_families_is_undone_by_expand(families: list[list[str]]) -> None:
    """Names that differ in their number only come back as they were."""
    names = [name for family in families for name in family]
    assert expand_hostlist(compress_to_hostlist(names)) == tuple(names)


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("", ()),
        ("login", ("login",)),
        ("n[01-03,7]", ("n01", "n02", "n03", "n7")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("a,b[1-2],c", ("a", "b1", "b2", "c")),
        ("gpu[0-1]x[0-1]", ("gpu0x0", "gpu0x1", "gpu1x0", "gpu1x1")),
        ("n[1-2]-ib", ("n1-ib", "n2-ib")),
    ],
)
def test_expand_knows_slurms_grammar(hostlist: str, names: tuple[str, ...]) -> None:
    """Ranges, lists, zero padding, several brackets and tails are multiplied out in order."""
    assert expand_hostlist(hostlist) == names


@pytest.mark.parametrize("hostlist", ["n[1", "n1]", "n[[1]]", "a,,b", "a,", "n[]", "n[3-1]", "n[a]"])
def test_expand_refuses_what_is_no_hostlist(hostlist: str) -> None:
    """Half a bracket, an empty item or a backward range is an error, not a name."""
    with pytest.raises(ValueError, match="hostlist"):
        expand_hostlist(hostlist)


@pytest.mark.parametrize(
    ("names", "hostlist"),
    [
        (["n1", "n2", "n3"], "n[1-3]"),
        (["n01", "n02", "n04"], "n[01-02,04]"),
        (["n9", "n10"], "n9,n10"),
        (["a", "b"], "a,b"),
        (["n1"], "n1"),
    ],
)
def test_compress_writes_ranges_of_equal_width(names: list[str], hostlist: str) -> None:
    """Neighbours of one width share a bracket."""
    assert compress_to_hostlist(names) == hostlist


def test_compress_is_short_for_a_thousand_nodes() -> None:
    """A big job fits on a line."""
    assert compress_to_hostlist(f"n{number:04d}" for number in range(1000)) == "n[0000-0999]"


@pytest.mark.parametrize(("text", "counts"), [("3", (3,)), ("3,1(x2)", (3, 1, 1)), ("2(x3)", (2, 2, 2))])
def test_task_counts_expand_repetitions(text: str, counts: tuple[int, ...]) -> None:
    """SLURM_TASKS_PER_NODE becomes one count per node."""
    assert parse_task_counts(text) == counts


@pytest.mark.parametrize("text", ["", "x2", "3,", "3(2)", "-1", "3(x)"])
def test_task_counts_refuse_anything_else(text: str) -> None:
    """What is no list of counts is an error naming the part."""
    with pytest.raises(ValueError, match="not a list of task counts"):
        parse_task_counts(text)
