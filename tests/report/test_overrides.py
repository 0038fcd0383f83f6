"""Promises of hpckit.report.selection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpckit.report.selection import CELL_WIDTH, find_common_overrides, format_override_cells


def test_cells_have_only_what_differs() -> None:
    """What all runs of a launch have says nothing of one of them."""
    sweep = [("experiment=e", "+lr=0.1", "seed=1"), ("experiment=e", "+lr=0.2", "seed=1")]
    common = find_common_overrides(sweep)
    assert common == {"experiment=e", "seed=1"}
    assert format_override_cells(sweep, common) == ["lr=0.1", "lr=0.2"]
    assert format_override_cells(sweep[1:], common) == ["lr=0.2"]
    assert find_common_overrides([]) == frozenset()


def test_keys_are_shortened_to_their_last_part_unless_two_end_so() -> None:
    """`model.lr` is lr; next to `optimizer.lr` both are written out."""
    assert format_override_cells([("model.lr=1", "~model.bias")], frozenset()) == ["lr=1 bias=~"]
    assert format_override_cells([("model.lr=1", "optimizer.lr=2")], frozenset()) == [
        "model.lr=1 optimizer.lr=2"
    ]


def test_long_keys_give_way_before_values() -> None:
    """The value tells runs apart: it stays where the key is cut."""
    words = ("learning_rate_schedule_warmup_steps=1250", "weight_decay_of_the_model=0.01")
    (cell,) = format_override_cells([words], frozenset())
    assert "=1250 " in cell
    assert cell.endswith("=0.01")
    assert len(cell) <= CELL_WIDTH


@given(st.lists(st.text(min_size=1), max_size=8))
def test_cells_are_never_wider_than_their_column(words: list[str]) -> None:
    """Whatever is overridden, the table stays a table."""
    (cell,) = format_override_cells([words], frozenset())
    assert len(cell) <= CELL_WIDTH
