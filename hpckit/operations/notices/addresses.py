"""Reads where notices go: from `$HPCKIT_NOTIFY`, or from a private file. Opens no connection."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hpckit.errors import ConfigError
from hpckit.model.settings import VARIABLE, Notify
from hpckit.planning.notices import Destination, Transport, parse_notice_destinations

_MOST_BYTES = 64 * 1024
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def find_notice_destinations(notify: Notify, environ: Mapping[str, str]) -> tuple[Destination, ...]:
    """Return where notices go; raises ConfigError, which shows no address."""
    if notify.file is not None:
        source = f"the file {notify.file}"
        found = parse_notice_destinations(_read_private_file(notify.file), source)
    else:
        source = f"${VARIABLE}"
        found = parse_notice_destinations(environ.get(VARIABLE, ""), source)
    if not found:
        raise ConfigError(
            f"notify.events asks for notices, but {source} holds no address"
            + ("" if notify.file else ", and notify.file is null"),
            hint=f"export {VARIABLE}=ntfy://ntfy.sh/TOPIC in the shell that launches, name a "
            "private file with notify.file, or choose notify=none",
        )
    for destination in found:
        if destination.transport is Transport.apprise:
            _check_apprise_address(destination, source)
    return found


def check_notice_commands(notify: Notify, found: Sequence[Destination], environ: Mapping[str, str]) -> None:
    """Raise ConfigError if a command that takes notices cannot be run on this host."""
    source = f"${VARIABLE}" if notify.file is None else f"the file {notify.file}"
    for destination in found:
        if destination.transport is not Transport.command:
            continue
        program = destination.words[0]
        if shutil.which(program, path=environ.get("PATH")) is None:
            why = "is not executable" if Path(program).is_file() else "does not exist"
            raise ConfigError(
                f"address {destination.place} of {source} is exec: with a command that {why} on this host",
                hint="the command is not shown, as addresses are secrets; give its whole path, and "
                "make it executable: chmod +x",
            )


def build_apprise_sender(destination: Destination) -> Any:
    """Return apprise with this address; raises ImportError, and ValueError if it is malformed."""
    apprise = importlib.import_module("apprise")
    sender = apprise.Apprise()
    # Its own messages may quote an address.
    apprise.logger.setLevel(100)
    if not sender.add(destination.url):
        raise ValueError("apprise does not know its form")
    return sender


def _check_apprise_address(destination: Destination, source: str) -> None:
    where = f"address {destination.place} of {source}"
    if importlib.util.find_spec("apprise") is None:
        raise ConfigError(
            f"{where} has the scheme {destination.scheme!r}, which hpckit sends through apprise, "
            "and apprise is not installed",
            hint="pip install apprise   (without it: ntfy://, https://… of a web hook, exec:)",
        )
    try:
        build_apprise_sender(destination)
    except ValueError:
        raise ConfigError(
            f"{where} has the scheme {destination.scheme!r}, but apprise rejects it",
            hint="apprise's pages list the forms; the address itself is not shown",
        ) from None


def _read_private_file(name: str) -> str:
    """Return what a private file holds; raises ConfigError."""
    path = Path(name).expanduser()
    try:
        # Without waiting: a pipe would otherwise hold the verb up.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        _refuse_notify_file(name, f"cannot be read: {error.strerror}", "it holds one address per line")
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            _refuse_notify_file(name, "is not a regular file", "it holds one address per line")
        if found.st_uid != os.geteuid():
            _refuse_notify_file(name, f"belongs to user {found.st_uid}, not to you", "use a file of your own")
        if found.st_mode & _OF_OTHERS:
            mode = stat.S_IMODE(found.st_mode)
            _refuse_notify_file(name, f"has the mode {mode:04o}: other users may use it", f"chmod 600 {name}")
        data = file.read(_MOST_BYTES)
    try:
        return data.decode()
    except UnicodeDecodeError:
        _refuse_notify_file(name, "holds no text", "it holds one address per line")


def _refuse_notify_file(name: str, why: str, hint: str) -> NoReturn:
    raise ConfigError(f"notify.file is {name!r}, which {why}", hint=hint)
