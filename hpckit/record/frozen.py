"""Reads launch.json as it was frozen, and words the errors if it cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from hpckit.errors import FrozenFolderError, NotFoundError
from hpckit.model.launch import Cluster
from hpckit.model.node_setup import FrozenContainer, find_container_of_run
from hpckit.model.plain import from_plain
from hpckit.model.plan import JobSpec
from hpckit.model.stages import Stage
from hpckit.patterns import lazy_pattern
from hpckit.record.layout import LaunchPaths
from hpckit.record.process import this_host
from hpckit.record.remove import LaunchOrigin
from hpckit.record.store import read_json, read_regular_file
from hpckit.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """A run as listed in launch.json."""

    index: int
    id: str
    overrides: tuple[str, ...]
    signature: str
    stage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRecord:
    """The code of a launch, as absolute folders; `project` is where it came from.

    `root` is the snapshot, or the project if there is none; `working_dir` is inside it. The entry
    of launch.json has no root: its paths are relative to it.
    """

    snapshot: bool
    root: str = ""
    working_dir: str
    python_path: tuple[str, ...]
    project: str

    @property
    def original_working_dir(self) -> Path:
        """The folder of the project that the launch was made in."""
        return Path(self.project, Path(self.working_dir).relative_to(self.root))

    def find_frozen(self, place: str) -> str:
        """Return where a file or folder is in the snapshot; the place itself if it is not there."""
        for path in (Path(place), Path(place).resolve()):  # a link may lead into the project
            if path.is_relative_to(self.project):
                frozen = Path(self.root, path.relative_to(self.project))
                if frozen.exists():
                    return str(frozen)
        return place


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenFields:
    """The fields of launch.json that can be read directly.

    `searched` is true if its runs ask for values when they begin (an adaptive sweep). `origin` is
    where the folder was made, `swept` the keys in which all that was asked for differs; launches of
    older versions lack both.
    """

    id: str
    name: str
    created_at: datetime
    arguments: tuple[str, ...]
    python: str
    cluster: Cluster
    jobs: tuple[JobSpec, ...]
    stages: tuple[Stage, ...] = ()
    searched: bool = False
    origin: LaunchOrigin | None = None
    swept: tuple[str, ...] = ()
    containers: tuple[FrozenContainer, ...] = ()

    def find_container(self, index: int) -> FrozenContainer | None:
        """Return the image that a run is in; None without one."""
        return find_container_of_run(self.containers, index)


def has_foreground_option(arguments: Iterable[str]) -> bool:
    """Return whether a launch with these words is in the foreground: no other one reuses it."""
    return "--foreground" in takewhile(lambda word: word != "--", arguments)


def parse_launch_json_runs(runs: object) -> tuple[RunHead, ...]:
    """Return the runs of launch.json; raises KeyError, TypeError or ValueError if malformed."""
    if not isinstance(runs, list) or not runs:
        raise TypeError("runs is not a list of runs")
    heads = tuple(map(_parse_launch_json_run, runs))
    if [head.index for head in heads] != list(range(len(heads))):
        raise ValueError("its runs are not numbered from 0")
    return heads


def _parse_launch_json_run(run: Any) -> RunHead:
    # Done by hand: for ten thousand runs, from_plain takes a second.
    overrides, stage = run["overrides"], run.get("stage")
    texts = (run["id"], run["signature"], "" if stage is None else stage)
    if not isinstance(overrides, list) or {*map(type, overrides), *map(type, texts)} != {str}:
        raise TypeError("a run has values that are not strings")
    return RunHead(
        index=run["index"], id=run["id"], overrides=tuple(overrides), signature=run["signature"], stage=stage
    )


def check_jobs_cover_every_run(frozen: FrozenFields, runs: int) -> None:
    """Raise ValueError unless jobs and stages cover every run exactly once."""
    if [job.index for job in frozen.jobs] != list(range(len(frozen.jobs))):
        raise ValueError("its jobs are not numbered from 0")
    if sorted(run for job in frozen.jobs for run in job.runs) != list(range(runs)):
        raise ValueError("its jobs do not have every run once")
    ends = [0, *(stage.first + stage.count for stage in frozen.stages)]
    if frozen.stages and (ends[-1] != runs or ends[:-1] != [stage.first for stage in frozen.stages]):
        raise ValueError("its stages do not have every run once")


def parse_code_record(paths: LaunchPaths, record: Mapping[str, Any]) -> CodeRecord:
    """Return the folders of the code; raises TypeError or ValueError if malformed."""
    entry = from_plain(CodeRecord, record)
    base = paths.code if entry.snapshot else Path(entry.project)
    return replace(
        entry,
        root=str(base),
        working_dir=str(base / entry.working_dir),
        python_path=tuple(str(base / path) for path in entry.python_path),
    )


def read_launch_json(path: Path) -> dict[str, Any]:
    """Return launch.json; raises NotFoundError if missing, FrozenFolderError if unreadable."""
    try:
        record = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        raise no_launch_error(path.parent, path.name) from None
    except OSError as error:
        raise unreadable_file_error(path, str(error)) from error
    except ValueError as error:
        raise damaged_file_error(path, str(error)) from error
    if not isinstance(record, dict):
        raise damaged_file_error(path, "it does not contain a JSON object")
    return record


def no_launch_error(folder: Path, missing: str) -> NotFoundError:
    """Return the error for a folder that lacks this file of a launch."""
    return NotFoundError(
        f"there is no launch in {folder}: {missing} is missing (seen from {this_host()})",
        hint="on a node this means that its file systems do not show the folder: put launches "
        "on one that all nodes see with output_dir=DIR",
    )


def damaged_file_error(path: Path, why: str) -> FrozenFolderError:
    """Return the error for a file whose content is not what hpckit wrote."""
    return FrozenFolderError(
        f"{path} is damaged: {why} (seen from {this_host()})",
        hint="it was edited, or the disk was full during a copy: restore it from a good copy. "
        "hpckit needs it for this launch; to give the launch up, delete its folder",
    )


def unreadable_file_error(path: Path, why: str) -> FrozenFolderError:
    """Return the error for a file that exists but cannot be read."""
    return FrozenFolderError(
        f"{this_host()} cannot read {path}: {why}",
        hint="check that the file system is mounted there, that the folder belongs to you, and "
        "that it was not edited",
    )


_DIFF_OF = lazy_pattern(r'^diff --git (?:"?a/.*"? )"?b/(.*?)"?$', re.MULTILINE)


def list_uncommitted_files(paths: LaunchPaths) -> tuple[str, ...]:
    """Return the files that differed from the commit, limited to files that git tracked."""
    try:
        diff = read_regular_file(paths.code_diff).decode("utf-8", "surrogateescape")
    except OSError:
        return ()
    return tuple(dict.fromkeys(_DIFF_OF.findall(diff)))
