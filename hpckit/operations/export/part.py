"""A folder beside a target, to write a run in before it takes the place of an earlier export."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def part_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder, not below the target; remove those that killed exporters left.

    Call it only with the target's lock held. Raises OSError.
    """
    prefix = f".{target.name}.part-"
    for left in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(dir=target.parent, prefix=prefix, ignore_cleanup_errors=True) as part:
        yield Path(part)
