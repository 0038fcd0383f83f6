"""Folders of checkpoints that another user prepared, and what lies in one's own."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.checkpoint.values import Values
from torch.distributed.checkpoint.metadata import TensorProperties

from hpckit.runtime.checkpoint import manifest
from hpckit.runtime.checkpoint.checkpointer import Checkpointer, CheckpointSettings
from hpckit.runtime.checkpoint.errors import CheckpointError, NoCheckpointError
from hpckit.runtime.checkpoint.storage import read_metadata

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Return a folder that all users share, as a cluster's scratch is."""
    folder = Path(tempfile.mkdtemp(prefix="hpckit-scratch-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def _save(folder: Path, *steps: int, **named: Any) -> None:
    checkpointer = Checkpointer(folder, CheckpointSettings(epoch=1), **named)
    for step in steps:
        checkpointer.save({"values": Values(state={"x": torch.ones(9)})}, step, 0, wait=True)
    checkpointer.close()


def _restore(folder: Path, **named: Any) -> Any:
    values = Values(state={"x": torch.zeros(9)})
    return Checkpointer(folder, CheckpointSettings(epoch=2), **named).restore({"values": values})


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Be another user for what files are made meanwhile."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


class _Command:
    """What runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def _plant(folder: Path, mark: Path) -> None:
    """Put a pickle that runs a command in the place of `.metadata`, with all sums right."""
    metadata = folder / ".metadata"
    metadata.write_bytes(pickle.dumps(_Command(f"id > {mark}")))
    record = manifest.read_manifest(folder)
    files = dict(record.files) | {metadata.name: manifest.checksum_file(metadata)}
    (folder / manifest.NAME).write_text(manifest.render_manifest(replace(record, files=files)))


@as_root
@pytest.mark.parametrize("level", ["launch", "run"])
def test_checkpoint_folder_of_another_user_is_refused(scratch: Path, level: str) -> None:
    """A folder that another user made under our name is neither read nor written; it says whose."""
    ours = scratch / "launch-1" / "00000"
    planted = ours if level == "run" else ours.parent
    if level == "run":
        ours.parent.mkdir(mode=0o777)
        ours.parent.chmod(0o777)
    with _as_nobody():
        planted.mkdir()
    if level == "run":
        ours.parent.chmod(0o700)
    for act in (_restore, lambda folder, **named: _save(folder, 1, **named)):
        with pytest.raises(CheckpointError, match=rf"{planted} belongs to \w+ \(uid {NOBODY}\)"):
            act(ours, shared=scratch)
    assert not list(planted.iterdir())


@as_root
def test_checkpoint_of_another_user_in_ones_own_folder_is_refused(scratch: Path) -> None:
    """What another user put beside our checkpoints, while it could, is never loaded."""
    _save(scratch / "own", 1)
    foreign = scratch / "own" / "step-99999999.e99.deadbeef"
    shutil.copytree(next((scratch / "own").glob("step-*")), foreign)
    os.chown(foreign, NOBODY, NOBODY)
    with pytest.raises(CheckpointError, match=rf"{foreign} belongs to \w+ \(uid {NOBODY}\)"):
        _restore(scratch / "own")


@as_root
def test_checkpoint_folder_behind_another_users_link_is_refused(scratch: Path) -> None:
    """A link that another user laid under our name is not followed."""
    _save(scratch / "elsewhere", 1)
    with _as_nobody():
        (scratch / "l").symlink_to(scratch / "elsewhere")
    with pytest.raises(CheckpointError, match=r"the link .*/l belongs to"):
        _restore(scratch / "l")


def test_checkpoint_folder_that_others_may_write_to_is_refused(scratch: Path) -> None:
    """A folder that a group may write to is refused until it is mended; then all is well."""
    _save(scratch / "own", 1)
    (scratch / "own").chmod(0o770)
    with pytest.raises(CheckpointError, match=r"own can be written by others \(mode 0770\)"):
        _restore(scratch / "own")
    (scratch / "own").chmod(0o700)
    assert _restore(scratch / "own").step == 1


def test_checkpoint_folders_and_files_are_the_users_alone(scratch: Path) -> None:
    """Every folder below a shared one is made with 0700, every file with 0600."""
    before = os.umask(0o002)
    try:
        _save(scratch / "launch" / "00000", 1, 2, shared=scratch)
    finally:
        os.umask(before)
    modes = Counter((path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in scratch.rglob("*"))
    assert set(modes) == {(True, 0o700), (False, 0o600)}
    assert _restore(scratch / "launch" / "00000", shared=scratch).step == 2


def test_metadata_that_names_a_program_runs_nothing(scratch: Path) -> None:
    """A pickle in the place of torch's own, its sums right, is a reason to fall back, not run."""
    _save(scratch / "own", 1, 2)
    newest, oldest = sorted((scratch / "own").glob("step-*"), reverse=True)
    _plant(newest, scratch / "mark")
    restored = _restore(scratch / "own")
    assert restored.step == 1
    assert ".metadata names posix.system" in restored.rejected[0].reason
    _plant(oldest, scratch / "mark")
    with pytest.raises(NoCheckpointError, match=r"posix\.system"):
        _restore(scratch / "own")
    assert not (scratch / "mark").exists()


KINDS = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64),
]


def test_metadata_of_all_that_is_saved_is_read(scratch: Path) -> None:
    """The list of what a `.metadata` may name leaves out no kind of tensor that hpckit saves."""
    state = {str(kind): torch.ones(3).to(kind) for kind in KINDS}
    state |= {"empty": torch.empty(0, 2), "scalar": torch.tensor(7), "turned": torch.ones(2, 3).t()}
    state["channels"] = torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)
    state["parameter"] = torch.nn.Parameter(torch.ones(2))
    checkpointer = Checkpointer(scratch / "own", CheckpointSettings(epoch=1))
    checkpointer.save({"values": Values(state=state)}, 1, 0, wait=True)
    values = Values()
    assert checkpointer.restore({"values": values}) is not None
    checkpointer.close()
    assert {name: one.dtype for name, one in values.state.items()} == {
        name: one.dtype for name, one in state.items()
    }


class _Early(pickle.Pickler):
    """Pickles a member of an enum as Python 3.11.2 does: by getattr."""

    def reducer_override(self, given: Any) -> Any:
        """Return how a member is made again; all else as usual."""
        return (getattr, (type(given), given.name)) if isinstance(given, Enum) else NotImplemented


class _Attribute:
    """What asks for an attribute of a class that is allowed."""

    def __reduce__(self) -> tuple[Any, tuple[object, str]]:
        return getattr, (TensorProperties, "__init__")


def test_metadata_of_early_pythons_is_read_and_getattr_reaches_nothing_else(scratch: Path) -> None:
    """A member of an enum may be named by getattr; an attribute of anything else may not."""
    _save(scratch / "own", 1)
    (folder,) = (scratch / "own").glob("step-*")
    found = read_metadata(folder)
    with (folder / ".metadata").open("wb") as file:
        _Early(file).dump(found)
    assert b"getattr" in (folder / ".metadata").read_bytes()
    assert read_metadata(folder) == found
    (folder / ".metadata").write_bytes(pickle.dumps(_Attribute()))
    with pytest.raises(CheckpointError, match="names the attribute '__init__'"):
        read_metadata(folder)


def test_save_looks_at_the_files_of_older_ones_once(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older checkpoints have a file a rank: what a save asks does not grow with their number."""
    _save(scratch / "own", 1, 2)
    for folder in (scratch / "own").glob("step-*"):
        record = manifest.read_manifest(folder)
        more = {f"__{rank}_0.distcp": manifest.FileSum(size=0, crc32=0) for rank in range(1, 500)}
        for name in more:
            (folder / name).touch()
        files = dict(record.files) | more
        (folder / manifest.NAME).write_text(manifest.render_manifest(replace(record, files=files)))
    checkpointer = Checkpointer(scratch / "own", CheckpointSettings(epoch=2, keep=5))
    asked = _count_questions(monkeypatch)
    checkpointer.save({"values": Values(state={"x": torch.ones(9)})}, 3, 0, wait=True)
    checkpointer.close()
    assert 0 < asked.total() < 200, asked


def _count_questions(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    asked = Counter[str]()
    for name, call in (("stat", os.stat), ("lstat", os.lstat)):

        def counted(*args: Any, _name: str = name, _call: Any = call, **named: Any) -> Any:
            asked[_name] += 1
            return _call(*args, **named)

        monkeypatch.setattr(os, name, counted)
    return asked
