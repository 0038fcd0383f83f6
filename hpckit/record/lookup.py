"""Finds a launch or run by what the user types: id, beginning, name, folder, or nothing.

It reads no more than it needs to tell launches apart.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from hpckit.errors import NotFoundError, UsageError
from hpckit.model.counted import format_short_list
from hpckit.model.ids import extract_name_from_launch_id, split_run_id
from hpckit.patterns import lazy_pattern
from hpckit.record.launches import Launch, load_launch, load_launch_of_any_owner
from hpckit.record.layout import LaunchPaths
from hpckit.record.ownership import list_own_launch_folders
from hpckit.record.remove import list_removal_leftovers, original_name_of_leftover
from hpckit.values import dataclass

_STAMP = lazy_pattern(r"-(\d{8}-\d{6})-[^-]+\Z")
_BACK = lazy_pattern(r"@-([1-9]\d*)")
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A launch, and one of its runs if one was meant."""

    launch: Launch
    index: int | None

    @property
    def indices(self) -> tuple[int] | None:
        """The run that was meant, None for all of the launch."""
        return None if self.index is None else (self.index,)

    def require_single_run(self) -> int:
        """Return the index of the one run that is meant; raises UsageError if there are more."""
        if self.index is None and len(self.launch.runs) > 1:
            raise UsageError(
                f"launch {self.launch.id} has {len(self.launch.runs)} runs",
                hint=f"name one, such as {self.launch.runs[0].id}",
            )
        return self.index or 0


def list_own_launches(output_dir: Path) -> tuple[Path, ...]:
    """Return the caller's own launch folders below `output_dir`, newest first."""
    return tuple(list_own_launch_folders(output_dir, list_all_launches(output_dir)))


def list_all_launches(output_dir: Path) -> tuple[Path, ...]:
    """Return all launch folders below `output_dir`, of any owner, newest first; none if missing."""
    try:
        folders = [path for path in output_dir.iterdir() if not path.name.startswith(".")]
    except OSError:
        return ()
    aged = [(age, folder) for folder in folders if (age := _launch_sort_key(folder)) is not None]
    return tuple(folder for _, folder in sorted(aged, reverse=True))


def find_launch_or_run(reference: str | None, output_dir: Path, *, cwd: Path | None = None) -> Selection:
    """Return the launch or run that `reference` means, to act on it; None is the latest launch.

    A launch in the foreground is that of a debugger: it is never the latest, only by its name.

    Otherwise `reference` is an id, a unique beginning of one, a name (its latest launch), or `@-2` (the
    launch before the latest), each optionally with `.INDEX` of a run (`.3`: run 3 of the latest launch), a
    folder of a launch (also with `.INDEX`), of a run or inside one (relative to `cwd`). Raises NotFoundError
    with the nearest names, and ForeignError if it means another user's launch.
    """
    return _resolve_reference(reference, output_dir, cwd, load_launch)


def find_launch_of_any_owner(
    reference: str | None, output_dir: Path, *, cwd: Path | None = None
) -> Selection:
    """Return what `reference` means as `find` does, only to show it: any owner is allowed."""
    return _resolve_reference(reference, output_dir, cwd, load_launch_of_any_owner)


def find_unfinished_removal(reference: str, output_dir: Path, *, cwd: Path) -> Path | None:
    """Return the launch folder meant by `reference` whose removal was cut off, if any.

    Only the caller's own folders count: the names of others mean nothing.

    A complete launch with exactly this id takes precedence. A name means the latest of its
    launches, whether its removal was cut off or not: the same words again never reach an older one.
    Raises NotFoundError if a beginning fits several, and the removal of one of them was cut off.
    """
    at = cwd / reference
    if "/" in reference:
        output_dir, reference = at.parent, at.name
    if not reference or _BACK.fullmatch(reference) or LaunchPaths(output_dir / reference).launch.exists():
        return None
    begun: dict[str, Path] = {}
    for path in list_removal_leftovers(output_dir):
        name = original_name_of_leftover(path)
        with suppress(OSError):
            if name and path.lstat().st_uid == os.geteuid():
                begun[name] = path
    if not begun:
        return None
    live = dict.fromkeys(folder.name for folder in list_own_launches(output_dir))
    every = sorted(live | dict.fromkeys(begun), key=_find_timestamp_in_launch_name, reverse=True)
    matches = _match_launch_names(reference, every)
    if all(name in live for name in matches):
        return None
    if len(matches) > 1:
        raise _no_unique_match_error(reference, matches, every, output_dir)
    return begun[matches[0]]


def _find_timestamp_in_launch_name(name: str) -> str:
    stamp = _STAMP.search(name)
    return stamp[1] if stamp else ""


def _resolve_reference(
    reference: str | None, output_dir: Path, cwd: Path | None, load: Callable[[Path], Launch]
) -> Selection:
    if reference is None:
        return _select_latest_launch(output_dir)
    if not reference.strip():
        raise empty_reference_error("the latest launch")
    base = cwd or Path.cwd()
    return (
        _find_launch_by_folder(base / reference, load)
        or _find_run_by_folder_index(reference, base, load)
        or _find_launch_by_id(reference, output_dir, load)
    )


def empty_reference_error(without: str = "all launches") -> NotFoundError:
    """Return the error for an empty name; `without` is what no name at all means."""
    return NotFoundError(
        "the launch name is an empty text; a shell variable may be unset",
        hint=f"name a launch or a run, or leave the word out for {without}",
    )


def _launch_sort_key(folder: Path) -> tuple[str, int] | None:
    """Return the sort key of launches: the moment in the id, then the file's finer time."""
    try:
        written = LaunchPaths(folder).launch.stat()
    except OSError:
        return None
    if not stat.S_ISREG(written.st_mode):
        return None
    moment = datetime.fromtimestamp(written.st_mtime, UTC)
    return _find_timestamp_in_launch_name(folder.name) or f"{moment:%Y%m%d-%H%M%S}", written.st_mtime_ns


def _select_latest_launch(output_dir: Path) -> Selection:
    folders = list_own_launches(output_dir)
    if not folders:
        others = len(list_all_launches(output_dir))
        raise NotFoundError(
            f"there are no launches in {output_dir}"
            if not others
            else f"none of the {others} launch(es) in {output_dir} is yours",
            hint="`hpckit launch` makes one; --output-dir or $HPCKIT_OUTPUTS choose where to look"
            + ("; `hpckit ls` lists those of others" if others else ""),
        )
    found = next((launch for launch in map(load_launch, folders) if not launch.in_foreground), None)
    if found is None:
        raise NotFoundError(
            f"all launches in {output_dir} ran in the foreground; such a launch has to be given by its name",
            hint=f"name it: {folders[0].name}",
        )
    return Selection(launch=found, index=None)


def _find_launch_by_folder(path: Path, load: Callable[[Path], Launch]) -> Selection | None:
    if not path.is_dir():
        return None
    path = path.resolve()
    for folder in (path, *path.parents):
        if LaunchPaths(folder).launch.is_file():
            launch, parts = load(folder), path.relative_to(folder).parts
            runs = launch.paths.run(0).folder.parent.name
            of_run = len(parts) > 1 and parts[0] == runs and parts[1].isdecimal()
            return _select_run(launch, int(parts[1]) if of_run else None)
    return None


def _find_run_by_folder_index(reference: str, base: Path, load: Callable[[Path], Launch]) -> Selection | None:
    """Return the run that `FOLDER.INDEX` means, as messages name runs of launches elsewhere."""
    text, index = split_run_id(reference)
    folder = (base / text).resolve()
    if not text or index is None or not LaunchPaths(folder).launch.is_file():
        return None
    return _select_run(load(folder), index)


def _find_launch_by_id(reference: str, output_dir: Path, load: Callable[[Path], Launch]) -> Selection:
    text, index = split_run_id(reference)
    if index is not None and not text:
        return _select_run(_select_latest_launch(output_dir).launch, index)
    # Other users' launches must never get in the way of the caller's own.
    folders = {folder.name: folder for folder in list_own_launches(output_dir)}
    matches = _match_launch_names(text, folders)
    if not matches:
        folders = {folder.name: folder for folder in list_all_launches(output_dir)}
        matches = _match_launch_names(text, folders)
    if len(matches) != 1:
        raise _no_unique_match_error(reference, matches, list(folders), output_dir)
    return _select_run(load(folders[matches[0]]), index)


def _match_launch_names(text: str, names: Collection[str]) -> list[str]:
    """Return the launches that a text may mean; `names` are newest first."""
    if text in names:
        return [text]
    if back := _BACK.fullmatch(text):
        return list(names)[int(back[1]) - 1 : int(back[1])]
    named = [name for name in names if extract_name_from_launch_id(name) == text]
    return named[:1] or [name for name in names if name.startswith(text)]


def _select_run(launch: Launch, index: int | None) -> Selection:
    if index is not None and index >= len(launch.runs):
        there = "only run 0" if len(launch.runs) == 1 else f"0 to {len(launch.runs) - 1}"
        raise NotFoundError(
            f"launch {launch.id} has no run {index}; it has {there}",
            hint=f"`hpckit status {launch.id}` lists its runs; a rerun has the name of its launch, and "
            "`hpckit ls` lists both",
        )
    return Selection(launch=launch, index=index)


def _no_unique_match_error(
    reference: str, matches: Sequence[str], names: Sequence[str], output_dir: Path
) -> NotFoundError:
    if matches:
        return NotFoundError(
            f"{reference!r} is the beginning of {len(matches)} launches: "
            f"{format_short_list(matches, _SHOWN)}",
            hint="give more of the id",
        )
    if "=" in reference:
        return NotFoundError(
            f"{reference!r} is an override, not a launch or run",
            hint="overrides change what `hpckit launch` starts; this verb takes launches and runs",
        )
    # Launches whose id, or the name it begins with, is similar.
    known = {
        **{name: name for name in names},
        **{extract_name_from_launch_id(name): name for name in reversed(names)},
    }
    similar = difflib.get_close_matches(reference, known, n=_SHOWN, cutoff=0.6)
    near = list(dict.fromkeys(known[name] for name in similar))
    hint = "there are none; --output-dir or $HPCKIT_OUTPUTS choose where to look"
    if reference.isdecimal():
        hint = f"run {reference} of the latest launch is .{reference}"
    elif names:
        hint = f"nearest: {', '.join(near)}" if near else f"newest: {', '.join(names[:_SHOWN])}"
    return NotFoundError(f"no launch or run matching {reference!r} in {output_dir}", hint=hint)
