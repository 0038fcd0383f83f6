"""Files that a user named with `-o`: replaced as a whole, and never a device or a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hpckit.errors import UsageError
from hpckit.record.store import PRIVATE_FILE, make_folder, write_chunks


def check_output_file(target: Path, what: str) -> None:
    """Raise UsageError if `target` is something that a file must not replace, such as a device.

    `what` is the noun of the content, for the message.

    ```python
    check_output_file(Path("/dev/null"), "report")  # UsageError: /dev/null is not a regular file
    ```
    """
    if target.name == "-":
        raise UsageError(
            "`-` names no file here", hint=f"name the file of the {what}, or leave the option out"
        )
    if target.is_dir():
        raise UsageError(f"{target} is a folder", hint=f"the {what} is a file: name one")
    if target.exists() and not target.is_file():
        raise UsageError(
            f"{target} is not a regular file",
            hint=f"the {what} makes a new file, or replaces one: name a file",
        )


def check_suffix(target: Path, suffixes: tuple[str, ...], what: str) -> None:
    """Raise UsageError unless the file's name ends as one of this kind: a slip replaces no source.

    ```python
    check_suffix(Path("data.csv"), (".html", ".htm"), "report in HTML")  # UsageError
    ```
    """
    if target.suffix.lower() not in suffixes:
        raise UsageError(
            f"{target.name} does not end with {' or '.join(suffixes)}, as a {what} does",
            hint=f"for example {target.stem or 'report'}{suffixes[0]}",
        )


def write_output_file(target: Path, pieces: Iterable[str | bytes], what: str) -> None:
    """Replace the file, or what a symbolic link of this name points at; its permissions stay.

    A new file is the user's alone. Missing folders are made. Raises UsageError if the file cannot
    be written; then the old one is unchanged.
    """
    check_output_file(target, what)
    try:
        place = target.resolve()
        make_folder(place.parent)
        mode = place.stat().st_mode & 0o777 if place.exists() else PRIVATE_FILE
        write_chunks(place, pieces, mode=mode)
    except (OSError, RuntimeError) as error:
        raise unwritable(target, error) from error


@contextmanager
def replaced_file(target: Path, what: str) -> Iterator[IO[bytes]]:
    """Yield a new file, open for reading and writing, that replaces `target` once it is whole.

    For content that is not written from start to end; otherwise as `write_output_file`.
    """
    check_output_file(target, what)
    try:
        place = target.resolve()
        make_folder(place.parent)
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
        raise unwritable(target, error) from error


def unwritable(target: Path, error: OSError | RuntimeError) -> UsageError:
    """Return the error of a file or folder that cannot be written.

    `RuntimeError` is what a loop of symbolic links raises when it is resolved.
    """
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return UsageError(
        f"{target} cannot be written: {reason}", hint="check the folder, quota and free space"
    )
