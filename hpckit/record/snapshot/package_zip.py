"""hpckit itself as one file, for images and nodes that have a Python and nothing of ours.

The same installation gives the same bytes. Compiled modules that the installation has are there, too: with
them an agent is imported in a third of the time. Another version of Python takes the sources.
"""

from __future__ import annotations

import marshal
import os
import zipfile
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER, cache_from_source, find_spec, source_hash
from pathlib import Path
from types import CodeType

from hpckit.record.store import PRIVATE_FILE

_PACKAGE = Path(__file__).parents[2]
_NEEDED = ("pynvml", "cloudpickle")
"""Of pure Python: NVIDIA's answers, and functions that were passed by value."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_HEADER_BYTES = 16
_UNCHECKED_HASH = (1).to_bytes(4, "little")
"""Flags of a compiled module that is taken as it is, whatever the time of its source (PEP 552)."""


def write_package_zip(target: Path, place: Path) -> None:
    """Write the modules of the running hpckit into a zip file that Python can import from.

    `place` is where the file will be used: compiled modules name their sources.
    """
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, path in _list_modules():
            source, compiled = path.read_bytes(), _read_compiled(path, str(place / name))
            _add(archive, name, source)
            if compiled is not None:
                _add(archive, f"{name}c", MAGIC_NUMBER + _UNCHECKED_HASH + source_hash(source) + compiled)


def _list_modules() -> Iterator[tuple[str, Path]]:
    """Yield each module's name in the zip and its file."""
    for package in ("hpckit", *_NEEDED):
        spec = find_spec(package)
        file = Path(spec.origin) if spec is not None and spec.origin else None
        if file is not None:
            top = file.parent.parent if file.name == "__init__.py" else file.parent
            for path in sorted(file.parent.rglob("*.py")) if top != file.parent else [file]:
                yield path.relative_to(top).as_posix(), path


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED, compresslevel=1)


def _read_compiled(path: Path, name: str) -> bytes | None:
    """Return the code of a module as this Python compiled it, if it is that of its present source."""
    try:
        found, stat = Path(cache_from_source(str(path))).read_bytes(), path.stat()
    except OSError:
        return None
    newest = int(stat.st_mtime).to_bytes(4, "little") + (stat.st_size & 0xFFFFFFFF).to_bytes(4, "little")
    is_current = found[:8] == MAGIC_NUMBER + bytes(4) and found[8:_HEADER_BYTES] == newest
    return marshal.dumps(_rename(marshal.loads(found[_HEADER_BYTES:]), name)) if is_current else None  # noqa: S302  # our own


def _rename(code: CodeType, name: str) -> CodeType:
    """Return compiled code as that of a source with this name, which tracebacks show."""
    inner = (_rename(part, name) if isinstance(part, CodeType) else part for part in code.co_consts)
    return code.replace(co_filename=name, co_consts=tuple(inner))


def find_own_zip() -> str | None:
    """Return the zip file that this hpckit was imported from; None if it was not."""
    outside = _PACKAGE.parent
    return str(outside) if outside.is_file() else None
