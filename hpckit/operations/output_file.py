"""Files that a user named with `-o`: replaced as a whole, if hpckit wrote them; folders, too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from hpckit.errors import UsageError
from hpckit.patterns import lazy_pattern
from hpckit.record.store import PRIVATE_FILE, open_regular_file, write_chunks
from hpckit.values import dataclass

_BEGINNING, _END = 4096, 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKind:
    """A kind of file that hpckit writes: its noun, for messages, and how an earlier one is known.

    One of the `marks` is in the first 4 or the last 64 KiB of each such file. Without marks, any
    file is replaced.
    """

    noun: str
    marks: tuple[bytes, ...] = ()


REPORT = OutputKind(noun="report", marks=(b'content="hpckit report"',))
FIGURE = OutputKind(noun="figure", marks=(b"/Creator (hpckit)", b"Software\0hpckit", b"<dc:title>hpckit<"))
VALUE_COLUMNS = ("launch", "run", "attempt", "round", "step", "at", "key", "value", "undone")
"""Of logged values, in an export of their own."""

EXPORT_MARKS = {
    "csv": ",".join(VALUE_COLUMNS).encode(),
    "jsonl": b'{"launch": "',
    "openmetrics": b"hpckit_run_info",
    "trace": b'"otherData": {"by": "hpckit"',
}
_ID = rb"[^\s\"]+-\d{8}-\d{6}-"
_PRINTED = lazy_pattern(
    rb"\A(?:(?:,?run,)?(?:launch,)?index,(?:[^\n]*,)?state,(?:[^\n]*,)?step,time(?:,goodput,|\r?\n)"
    rb"|,?run,attempt,round,step,at,key,value,undone\r?\n"
    rb"|(?:launch +)?index +(?:[^\n]* )?state +(?:[^\n]* )?time\b|launch +created +runs\n"
    rb'|\{\s*"(?:launches": \[\s*\{\s*")?(?:launch|run|old)": "'
    + _ID
    + rb'|\{\s*"launch": null,\s*"(?:dir|overrides)": |\{\s*"ok": (?:true|false),\s*"runs": \d+,'
    rb'|\{\s*"(?:launches|checkpoints|nodes|unconfirmed)": \[\]\s*\}\s*\Z'
    rb"|[^\0]*\(also: logs, cancel\)\n|hpckit: |nothing to launch: |checked [^\n]*: \d+ runs? in "
    rb"|" + _ID + rb"\S*(?:  created |: )|(?:launch|run|old) +" + _ID + rb"\S*\n(?:name|state|new) )"
)
"""What verbs print: tables, CSV, JSON, pages, what `launch` says; not lines of logs."""
_ANY = OutputKind(noun="output", marks=(*REPORT.marks, *FIGURE.marks, *EXPORT_MARKS.values()))


def is_output_file(path: Path) -> bool:
    """Whether hpckit wrote this file: a report, a figure, an export, or what a shell redirected."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with suppress(OSError), open_regular_file(path) as file:
        if _PRINTED.match(file.read(_BEGINNING)):
            return True
    return _is_replaceable_output(path, _ANY)


def check_output_file(target: Path, kind: OutputKind) -> None:
    """Raise UsageError if `target` must not be replaced by such a file, or has no folder to be in.

    A device is never replaced, nor is a file that is not empty and that hpckit did not write.

    ```python
    check_output_file(Path("/dev/null"), kind)  # UsageError: /dev/null is not a regular file
    ```
    """
    what = kind.noun
    if target.name == "-":
        raise UsageError(
            "`-` is not a file here", hint=f"name the file of the {what}, or leave the option out"
        )
    if target.is_dir():
        raise UsageError(f"{target} is a folder", hint=f"the {what} is a file: name one")
    if target.exists() and not target.is_file():
        raise UsageError(
            f"{target} is not a regular file",
            hint=f"the {what} makes a new file, or replaces an earlier {what}: name a file",
        )
    folder = _resolve_links(target).parent
    if not folder.is_dir():
        raise UsageError(
            f"{target} cannot be written: there is no folder {folder}",
            hint=f"make it first (mkdir -p), or name another file for the {what}",
        )
    if kind.marks and target.exists() and not _is_replaceable_output(target, kind):
        raise UsageError(
            f"{target} exists, and is no {what} that hpckit wrote",
            hint="name another file, or remove this one first",
        )


def _resolve_links(target: Path) -> Path:
    """Return the file itself, behind symbolic links; raises UsageError for a loop of them."""
    try:
        return target.resolve()
    except (OSError, RuntimeError) as error:
        raise unwritable_file_error(target, error) from error


def _is_replaceable_output(target: Path, kind: OutputKind) -> bool:
    """Whether a file is of this kind, or empty; what cannot be read is neither."""
    try:
        with open_regular_file(target) as file:
            size = os.fstat(file.fileno()).st_size
            text = file.read(_BEGINNING)
            file.seek(max(0, size - _END))
            text += b"\0" + file.read(_END)
    except OSError:
        return False
    return size == 0 or any(mark in text for mark in kind.marks)


def check_file_suffix(target: Path, suffixes: tuple[str, ...], what: str) -> None:
    """Raise UsageError unless the file's name has such a suffix: a slip must not replace a source.

    ```python
    check_file_suffix(Path("data.csv"), (".html", ".htm"), "report in HTML")  # UsageError
    ```
    """
    if target.suffix.lower() not in suffixes:
        raise UsageError(
            f"{target.name} does not end with {' or '.join(suffixes)}, as a {what} does",
            hint=f"for example {target.stem or 'report'}{suffixes[0]}",
        )


def write_output_file(target: Path, pieces: Iterable[str | bytes], kind: OutputKind) -> None:
    """Replace the file, or what a symbolic link of this name points at; its permissions stay.

    A new file is private to the user. Raises UsageError if the file cannot be written, or must not
    be replaced; then it is unchanged.
    """
    check_output_file(target, kind)
    try:
        place = _resolve_links(target)
        mode = place.stat().st_mode & 0o777 if place.exists() else PRIVATE_FILE
        write_chunks(place, pieces, mode=mode)
    except (OSError, RuntimeError) as error:
        raise unwritable_file_error(target, error) from error


@contextmanager
def open_replacement_file(target: Path, kind: OutputKind) -> Iterator[IO[bytes]]:
    """Yield a new file, open for reading and writing, that replaces `target` once it is whole.

    For content that is not written from start to end; otherwise as `write_output_file`.
    """
    check_output_file(target, kind)
    try:
        place = _resolve_links(target)
        mode = place.stat().st_mode & 0o777 if place.exists() else PRIVATE_FILE
        part = place.with_name(f".{place.name}.{os.urandom(4).hex()}")
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            # By its name, which a descriptor opened as a number would not have.
            with part.open("r+b") as file:
                os.close(handle)
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(place)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:
        raise unwritable_file_error(target, error) from error


def unwritable_file_error(target: Path, error: OSError | RuntimeError) -> UsageError:
    """Return the error of a file or folder that cannot be written.

    `RuntimeError` is what a loop of symbolic links raises when it is resolved.
    """
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return UsageError(f"{target} cannot be written: {reason}", hint="check the folder, quota and free space")


@contextmanager
def make_export_scratch_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder, not below the target; remove those that killed exporters left.

    Call it only with the target's lock held. Raises OSError.
    """
    prefix = f".{target.name}.part-"
    for left in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(dir=target.parent, prefix=prefix, ignore_cleanup_errors=True) as part:
        yield Path(part)
