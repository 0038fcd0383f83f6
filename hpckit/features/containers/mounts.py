"""What a container shows of its node: the folders that a run needs, at the same path. Pure but for links."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from hpckit.errors import ConfigError
from hpckit.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Mount:
    """A folder or file of the node, as the container has it."""

    target: str
    source: str
    read_only: bool = False


def parse_mount(text: str, key: str) -> Mount:
    """Return the mount that `SRC[:DST[:ro|rw]]` means; raises ConfigError."""
    source, *more = text.split(":")
    mode = more.pop() if more and more[-1] in {"ro", "rw"} else "rw"
    target = more.pop() if more else source
    absolute = source.startswith("/") and target.startswith("/")
    if more or not absolute or not os.path.normpath(target).strip("/") or "," in text:
        message = f"{key} has {text!r}; a mount is SRC[:DST[:ro|rw]], two absolute paths without : and ,"
        raise ConfigError(message, hint="DST is SRC if it is left out, and not /")
    return Mount(source=os.path.normpath(source), target=os.path.normpath(target), read_only=mode == "ro")


def plan_mounts(needed: Iterable[str], named: Sequence[Mount]) -> list[Mount]:
    """Return what to mount: what a run needs, at its own path and where links lead; and what is named.

    What is named wins over what is needed. A folder that is there with one above it has no mount of its own.
    Those above come first. Raises ConfigError for a path that no runtime can be told.
    """
    ours: dict[str, Mount] = {}
    for path in needed:
        for target in (path, os.path.realpath(path)):
            if "," in target or ":" in target:
                message = f"a container cannot have {target}: the path has a comma or a colon"
                raise ConfigError(message, hint="use another folder, or name a link to it")
            ours[target] = Mount(source=os.path.realpath(path), target=target)
    theirs = {mount.target: mount for mount in named}
    planned: list[Mount] = []
    for mount in sorted((ours | theirs).values()):
        if not any(_holds(above, mount) for above in planned):
            planned.append(mount)
    return planned


def _holds(above: Mount, mount: Mount) -> bool:
    """Return whether a mount shows what another one would show, at the same place."""
    target = PurePath(mount.target)
    if above.read_only != mount.read_only or not target.is_relative_to(above.target):
        return False
    return str(above.source / target.relative_to(above.target)) == mount.source
