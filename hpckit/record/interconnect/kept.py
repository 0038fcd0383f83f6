"""Measurements of the interconnect that are kept: a line each, below the folder of launches.

The file is the caller's own, or it is not read: another user's figures are no yardstick.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpckit.model.interconnect.measurement import KeptMeasurement
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.store import append_line, make_folder, read_lines

_MOST_BYTES = 64 * 2**20
"""A hundred thousand measurements; a longer file is none of ours."""


def kept_file(output_dir: Path) -> Path:
    """Return the file of the caller's measurements: users may share a folder of launches."""
    return output_dir / f".interconnect-{os.getuid()}.jsonl"


def read_kept(output_dir: Path) -> tuple[KeptMeasurement, ...]:
    """Return earlier measurements, oldest first; lines that are none are left out.

    None if the file is not the caller's own, is a link, or cannot be read.
    """
    file = kept_file(output_dir)
    try:
        stat = file.lstat()
        if stat.st_uid != os.getuid() or file.is_symlink() or stat.st_size > _MOST_BYTES:
            return ()
        records = list(read_lines(file))
    except OSError:
        return ()
    found = []
    for record in records:
        try:
            found.append(from_plain(KeptMeasurement, record))
        except (ValueError, TypeError, RecursionError):
            continue
    return tuple(found)


def keep(output_dir: Path, measured: KeptMeasurement) -> None:
    """Append a measurement in one write; raises OSError, also where the file is another user's."""
    file = kept_file(make_folder(output_dir))
    if file.is_symlink() or (file.exists() and file.lstat().st_uid != os.getuid()):
        raise PermissionError(f"{file} is not your own file")
    append_line(file, to_plain(measured))
