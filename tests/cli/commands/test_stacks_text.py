"""Stacks as text: ranks at the same place stand together, whatever their thread numbers are."""

from __future__ import annotations

from datetime import UTC, datetime

from hpckit.cli.commands.look.stacks import format_stacks, group_stacks, stacks_to_json
from hpckit.model.failure import RankStack, StacksAnswer

AT = datetime(2026, 1, 1, tzinfo=UTC)


def stack(rank: int, function: str, *, thread: str = "", text: str | None = None) -> RankStack:
    """Return what a rank answers, as faulthandler writes it: the main thread last."""
    other = f'Thread 0x{rank + 77:012x} (most recent call first):\n  File "q.py", line 1 in {thread}'
    main = f'Thread 0x{rank:012x} (most recent call first):\n  File "a.py", line 3 in {function}\n'
    written = f"{other}\n\n{main}" if thread else main
    return RankStack(
        rank=rank, node=f"n{rank // 4}", state="S (sleeping)", step=41, text=written if text is None else text
    )


def test_ranks_at_one_place_are_one_group_and_the_odd_one_comes_first() -> None:
    """Seven ranks wait; the eighth reads. Thread numbers differ in every rank."""
    stacks = [stack(rank, "all_reduce", thread="loader") for rank in range(7)]
    groups = group_stacks([*stacks, stack(7, "read_shard")])
    assert [[rank.rank for rank in group.ranks] for group in groups] == [[7], [0, 1, 2, 3, 4, 5, 6]]
    assert groups[0].frames == ('File "a.py", line 3 in read_shard',)
    assert groups[1].others == (('File "q.py", line 1 in loader',),)
    answer = StacksAnswer(request=1, at=AT, round=2, stacks=(*stacks, stack(7, "read_shard")))
    text = format_stacks("demo.0", 1, answer)
    assert text.startswith("run demo.0, attempt 1, round 2, 2026-01-01 ")
    assert "rank 7 on n1; step 41; S (sleeping):\n  File" in text
    assert "ranks 0-6 on n[0-1]" in text
    assert "1 other thread (--rank shows them)" in text
    assert 'another thread:\n    File "q.py"' in format_stacks("demo.0", 1, answer, 3)
    assert stacks_to_json("demo.0", 1, answer, answer.stacks)["groups"] == [[7], list(range(7))]


def test_silence_is_told_as_such() -> None:
    """A process that cannot answer, a node that did not, and a run between two rounds."""
    dead = stack(0, "", text="")
    answer = StacksAnswer(request=1, at=AT, round=0, stacks=(dead,), silent=("n8", "n9"))
    text = format_stacks("demo.0", 1, answer)
    assert "no Python stacks" in text
    assert text.endswith("no answer from n[8-9]")
    between = StacksAnswer(request=1, at=AT, round=None)
    assert format_stacks("demo.0", 1, between).startswith("run demo.0 has no ranks at the moment")
