"""The jobs of a sweep as runs find them: configurations, and how their application is entered.

Launch and runs share a folder that is the user's alone. What runs unpickle is checked by digests, which
the launch has in its own record. It must not start anything, nor import Hydra.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from hpckit.errors import FrozenFolderError
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.ownership import check_folder_is_own
from hpckit.record.store import make_private_folder, read_regular_file, write_chunks
from hpckit.values import dataclass

_INDEX = "jobs.json"
_FUNCTION = "function.pkl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """How a program was started, the folders of its modules, and the name of what `hydra.main` decorated.

    Without a script and a module it cannot be entered again: then its function is kept, pickled, and
    `python_path` is all of Python's.
    """

    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    cwd: str
    function: str
    python_path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenJob:
    """One job on a node; its run was recorded with the values `words`."""

    folder: Path
    number: int
    words: Mapping[str, Any]
    application: Application
    config: bytes  # is unpickled only where the application's own classes are
    function: bytes | None


def name_function(function: Any) -> str:
    """Return the name of what `hydra.main` decorates: of an object that can be called, its class's."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def write_jobs(
    folder: Path,
    application: Application,
    configs: Mapping[int, Any],
    words: Mapping[int, Mapping[str, Any]],
    function: bytes | None,
) -> str:
    """Write the jobs of a launch into a new folder, for this user alone; return their digest.

    Raises OSError, and ForeignError where others could replace the folder.
    """
    make_private_folder(folder.parent)
    make_private_folder(folder, exist_ok=False)
    check_folder_is_own(folder)
    files = {f"{number}.pkl": pickle.dumps(config) for number, config in configs.items()}
    files |= {} if function is None else {_FUNCTION: function}
    for name, content in files.items():
        write_chunks(folder / name, (content,))
    digests = {name: sha256(content).hexdigest() for name, content in files.items()}
    whole = {"application": to_plain(application), "files": digests, "words": words}
    index = json.dumps(whole).encode()
    write_chunks(folder / _INDEX, (index,))
    return sha256(index).hexdigest()


def read_job(folder: Path, digest: str, number: int) -> FrozenJob:
    """Return a job; raises FrozenFolderError if it is not as it was frozen, ForeignError, OSError."""
    index = json.loads(_read_checked(folder / _INDEX, digest))
    files: Mapping[str, str] = index["files"]
    name = f"{number}.pkl"
    return FrozenJob(
        folder=folder,
        number=number,
        words=index["words"][str(number)],
        application=from_plain(Application, index["application"]),
        config=_read_checked(folder / name, files[name]),
        function=_read_checked(folder / _FUNCTION, files[_FUNCTION]) if _FUNCTION in files else None,
    )


def _read_checked(file: Path, digest: str) -> bytes:
    try:
        check_folder_is_own(file.parent)
        content = read_regular_file(file)
    except OSError as error:
        raise FrozenFolderError(
            f"{file}, which the run is made of, cannot be read: {error.strerror}",
            hint="it lies in the sweep's folder (hydra.sweep.dir), which has to stay while runs may resume",
        ) from error
    if sha256(content).hexdigest() != digest:
        raise FrozenFolderError(
            f"{file} is not as it was at the launch", hint="launch again; nothing of it was used"
        )
    return content


def find_result_file(folder: Path, number: int) -> Path:
    """Return where a job leaves what its function returned, and the folder it worked in, pickled."""
    return folder / f"{number}.return.pkl"


def read_result(folder: Path, number: int) -> tuple[Any, str] | None:
    """Return what the function of a job returned, and where; None if it left nothing; raises ForeignError."""
    check_folder_is_own(folder)
    with suppress(FileNotFoundError):
        content = read_regular_file(find_result_file(folder, number))
        return pickle.loads(content)  # type: ignore[no-any-return]  # noqa: S301  # of this user's own run
    return None
