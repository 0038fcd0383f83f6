"""Files that are summed while they are written."""

from __future__ import annotations

import errno
import os
import random
import zlib
from pathlib import Path

import pytest

from hpckit.runtime.checkpoint import disk
from hpckit.runtime.checkpoint.disk import SummingFileSystem
from hpckit.runtime.checkpoint.errors import CheckpointError
from hpckit.runtime.checkpoint.manifest import checksum_file


def test_sum_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the writes fall into chunks, size and CRC-32 are those of what can be read back."""
    monkeypatch.setattr(disk, "CHUNK", 1000)
    monkeypatch.setattr(disk, "GATHERED", 64)
    chance = random.Random(0)  # noqa: S311
    parts = [chance.randbytes(chance.choice((0, 1, 63, 64, 65, 999, 1001, 5000))) for _ in "x" * 50]
    with SummingFileSystem() as files:
        with files.create_stream(tmp_path / "one", "wb") as stream:
            for part in parts:
                assert stream.write(part) == len(part)
            assert stream.tell() == sum(map(len, parts))
        sums = files.wait_until_on_disk()
    assert (tmp_path / "one").read_bytes() == b"".join(parts)
    assert sums == {"one": checksum_file(tmp_path / "one")}
    assert sums["one"].crc32 == zlib.crc32(b"".join(parts))


def test_renamed_file_is_summed_under_its_new_name(tmp_path: Path) -> None:
    """What is written aside and renamed is known by the name it has in the end."""
    with SummingFileSystem() as files:
        with files.create_stream(tmp_path / "one.tmp", "wb") as stream:
            stream.write(b"words")
        files.rename(tmp_path / "one.tmp", tmp_path / "one")
        assert files.wait_until_on_disk() == {"one": checksum_file(tmp_path / "one")}


def test_failed_early_flush_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells of a failed flush once: that the last one goes well hides nothing."""

    def refuse(_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(disk, "CHUNK", 1000)
    monkeypatch.setattr(os, "fdatasync", refuse)
    with SummingFileSystem() as files:
        with files.create_stream(tmp_path / "one", "wb") as stream:
            stream.write(bytes(1000))
        with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
            files.wait_until_on_disk()


def test_file_that_is_not_as_long_as_written_is_refused(tmp_path: Path) -> None:
    """A file that somebody else cut meanwhile gets no sum."""
    with SummingFileSystem() as files:
        with files.create_stream(tmp_path / "one", "wb") as stream:
            stream.write(b"words")
        os.truncate(tmp_path / "one", 3)
        with pytest.raises(CheckpointError, match="one has 3 bytes; 5 were written"):
            files.wait_until_on_disk()
