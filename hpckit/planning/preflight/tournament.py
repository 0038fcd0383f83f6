"""Rounds in which every node meets every other one once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

Group = tuple[int, ...]
Round = tuple[Group, ...]
"""Groups without a common node, which are measured at the same time."""


def tournament(nodes: Sequence[int]) -> list[Round]:
    """Return the rounds of a round robin (circle method): n-1 of n/2 pairs, n if n is odd.

    Example: `tournament([0, 1, 2, 3])` has three rounds of two pairs each.
    """
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    rounds: list[Round] = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        meetings = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(
            tuple(
                (min(one, other), max(one, other))
                for one, other in meetings
                if one is not None and other is not None
            )
        )
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def rounds_of(pairs: Sequence[Group]) -> list[Round]:
    """Return rounds that have each of these pairs once, and no node twice in a round."""
    rounds: list[list[Group]] = []
    for pair in pairs:
        for one in rounds:
            if not any(set(pair) & set(other) for other in one):
                one.append(pair)
                break
        else:
            rounds.append([pair])
    return [tuple(one) for one in rounds]
