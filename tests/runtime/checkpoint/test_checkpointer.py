"""Saving, choosing and loading, by one rank without a process group."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runtime.checkpoint.values import Values

from hpckit.record.store import read_json_lines
from hpckit.runtime.checkpoint import manifest
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.errors import FencedError, NoCheckpointError, StateError


class Shop:
    """Checkpointers of one folder, closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[Checkpointer] = []

    def open(self, epoch: int = 1, keep: int = 3, **named: Any) -> Checkpointer:
        """Return a checkpointer of an attempt."""
        one = Checkpointer(self.folder, CheckpointSettings(epoch=epoch, keep=keep), **named)
        self.opened.append(one)
        return one

    def save(self, *steps: int, epoch: int = 1, keep: int = 3) -> None:
        """Save these steps as an attempt."""
        checkpointer = self.open(epoch, keep)
        for step in steps:
            outcome = checkpointer.save({"values": Values(step)}, step, step * 8, wait=True)
            assert outcome is not None
            assert outcome.committed

    def load(self, epoch: int = 9, refused: frozenset[int] = frozenset()) -> Any:
        """Load as an attempt, and check that all of the state is that step's."""
        values = Values(refused=refused)
        restored = self.open(epoch).restore({"values": values})
        if restored is not None:
            assert values.state["number"] == restored.step
            assert values.state["tensor"].tolist() == [float(restored.step)] * 50
        return restored

    def path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        (found,) = self.folder.glob(f"step-{step:08d}.*")
        return found

    def steps(self) -> list[int]:
        """Return the steps there are folders of."""
        return sorted(int(path.name[5:13]) for path in self.folder.glob("step-*"))


@pytest.fixture
def shop(folder: Path) -> Iterator[Shop]:
    """Return the checkpointers of a folder that does not exist yet."""
    shop = Shop(folder)
    yield shop
    for one in shop.opened:
        one.close()


def _draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()  # noqa: NPY002, S311


def test_restore_finds_nothing_in_a_new_run(shop: Shop) -> None:
    """A run that never saved begins anew, without an error."""
    assert shop.load() is None


def test_restore_brings_state_position_and_generators_back(shop: Shop) -> None:
    """The newest checkpoint comes back with step, samples and what is drawn next."""
    shop.save(1, 2)
    drawn = _draw()
    _draw()
    restored = shop.load()
    assert (restored.step, restored.samples, restored.epoch) == (2, 16, 1)
    assert (restored.rejected, restored.reseeded, restored.last_resort) == ((), False, False)
    assert _draw() == drawn


def test_background_save_holds_the_state_of_its_step(shop: Shop) -> None:
    """What training changes after a background save was begun does not reach the checkpoint."""
    checkpointer, values = shop.open(), Values(1)
    assert checkpointer.save({"values": values}, 1, 8, wait=False) is None
    values.state["tensor"].fill_(7.0)
    outcome = checkpointer.wait_for_save()
    assert outcome is not None
    assert outcome.committed
    assert outcome.folder == shop.path(1)
    assert outcome.size == sum(one.stat().st_size for one in shop.path(1).glob("[_.]*"))
    assert checkpointer.poll_background_save() is None
    assert shop.load().step == 1


def test_next_save_tells_what_became_of_the_one_before(shop: Shop) -> None:
    """At most one save is in flight; the next one waits for it and returns its outcome."""
    checkpointer = shop.open()
    checkpointer.save({"values": Values(1)}, 1, 8, wait=False)
    outcome = checkpointer.save({"values": Values(2)}, 2, 16, wait=False)
    assert outcome is not None
    assert (outcome.step, outcome.committed) == (1, True)
    last = checkpointer.close()
    assert last is not None
    assert last.step == 2


def test_fence_refuses_the_commit(shop: Shop) -> None:
    """An attempt that lost the run commits nothing, is told so, and leaves the rest alone."""
    shop.save(1)
    fenced = shop.open(may_commit=lambda: False)
    with pytest.raises(FencedError, match="attempt 1 no longer owns the run"):
        fenced.save({"values": Values(2)}, 2, 16, wait=True)
    assert shop.steps() == [1]


def test_fence_of_a_background_save_surfaces_at_the_next_call(shop: Shop) -> None:
    """The error of a background save is raised by the next call, once."""
    fenced = shop.open(may_commit=lambda: False)
    fenced.save({"values": Values(2)}, 2, 16, wait=False)
    with pytest.raises(FencedError):
        fenced.save({"values": Values(3)}, 3, 24, wait=False)
    assert fenced.wait_for_save() is None


def test_fence_falling_during_the_save_refuses_the_commit(shop: Shop) -> None:
    """The fence is asked after all data is written, not before."""
    written: list[bool] = []

    def may_commit() -> bool:
        written.append(any(shop.path(2).glob("*.distcp")))
        return False

    with pytest.raises(FencedError):
        shop.open(may_commit=may_commit).save({"values": Values(2)}, 2, 16, wait=True)
    assert written == [True]


def test_late_commit_of_an_older_attempt_never_outranks(shop: Shop) -> None:
    """What the newest attempt saved is loaded, also where an older one got further."""
    shop.save(3, epoch=2)
    shop.save(8, epoch=1)
    assert shop.load().step == 3


def test_torn_checkpoint_is_passed_over_and_said(shop: Shop) -> None:
    """A folder without a manifest is no checkpoint, whatever else it holds."""
    shop.save(1, 2)
    (shop.path(2) / "manifest.json").unlink()
    restored = shop.load()
    assert restored.step == 1
    (rejected,) = restored.rejected
    assert rejected.name == shop.path(2).name
    assert rejected.reason == "it was never committed"


def test_torn_checkpoints_alone_are_a_new_run(shop: Shop) -> None:
    """A run that died in its first save begins anew."""
    shop.save(1)
    (shop.path(1) / "manifest.json").unlink()
    assert shop.load() is None


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "manifest.json"])
def test_flipped_bit_is_found_and_said(shop: Shop, name: str) -> None:
    """One flipped bit anywhere in the newest checkpoint makes the one before it the choice."""
    shop.save(1, 2)
    file = shop.path(2) / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    restored = shop.load()
    assert restored.step == 1
    (rejected,) = restored.rejected
    assert rejected.name == shop.path(2).name
    assert "CRC-32" in rejected.reason or "checksum" in rejected.reason or "read" in rejected.reason


def test_checkpoint_that_torch_cannot_read_is_passed_over(shop: Shop) -> None:
    """What torch raises while loading, a BaseException, is a reason to fall back as any other."""
    shop.save(1, 2)
    data = shop.path(2) / "__0_0.distcp"
    data.write_bytes(bytes(data.stat().st_size))
    record = manifest.read_manifest(shop.path(2))
    files = dict(record.files) | {data.name: manifest.checksum_file(data)}
    (shop.path(2) / "manifest.json").write_text(manifest.render_manifest(replace(record, files=files)))
    restored = shop.load()
    assert restored.step == 1
    assert len(restored.rejected) == 1


def test_twice_fatal_checkpoint_is_demoted_and_said(shop: Shop) -> None:
    """Two loads that no progress followed make the one before it the choice."""
    shop.save(1, 2)
    assert [shop.load(epoch).step for epoch in (2, 3, 4)] == [2, 2, 1]
    (rejected,) = shop.load(5).rejected
    assert rejected.reason == "it was loaded 2 times and training never continued"


def test_proved_checkpoint_is_never_demoted(shop: Shop) -> None:
    """Progress after a load clears a checkpoint for good."""
    shop.save(1, 2)
    checkpointer = shop.open(2)
    checkpointer.restore({"values": Values()})
    checkpointer.record_progress()
    checkpointer.record_progress()
    assert [shop.load(epoch).step for epoch in (3, 4, 5)] == [2, 2, 2]
    fates = [line["fate"] for line in read_json_lines(shop.folder / "journal.jsonl")]
    assert fates == ["attempted", "proved", "attempted", "attempted", "attempted"]


def test_twice_fatal_checkpoint_is_the_last_resort(shop: Shop) -> None:
    """A demoted checkpoint is still better than losing everything."""
    shop.save(1)
    assert [shop.load(epoch).last_resort for epoch in (2, 3, 4)] == [False, False, True]


def test_refusal_by_an_object_falls_back(shop: Shop) -> None:
    """A state that an object cannot take is passed over; the one before it is whole."""
    shop.save(1, 2)
    restored = shop.load(refused=frozenset({2}))
    assert restored.step == 1
    (one,) = restored.rejected
    assert one.reason == "values refused its state in load_state_dict: KeyError: 'refused' (rank 0)"


def test_restore_never_begins_anew_over_committed_checkpoints(shop: Shop) -> None:
    """Where none of them can be loaded it says why for each, instead of losing the run's work."""
    shop.save(1, 2)
    words = r"step-00000002.*refused.*step-00000001.*refused"
    with pytest.raises(NoCheckpointError, match=words) as caught:
        shop.load(refused=frozenset({1, 2}))
    assert "the cause is the load_state_dict of values" in caught.value.hint.lower()
    assert "move" not in caught.value.hint  # they are whole


def test_damaged_checkpoints_are_to_be_moved_away(shop: Shop) -> None:
    """Where no object is the cause, the files are."""
    shop.save(1)
    next(shop.path(1).glob("*.distcp")).write_bytes(b"x")
    with pytest.raises(NoCheckpointError, match="step-00000001") as caught:
        shop.load()
    assert "move them away" in caught.value.hint


def test_other_objects_than_saved_are_refused(shop: Shop) -> None:
    """A registered object that was not saved is named, before anything is loaded."""
    shop.save(1)
    with pytest.raises(StateError, match="holds values; registered are values, weights"):
        shop.open(2).restore({"values": Values(), "weights": Values()})


def test_damaged_journal_is_no_obstacle(shop: Shop) -> None:
    """The journal only guides; whatever stands in it, what is whole is loaded."""
    shop.save(1, 2)
    (shop.folder / "journal.jsonl").write_bytes(b'\xff\x00{"fate":3}\n[1]\n{"checkpoint":"x"}\n{')
    assert shop.load().step == 2


def test_retention_keeps_the_newest(shop: Shop) -> None:
    """As many checkpoints stay as are asked for, the newest ones."""
    shop.save(1, 2, 3, 4, 5, keep=3)
    assert shop.steps() == [3, 4, 5]


def test_retention_does_not_count_what_cannot_be_loaded(shop: Shop) -> None:
    """Torn and damaged checkpoints push out none that can be loaded."""
    shop.save(1, 2, 3, 4, keep=4)
    (shop.path(3) / "__0_0.distcp").write_bytes(b"short")
    (shop.path(4) / "manifest.json").unlink()
    shop.save(5, keep=2)
    assert {2, 5} <= set(shop.steps())
    assert 1 not in shop.steps()


def test_retention_never_lets_the_last_proved_go(shop: Shop) -> None:
    """The checkpoint from which training is known to go on stays, however old."""
    shop.save(1)
    checkpointer = shop.open(2)
    checkpointer.restore({"values": Values()})
    checkpointer.record_progress()
    shop.save(2, 3, 4, 5, epoch=2, keep=2)
    assert shop.steps() == [1, 4, 5]


def test_retention_clears_torn_folders_of_older_attempts(shop: Shop) -> None:
    """What dead attempts left is removed; a newer attempt's folder and foreign ones are not."""
    names = ("step-00000001.e1.00000000", "step-00000009.e3.00000000", "step-1", "mine")
    for name in names:
        (shop.folder / name).mkdir(parents=True)
    shop.save(2, epoch=2)
    assert [(shop.folder / name).exists() for name in names] == [False, True, True, True]


def test_settings_refuse_to_keep_one() -> None:
    """Fewer than two checkpoints would leave nothing to fall back on."""
    with pytest.raises(ValueError, match="keep=1; allowed are 2 checkpoints or more"):
        CheckpointSettings(keep=1)
