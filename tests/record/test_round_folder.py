"""The files of a round with many ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hpckit.record.layout import RANKS_PER_FOLDER, RoundPaths


def test_round_of_thousands_of_ranks_keeps_folders_small() -> None:
    """No folder holds the files of more than 256 ranks; few ranks lie in the round's own."""
    paths = RoundPaths(Path("rounds/000"))
    counts = Counter(paths.rank_log(rank).parent for rank in range(8000))
    assert max(counts.values()) == RANKS_PER_FOLDER
    assert paths.rank_log(255) == Path("rounds/000/rank-00255.log")
    assert paths.rank_log(300) == Path("rounds/000/from-00256/rank-00300.log")
    assert (
        paths.rank_stacks_file(300).parent
        == paths.rank_exception_file(300).parent
        == paths.rank_log(300).parent
    )
