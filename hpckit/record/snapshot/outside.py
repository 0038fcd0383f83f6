"""Code outside the project that runs take: scripts by their whole path, editable installs.

It is not frozen. Its content counts when runs are compared, so that a change of it is seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

_WHOLE_PATH = re.compile(r"(?:^|[\s'\"=;&|(])(/[^\s'\"=;&|()$]+\.(?:py|sh|bash|R|jl|pl))\b")
_MOST_FILES = 2000
_SKIPPED = frozenset({"node_modules", "__pycache__", "build", "dist", "site-packages"})


def outside_code(commands: Iterable[object], project: Path) -> tuple[str, ...]:
    """Return a line `sha256  path` for each script or editable package outside a project, sorted.

    Example: `outside_code(["python /data/tools/train.py"], Path("/home/ann/project"))`.
    """
    texts = {
        " ".join(map(str, one)) if isinstance(one, list | tuple) else str(one) for one in commands
    }
    scripts = {path for text in texts for path in _WHOLE_PATH.findall(text)}
    found = {path: [Path(path)] for path in scripts if os.path.isfile(path)}  # noqa: PTH113
    found |= {str(folder): list(_sources(folder)) for folder in editable_folders()}
    inside = (path for path in found if not Path(path).resolve().is_relative_to(project.resolve()))
    return tuple(sorted(f"{_digest(found[path])}  {path}" for path in inside))


def editable_folders() -> Iterator[Path]:
    """Yield the folders of the packages that `pip install -e` put into this environment.

    https://packaging.python.org/en/latest/specifications/direct-url
    """
    ours = Path(__file__).parents[3]
    for record in Path(sysconfig.get_path("purelib")).glob("*.dist-info/direct_url.json"):
        try:
            about = json.loads(record.read_text(encoding="utf-8"))
            editable = about["dir_info"]["editable"] is True
            folder = Path(unquote(urlsplit(about["url"]).path))
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if editable and folder.is_dir() and folder != ours:
            yield folder


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a package, at most _MOST_FILES, without environments in it."""
    found = 0
    for place, folders, names in os.walk(folder):
        here = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        folders[:] = [name for name in here if not os.path.exists(f"{place}/{name}/pyvenv.cfg")]  # noqa: PTH110
        for name in sorted(names):
            if name.endswith(".py") and (found := found + 1) <= _MOST_FILES:
                yield Path(place, name)


def _digest(files: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for file in sorted(files):
        try:
            whole.update(f"{file}\0".encode(errors="surrogateescape") + file.read_bytes())
        except OSError:
            whole.update(b"unreadable")
    return whole.hexdigest()
