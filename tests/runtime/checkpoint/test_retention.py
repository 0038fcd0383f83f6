"""Promises of hpckit.runtime.checkpoint.journal, for a run that is over."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.parallel.layout import Layout
from hpckit.runtime.checkpoint.folder import CheckpointEntry
from hpckit.runtime.checkpoint.journal import CheckpointHistory, RetentionExtent, find_removable_checkpoints
from hpckit.runtime.checkpoint.manifest import Manifest

KINDS = ("healthy", "rejected", "fatal", "proved", "damaged", "torn")


def entry(place: int, kind: str) -> CheckpointEntry:
    """Return a checkpoint of this kind."""
    step = 1000 - place
    whole = Manifest(
        step=step,
        samples=0,
        batches=Fraction(0),
        epoch=1,
        serial=step,
        layout=Layout(replicate=1),
        objects=(),
        files={},
        created_at="",
    )
    return CheckpointEntry(
        folder=Path(f"step-{step:08d}.e1.00000000"),
        step=step,
        epoch=1,
        manifest=None if kind in {"damaged", "torn"} else whole,
        damage="x" if kind == "damaged" else "",
    )


@given(
    kinds=st.lists(st.sampled_from(KINDS)),
    extent=st.sampled_from([RetentionExtent.unproved, RetentionExtent.old]),
)
def test_clearable_leaves_what_a_run_could_go_on_from(kinds: list[str], extent: RetentionExtent) -> None:
    """The two newest committed, the two newest healthy and the one proved last always stay."""
    entries = [entry(place, kind) for place, kind in enumerate(kinds)]
    of = {one.name: kind for one, kind in zip(entries, kinds, strict=True)}
    proved = [name for name, kind in of.items() if kind == "proved"]
    history = CheckpointHistory(
        attempts=Counter({name: 2 for name, kind in of.items() if kind == "fatal"}),
        proved=tuple(proved),
        rejected=frozenset(name for name, kind in of.items() if kind == "rejected"),
    )
    gone = {one.name for one in find_removable_checkpoints(entries, history, extent)}
    kept = [name for name in of if name not in gone]
    healthy = [name for name in of if of[name] in {"healthy", "proved"}]
    assert set([name for name in of if of[name] != "torn"][:2]) <= set(kept)
    assert set(healthy[:2]) <= set(kept)
    assert set(proved[-1:]) <= set(kept)
    assert not any(of[name] == "torn" for name in kept)
    if extent is RetentionExtent.unproved:
        assert set(healthy) <= set(kept)
    else:
        assert len(kept) <= 5
