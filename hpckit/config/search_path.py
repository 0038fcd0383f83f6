"""The folders to search for configuration and templates, in order; reads none of their files."""

from __future__ import annotations

from pathlib import Path

from hpckit.config.request import ComposeRequest
from hpckit.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_folder() -> Path:
    """Return hpckit's own conf: inside the installed package, else next to it in a checkout."""
    inside = _PACKAGE / "conf"
    return inside if inside.is_dir() else _PACKAGE.parent / "conf"


def conf_folders(request: ComposeRequest) -> tuple[Path, ...]:
    """Return the configuration folders: the user's (if there is one) before hpckit's own.

    The user's is `--config-dir`, else `$HPCKIT_CONFIG_DIR`, else `conf` in the working directory.
    Raises ConfigError if a named folder does not exist.
    """
    folders = (_user_folder(request), shipped_folder())
    return tuple(dict.fromkeys(folder for folder in folders if folder is not None))


def template_folders(request: ComposeRequest) -> tuple[Path, ...]:
    """Return the `slurm_templates` folders: the user's (if there is one) before hpckit's own.

    The user's is next to the configuration folder, else in the working directory.
    """
    folders = [_user_folder(request) or request.cwd.resolve() / "conf", shipped_folder()]
    siblings = dict.fromkeys(folder.parent / "slurm_templates" for folder in folders)
    return tuple(folder for folder in siblings if folder.is_dir())


def _user_folder(request: ComposeRequest) -> Path | None:
    if request.config_dir is not None:
        return _existing(request, str(request.config_dir), said_by="--config-dir")
    named = request.environ.get("HPCKIT_CONFIG_DIR")
    if named:
        return _existing(request, named, said_by="HPCKIT_CONFIG_DIR")
    beside = (request.cwd / "conf").resolve()
    return beside if beside.is_dir() else None


def _existing(request: ComposeRequest, text: str, *, said_by: str) -> Path:
    folder = (request.cwd / Path(text).expanduser()).resolve()
    if folder.is_dir():
        return folder
    what = "is not a folder" if folder.exists() else "does not exist"
    raise ConfigError(
        f"The configuration folder {folder} (from {said_by}) {what}.",
        hint=f"Give an existing folder, or leave {said_by} out to use ./conf and hpckit's own.",
    )
