"""The file system of the launch folder is full: a command that lost its output cannot say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime.conftest import Workshop, ranks
from small_disk import small_disk

from hpckit.model.failure import Cause
from hpckit.runtime.agent.exhausted import explain_full_disk_of_folder

FILL = '#!/bin/sh\ncat /dev/zero >"$HPCKIT_RUN_DIR/fill" 2>/dev/null\nexit 1\n'


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 16 MB; as root only."""
    with small_disk(tmp_path / "small", "16m") as disk:
        yield disk


def test_folder_without_room_is_named_with_its_free_bytes(small: Path) -> None:
    """Only a full folder is said to be full, and asking leaves nothing behind."""
    assert explain_full_disk_of_folder(small) == ""
    with pytest.raises(OSError, match="No space left"):
        (small / "fill").write_bytes(bytes(20 << 20))
    words = explain_full_disk_of_folder(small)
    assert "No space left on device" in words
    assert str(small) in words
    assert "0 bytes free" in words
    assert [one.name for one in small.iterdir()] == ["fill"]


@pytest.mark.training
def test_command_that_filled_the_launch_folder_fails_as_disk_full(small: Path) -> None:
    """An exit code of 1 and an empty log say nothing; the run does: cause, folder, free bytes."""
    workshop = Workshop(small / "project")
    workshop.project.mkdir()
    script = workshop.project / "fill.sh"
    script.write_text(FILL)
    script.chmod(0o755)
    ended = workshop.attempt("", **ranks(1, entry_point=None, command="./fill.sh"))
    (left,) = ended.exits()
    assert left.exception == "FullDiskError"
    assert "bytes free" in (left.message or "")
    assert ended.record.failure is not None, ended.output
    assert ended.record.failure.cause is Cause.disk_full
    assert str(small) in ended.record.failure.message
