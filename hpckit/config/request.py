"""The request of a user for a composition, and its folders; reads none of their files."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hpckit.errors import ConfigError
from hpckit.patterns import lazy_pattern
from hpckit.values import dataclass, replace

_CHOICE = lazy_pattern(r"\+{0,2}(experiment|entry_point|command)=")
PRIMARY = "config"
"""The configuration that is composed if no other is named, unless it is another program's."""

SITE_CONFIG_DIR = "HPCKIT_SITE_CONFIG_DIR"
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeRequest:
    """Overrides in Hydra's grammar, and where to look for configuration.

    `environ` determines the user's configuration folder (`HPCKIT_CONFIG_DIR`), whether Slurm is
    installed (`PATH`), and the values of `${oc.env:...}`; relative folders start at `cwd`. `tell`
    is called with the number of points composed so far and the total. `command` are the words after
    `--`, as the shell passed them; None without a command. `points` are a sweep's: a mapping of keys
    to plain values each. `${now:...}` is `moment`; None: now.
    """

    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    config_dir: Path | None = None
    config_name: str | None = None
    multirun: bool = False
    points: tuple[Mapping[str, Any], ...] | None = None
    environ: Mapping[str, str]
    cwd: Path
    tell: Callable[[int, int], None] | None = None
    moment: datetime | None = None


def add_placeholder_command(request: ComposeRequest) -> ComposeRequest:
    """Return the request, with a command if its words choose nothing to run.

    So the cluster can be read although no experiment is complete.
    """
    chosen = request.command or any(_CHOICE.match(word) for word in request.overrides)
    return request if chosen else replace(request, command=("true",))


def shipped_conf_folder() -> Path:
    """Return hpckit's own conf: inside the installed package, else next to it in a checkout."""
    inside = _PACKAGE / "conf"
    return inside if inside.is_dir() else _PACKAGE.parent / "conf"


def list_conf_folders(request: ComposeRequest) -> tuple[Path, ...]:
    """Return the configuration folders: the user's and the site's (if there are), and hpckit's own.

    The user's is `--config-dir`, else `$HPCKIT_CONFIG_DIR`, else `conf` in the working directory;
    the site's is `$HPCKIT_SITE_CONFIG_DIR`. Raises ConfigError if a named folder does not exist.
    """
    folders = (find_user_conf_folder(request), _find_site_conf_folder(request), shipped_conf_folder())
    return tuple(dict.fromkeys(folder for folder in folders if folder is not None))


def list_template_folders(request: ComposeRequest) -> tuple[Path, ...]:
    """Return the `slurm_templates` folders: the user's and the site's, and hpckit's own.

    Each is next to its configuration folder; the user's else in the working directory.
    """
    user = find_user_conf_folder(request) or request.cwd.resolve() / "conf"
    folders = filter(None, (user, _find_site_conf_folder(request), shipped_conf_folder()))
    siblings = dict.fromkeys(folder.parent / "slurm_templates" for folder in folders)
    return tuple(folder for folder in siblings if folder.is_dir())


def find_user_conf_folder(request: ComposeRequest) -> Path | None:
    """Return the user's configuration folder, None without one; raises ConfigError if it is lost."""
    if request.config_dir is not None:
        return _resolve_existing_folder(request, str(request.config_dir), said_by="--config-dir")
    named = request.environ.get("HPCKIT_CONFIG_DIR")
    if named:
        return _resolve_existing_folder(request, named, said_by="HPCKIT_CONFIG_DIR")
    beside = (request.cwd / "conf").resolve()
    return beside if beside.is_dir() else None


def _find_site_conf_folder(request: ComposeRequest) -> Path | None:
    named = request.environ.get(SITE_CONFIG_DIR)
    folder = _resolve_existing_folder(request, named, said_by=SITE_CONFIG_DIR) if named else None
    if folder is not None and folder.stat().st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{SITE_CONFIG_DIR} is {folder}, and every user can write there.",
            hint=f"Its files decide what all users run: chmod o-w {folder}",
        )
    return folder


def _resolve_existing_folder(request: ComposeRequest, text: str, *, said_by: str) -> Path:
    folder = (request.cwd / Path(text).expanduser()).resolve()
    if folder.is_dir():
        return folder
    what = "is not a folder" if folder.exists() else "does not exist"
    raise ConfigError(
        f"The configuration folder {folder} (from {said_by}) {what}.",
        hint=f"Give an existing folder, or leave {said_by} out to use ./conf and hpckit's own.",
    )
