"""A sum over groups of samples as a fixed binary tree, whichever rank has which groups. Pure.

The leaves are the groups of a batch, a power of two of them. A node of the tree is its level, 0 for
leaves, and its place at that level; it is where its first leaf is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.errors import UsageError
from hpckit.model.parallel.share import BatchShare, compute_batch_share
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TreeNode:
    """A node of the tree: the sum of the leaves from `place << level` on, `1 << level` of them."""

    level: int
    place: int

    @property
    def is_right_child(self) -> bool:
        """Whether it is added to its left sibling."""
        return self.place % 2 == 1

    @property
    def sibling(self) -> TreeNode:
        """The node that it is added to, or that is added to it."""
        return TreeNode(self.level, self.place ^ 1)

    @property
    def parent(self) -> TreeNode:
        """The sum of both."""
        return TreeNode(self.level + 1, self.place // 2)


def is_power_of_two(number: int) -> bool:
    """Return whether a number is 1, 2, 4, 8, …."""
    return number > 0 and number & (number - 1) == 0


def list_partial_sum_transfers(leaves: Sequence[range]) -> Iterator[tuple[TreeNode, int, int]]:
    """Yield the sums that a rank sends to another, in order, until the first has the whole sum.

    Each is a node, the rank that sends it, and the one that takes it, which has the left sibling.
    `leaves` are those of each rank: together all, in order, each once. Raises ValueError if their
    number is no power of two.

    Example: of `[range(0, 2), range(2, 4)]` the second rank sends the sum of its two leaves.
    """
    count = sum(map(len, leaves))
    if not is_power_of_two(count):
        raise ValueError(f"{count} leaves")
    owners = [rank for rank, own in enumerate(leaves) for _ in own]
    for level in range(count.bit_length() - 1):
        for place in range(1, count >> level, 2):
            node = TreeNode(level, place)
            sender, receiver = owners[place << level], owners[(place - 1) << level]
            if sender != receiver:
                yield node, sender, receiver


def assign_tree_leaves_to_ranks(data_size: int, full_data_size: int, parts: int) -> list[range]:
    """Return the leaves of each data rank: those of whole data ranks asked for, `parts` of each.

    Raises UsageError if there are more data ranks than were asked for.
    """
    if data_size > full_data_size:
        raise UsageError(
            f"parallel.reduce=tree has {full_data_size} groups, one for each data rank asked for, "
            f"and there are {data_size} data ranks",
            hint="ask for as many data ranks as there are, or take parallel.reduce=fast",
        )
    shares = [compute_batch_share(full_data_size, rank, data_size) for rank in range(data_size)]
    return [range(share.start * parts, share.stop * parts) for share in shares]


def compute_whole_group_batch_share(
    batch_size: int, data_rank: int, data_size: int, full_data_size: int
) -> BatchShare:
    """Return a data rank's share in whole groups; raises UsageError if the batch has none."""
    leaves = assign_tree_leaves_to_ranks(data_size, full_data_size, 1)[data_rank]
    if batch_size % full_data_size:
        raise UsageError(
            f"a batch of {batch_size} rows is not {full_data_size} equal groups, as "
            "parallel.reduce=tree needs: one for each data rank asked for",
            hint=f"take a multiple of {full_data_size}",
        )
    each = batch_size // full_data_size
    return BatchShare(start=leaves.start * each, stop=leaves.stop * each, batch_size=batch_size)
