"""Promises of hpckit.model.ids."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.ids import JobId, build_launch_id, build_run_id, slugify_name, split_run_id

_SAFE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


@given(st.text())
def test_slug_is_safe_and_never_empty(name: str) -> None:
    """Whatever a launch is called, its slug is a short word for paths and job names."""
    made = slugify_name(name)
    assert made
    assert set(made) <= _SAFE
    assert len(made) <= 40
    assert slugify_name(made) == made


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits", "digits"),
        ("a name; rm -rf $(HOME)\n", "a-name-rm--rf-HOME"),
        ("größe", "groe"),
        ("../..", "run"),
        ("", "run"),
    ],
)
def test_slug_keeps_what_can_be_kept(name: str, expected: str) -> None:
    """Letters, digits, - and _ stay; the rest becomes a dash or nothing."""
    assert slugify_name(name) == expected


def test_launch_id_holds_name_moment_and_token() -> None:
    """A launch's id says what, when and which."""
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    made = build_launch_id("my run", created_at=at, token="ab12")  # noqa: S106  # no secret
    assert made == "my-run-20260102-030405-ab12"


@given(st.text(), st.integers(min_value=0, max_value=10**6))
def test_run_id_splits_back_into_launch_and_index(name: str, index: int) -> None:
    """A run's id leads back to its launch and its index."""
    assert split_run_id(build_run_id(slugify_name(name), index)) == (slugify_name(name), index)


@given(st.text())
def test_split_run_id_of_a_launch_has_no_index(name: str) -> None:
    """A launch's id is not taken for a run's."""
    assert split_run_id(slugify_name(name)) == (slugify_name(name), None)


@given(st.integers(0, 10**9), st.none() | st.integers(0, 10**6))
def test_job_id_parse_and_str_are_inverse(main: int, index: int | None) -> None:
    """A job's id survives being written and read."""
    job = JobId(main, index)
    assert JobId.parse(str(job)) == job


@pytest.mark.parametrize("text", ["", "abc", "12.batch", "12_[0-3]", "12_", "_1", "1_2_3", "-1", "٣"])
def test_job_id_parse_refuses_what_is_no_job(text: str) -> None:
    """Steps, ranges and words are refused with what was given and what is allowed."""
    with pytest.raises(ValueError, match="expected 123 or 123_4"):
        JobId.parse(text)


def test_job_ids_sort_by_number() -> None:
    """Array elements sort by index, not by letters."""
    assert sorted([JobId(7, 10), JobId(7, 9)]) == [JobId(7, 9), JobId(7, 10)]
