"""Promises of the tree of sums: whichever ranks have the leaves, it is the same tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import UsageError
from hpckit.model.parallel.reduction_tree import (
    TreeNode,
    assign_tree_leaves_to_ranks,
    compute_whole_group_batch_share,
    list_partial_sum_transfers,
)

Tree = str | tuple["Tree", "Tree"]


def summed(leaves: list[range]) -> Tree:
    """Return the tree that the first rank comes to, by adding only what is at one place."""
    ranks: list[dict[TreeNode, Tree]] = [{} for _ in leaves]

    def add(rank: int, node: TreeNode, tree: Tree) -> None:
        while node.is_right_child and node.sibling in ranks[rank]:
            tree, node = (ranks[rank].pop(node.sibling), tree), node.parent
        ranks[rank][node] = tree

    for rank, own in enumerate(leaves):
        for leaf in own:
            add(rank, TreeNode(0, leaf), str(leaf))
    for node, sender, receiver in list_partial_sum_transfers(leaves):
        add(receiver, node, ranks[sender].pop(node))
    assert all(not left for left in ranks[1:])
    ((_, tree),) = ranks[0].items()
    return tree


def whole(leaves: range) -> Tree:
    """Return the tree of one rank."""
    if len(leaves) == 1:
        return str(leaves.start)
    middle = len(leaves) // 2
    return whole(leaves[:middle]), whole(leaves[middle:])


@given(levels=st.integers(0, 5), parts=st.sampled_from((1, 2)), data=st.data())
def test_sum_is_the_same_tree_on_any_number_of_ranks(levels: int, parts: int, data: st.DataObject) -> None:
    """Also where ranks have unequal numbers of groups: 3, 5, 6, 7 of 8."""
    full = 2**levels
    size = data.draw(st.integers(1, full))
    leaves = assign_tree_leaves_to_ranks(size, full, parts)
    assert [leaf for own in leaves for leaf in own] == list(range(full * parts))
    assert summed(leaves) == whole(range(full * parts))


@given(levels=st.integers(0, 4), each=st.integers(1, 5), data=st.data())
def test_shares_are_whole_groups(levels: int, each: int, data: st.DataObject) -> None:
    """Together all rows, in order; a group is the rows of a data rank that was asked for."""
    full = 2**levels
    size = data.draw(st.integers(1, full))
    shares = [compute_whole_group_batch_share(each * full, rank, size, full) for rank in range(size)]
    assert [row for share in shares for row in range(share.start, share.stop)] == list(range(each * full))
    assert all(len(share) % each == 0 and len(share) for share in shares)


def test_what_makes_no_groups_is_refused() -> None:
    """Rows that do not divide, and more ranks than groups."""
    with pytest.raises(UsageError, match="10 rows is not 4 equal groups"):
        compute_whole_group_batch_share(10, 0, 2, 4)
    with pytest.raises(UsageError, match="has 4 groups"):
        compute_whole_group_batch_share(16, 0, 5, 4)
    with pytest.raises(ValueError, match="3 leaves"):
        list(list_partial_sum_transfers([range(3)]))
