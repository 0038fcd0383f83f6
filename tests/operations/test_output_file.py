"""Files named with `-o`: replaced whole, never something that is no file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.errors import UsageError
from hpckit.operations.output_file import OutputKind, check_file_suffix, check_output_file, write_output_file

ANY = OutputKind(noun="model")
MARKED = OutputKind(noun="report", marks=(b"by hpckit",))


def test_new_file_is_private(tmp_path: Path) -> None:
    """Text and bytes may be mixed; nobody else may read them."""
    target = tmp_path / "a.txt"
    write_output_file(target, ("ä", b"\xff"), ANY)
    assert target.read_bytes() == "ä".encode() + b"\xff"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    """A slip in a path makes no folders."""
    target = tmp_path / "figrues" / "a.txt"
    with pytest.raises(UsageError, match=f"there is no folder {target.parent}"):
        write_output_file(target, ("text",), ANY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"mine", b"x" * 5000 + b"by hpckit" + b"x" * 70000])
def test_file_of_another_program_is_never_replaced(tmp_path: Path, content: bytes) -> None:
    """Only what hpckit wrote itself may be lost, and what is empty."""
    target, link = tmp_path / "a.txt", tmp_path / "link.txt"
    target.write_bytes(content)
    link.symlink_to(target)
    for one in (target, link):
        with pytest.raises(UsageError, match="is no report that hpckit wrote"):
            write_output_file(one, ("new",), MARKED)
    assert target.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"by hpckit" + b"x" * 99999, b"x" * 99999 + b"by hpckit"])
def test_earlier_file_of_hpckit_is_replaced(tmp_path: Path, content: bytes) -> None:
    """Its mark is near its beginning or its end."""
    target = tmp_path / "a.txt"
    target.write_bytes(content)
    check_output_file(target, MARKED)
    write_output_file(target, ("new",), MARKED)
    assert target.read_text() == "new"


def test_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    """A file that was made readable for others stays so."""
    target = tmp_path / "a.txt"
    target.write_text("old")
    target.chmod(0o644)
    write_output_file(target, ("new",), ANY)
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_symbolic_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    """A link into another folder is followed, also to a file that does not exist yet."""
    (tmp_path / "site").mkdir()
    link = tmp_path / "a.txt"
    link.symlink_to(tmp_path / "site" / "b.txt")
    for text in ("one", "two"):
        write_output_file(link, (text,), ANY)
        assert link.is_symlink()
        assert (tmp_path / "site" / "b.txt").read_text() == text


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_never_replaced(tmp_path: Path, *, linked: bool) -> None:
    """`-o /dev/null` as root would else turn the machine's /dev/null into a file."""
    pipe = target = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        target = tmp_path / "link"
        target.symlink_to(pipe)
    with pytest.raises(UsageError, match="is not a regular file"):
        write_output_file(target, ("text",), ANY)
    assert pipe.is_fifo()
    assert target.is_symlink() == linked


def test_dash_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who means standard output is told so, and gets no file of that name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is not a file here"):
        write_output_file(tmp_path / "-", ("text",), ANY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["train.py", "values.csv", "report", "report.html.bak"])
def test_name_of_another_kind_is_refused(name: str) -> None:
    """A slip must not replace a program or data by a page."""
    with pytest.raises(UsageError, match=r"does not end with \.html or \.htm"):
        check_file_suffix(Path(name), (".html", ".htm"), "report in HTML")
    check_file_suffix(Path("Report.HTML"), (".html", ".htm"), "report in HTML")


def test_failure_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    """The new content is cut off: the old is whole, and nothing else lies there."""
    target = tmp_path / "a.txt"
    target.write_text("old")

    def pieces() -> Iterator[str]:
        yield "new"
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match="cannot be written: No space left on device"):
        write_output_file(target, pieces(), ANY)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_link_to_itself_is_one_error(tmp_path: Path) -> None:
    """A loop of links is no traceback."""
    target = tmp_path / "a.txt"
    target.symlink_to(target)
    with pytest.raises(UsageError, match="cannot be written"):
        write_output_file(target, ("text",), ANY)
