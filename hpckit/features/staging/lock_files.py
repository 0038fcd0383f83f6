"""Builds the environment of a launch from the project's lock file, once per content of that file.

uv, pixi or conda do the work, on the machine that launches: jobs of an array would all write the same
environment. Built environments lie in `output_dir`, each with a copy of its lock file, which a launch links.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import ConfigError, UsageError
from hpckit.features.staging.environment import BUILT, FOLDER, hold_environments, run_program
from hpckit.model.node_setup import EnvironmentSource
from hpckit.record.remove import remove_path
from hpckit.record.store import write_chunks
from hpckit.values import dataclass

_LOCKS: Mapping[EnvironmentSource, tuple[Mapping[str, tuple[str, ...]], tuple[str, ...], str]] = {
    EnvironmentSource.uv: ({"uv.lock": ("uv",)}, ("pyproject.toml", ".python-version", "uv.toml"), "uv lock"),
    EnvironmentSource.pixi: ({"pixi.lock": ("pixi",)}, ("pixi.toml", "pyproject.toml"), "pixi lock"),
    EnvironmentSource.conda: (
        {"conda-lock.yml": ("conda-lock",), "conda-linux-64.lock": ("micromamba", "mamba", "conda")},
        (),
        "conda-lock -p linux-64",
    ),
}
"""Names of lock files with the programs that install from them, of files beside them that say what is
installed, and what makes one."""
_OUT_OF_DATE = "needs to be updated"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedEnvironment:
    """The environment that a lock file describes: where it is built, and its Python there."""

    source: EnvironmentSource
    lock: Path
    beside: tuple[Path, ...]
    folder: Path

    @property
    def python(self) -> Path:
        """Its Python, once it is built."""
        inside = ".pixi/envs/default" if self.source is EnvironmentSource.pixi else ""
        return self.folder / inside / "bin" / "python"

    @property
    def kept_lock(self) -> Path:
        """The copy of the lock file; it is there when all of the environment is."""
        return self.folder.with_name(f"{self.folder.name}{BUILT}")


def find_locked_environment(source: EnvironmentSource, cwd: Path, outputs: Path) -> LockedEnvironment:
    """Return what the lock file of the project around `cwd` describes; raises ConfigError."""
    names, more, make = _LOCKS[source]
    places = (folder / name for folder in (cwd, *cwd.parents) for name in names)
    lock = next((place for place in places if place.is_file()), None)
    if lock is None:
        words = f"data.environment_from is {source}, and there is no {' or '.join(names)} in {cwd} or above"
        raise ConfigError(words, hint=f"make one: {make}")
    beside = tuple(path for path in (lock.with_name(name) for name in more) if path.is_file())
    if source is EnvironmentSource.pixi and not beside:
        raise ConfigError(f"{lock} is alone in its folder", hint=f"copy {' or '.join(more)} there")
    digest = hashlib.sha256()
    for path in (lock, *beside):
        digest.update(f"\0{path}\0".encode())
        digest.update(path.read_bytes())
    folder = outputs / FOLDER / f"{source}-{digest.hexdigest()[:20]}"
    return LockedEnvironment(source=source, lock=lock, beside=beside, folder=folder)


def find_installer(locked: LockedEnvironment, environ: Mapping[str, str]) -> str | None:
    """Return the program that builds an environment; None if it is built. Raises ConfigError."""
    if locked.kept_lock.exists() and locked.python.exists():
        return None
    names, path = _LOCKS[locked.source][0][locked.lock.name], environ.get("PATH", os.defpath)
    program = next(filter(None, (shutil.which(name, path=path) for name in names)), None)
    if program is None:
        words = f"data.environment_from is {locked.source}, and {' or '.join(names)} is not on PATH"
        raise ConfigError(words, hint="install it, or load its module")
    return program


def build_locked_environment(locked: LockedEnvironment, context: Context) -> None:
    """Build an environment, unless it is there; raises UsageError."""
    work = f"building the environment of {locked.lock}"
    with hold_environments(locked.folder.parent, work, context):
        program = find_installer(locked, context.environ)
        if program is None:
            os.utime(locked.kept_lock)
            return
        if locked.folder.exists():  # an earlier launch was ended while it built
            remove_path(locked.folder)
        context.note(f"{work}, once for this content")
        environ = {name: value for name, value in context.environ.items() if name != "VIRTUAL_ENV"}
        environ |= {"UV_PROJECT_ENVIRONMENT": str(locked.folder), "UV_COMPILE_BYTECODE": "1"}
        # On the file system of the environment, files of the cache need no copy.
        environ["UV_CACHE_DIR"] = environ.get("UV_CACHE_DIR") or str(locked.folder.with_name("uv-cache"))
        if locked.source is EnvironmentSource.uv:
            _check_lock_is_current(locked.lock, program, environ, context)
        hint = "run it by hand to see all it says; the environment is built on this machine"
        run_program(_build_command(locked, program), environ, hint, locked.lock.parent)
        if not locked.python.exists():
            raise UsageError(f"{program} made no {locked.python}", hint="does the lock file have Python?")
        write_chunks(locked.kept_lock, (locked.lock.read_bytes(),))


def _check_lock_is_current(lock: Path, uv: str, environ: Mapping[str, str], context: Context) -> None:
    """Raise ConfigError if a lock file is out of date; warn if that cannot be told, as without a network."""
    hint = "update it: uv lock"
    try:
        run_program([uv, "lock", "--check", "--project", str(lock.parent)], environ, hint, lock.parent)
    except UsageError as error:
        if _OUT_OF_DATE in error.message:
            raise ConfigError(f"{lock} is older than pyproject.toml: {error.message}", hint=hint) from error
        context.note(f"warning: uv could not tell whether {lock} is up to date: {error.message}")


def _build_command(locked: LockedEnvironment, program: str) -> list[str]:
    """Return the command that builds an environment, with all it needs in place."""
    folder = str(locked.folder)
    if locked.source is EnvironmentSource.uv:
        return [program, "sync", "--frozen", "--project", str(locked.lock.parent)]
    if locked.source is EnvironmentSource.pixi:
        locked.folder.mkdir()
        for path in (locked.lock, *locked.beside):
            shutil.copyfile(path, locked.folder / path.name)
        manifest = locked.folder / locked.beside[0].name
        return [program, "install", "--frozen", "--manifest-path", str(manifest)]
    if locked.lock.suffix == ".yml":
        return [program, "install", "--prefix", folder, str(locked.lock)]
    return [program, "create", "--yes", "--prefix", folder, "--file", str(locked.lock)]
