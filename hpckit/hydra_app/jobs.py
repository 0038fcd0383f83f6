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

from hpckit.api.pickling import load_own_pickle, open_own_file
from hpckit.errors import FrozenFolderError
from hpckit.model.plain import from_plain, to_plain
from hpckit.record.ownership import check_folder_is_own
from hpckit.record.store import make_private_folder, write_chunks
from hpckit.values import dataclass

_INDEX, _FUNCTION, _RESULT = "jobs.json", "function.pkl", "{}.return.pkl"


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
    """One job on a node; its run was recorded with the values `words`.

    `result` is the file for what its function returned, and the folder it worked in, pickled.
    """

    words: Mapping[str, Any]
    application: Application
    config: bytes  # is unpickled only where the application's own classes are
    function: bytes | None
    result: Path


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
    make_private_folder(folder, exist_ok=False)
    check_folder_is_own(folder)
    files = {f"{number}.pkl": pickle.dumps(config) for number, config in configs.items()}
    files |= {} if function is None else {_FUNCTION: function}
    digests = {name: _write_file(folder / name, content) for name, content in files.items()}
    index = {"application": to_plain(application), "files": digests, "words": words}
    return _write_file(folder / _INDEX, json.dumps(index).encode())


def _write_file(file: Path, content: bytes) -> str:
    write_chunks(file, (content,))
    return sha256(content).hexdigest()


def read_job(folder: Path, digest: str, number: int) -> FrozenJob:
    """Return a job; raises FrozenFolderError if it is not as it was frozen, or ForeignError."""
    index = json.loads(_read_file(folder / _INDEX, digest))
    names = {f"{number}.pkl", _FUNCTION} & index["files"].keys()
    files = {name: _read_file(folder / name, index["files"][name]) for name in names}
    return FrozenJob(
        words=index["words"][str(number)],
        application=from_plain(Application, index["application"]),
        config=files[f"{number}.pkl"],
        function=files.get(_FUNCTION),
        result=folder / _RESULT.format(number),
    )


def _read_file(file: Path, digest: str) -> bytes:
    try:
        with open_own_file(file) as source:
            content = source.read()
    except OSError as error:
        raise FrozenFolderError(
            f"{file}, which the run is made of, cannot be read: {error.strerror}",
            hint="it lies in the sweep's folder (hydra.sweep.dir), which has to stay while runs may resume",
        ) from error
    if sha256(content).hexdigest() != digest:
        message = f"{file} is not as it was at the launch"
        raise FrozenFolderError(message, hint="launch again; nothing of it was used")
    return content


def read_result(folder: Path, number: int) -> tuple[Any, str] | None:
    """Return what the function of a job returned, and where; None if it left nothing; raises ForeignError."""
    with suppress(FileNotFoundError):
        return load_own_pickle(folder / _RESULT.format(number))  # type: ignore[no-any-return]
    return None
