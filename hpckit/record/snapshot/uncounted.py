"""Finds files of a project that are no part of its code: a change of them changes no result.

It is conservative: of what git tracks only papers about the project do not count, and sources and
configuration always count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from hpckit.model.events import AttemptEnded
from hpckit.patterns import lazy_pattern
from hpckit.record.attempts import NUMEROUS, list_attempt_numbers, read_attempt_events
from hpckit.record.layout import LaunchPaths, RunPaths
from hpckit.record.lookup import list_own_launches
from hpckit.record.snapshot.changes import read_frozen_checksums
from hpckit.record.snapshot.collect import CodeFile, CodeSnapshot
from hpckit.record.store import read_json_object

_PAPERS = frozenset(
    {"authors", "changelog", "citation", "code_of_conduct", "contributing", "copying", "license"}
    | {"notes", "readme"}
)
_PROSE = frozenset({"", ".cff", ".md", ".rst", ".txt"})
_SOURCE = lazy_pattern(
    r"(?i)\.(?:ad[bs]|asm|awk|[ckz]?sh|bash|bat|fish|ps1|sed|tcsh|c|cc|cl|cpp|cuh?|cxx|c\+\+|hh?|hpp|hxx"
    r"|hip|in[cl]|ispc|ptx|f|f03|f08|f77|f9[05]|for|ftn|clj|cs|el|erl|exs?|fs|go|groovy|hs|java|jl|kt"
    r"|lisp|lua|m|ml|nim|pas|php|p[lm]|py[ix]?|pxd|ipynb|r|rmd|qmd|rb|rs|s|sas|do|scala|scm|sql|swift"
    r"|tcl|[cm]?js|ts|v|sv|vhd|zig|cmake|cwl|gp|mk|nf|smk|wdl|j2|jinja2?|mako|tmpl|so"
    r"|cfg|conf|env|ini|nml|toml|ya?ml)\Z"
    r"|(?:\A|/)(?:(?:cmakelists|dockerfile|justfile|makefile|sconstruct|snakefile)(?:\.\w+)?|\.env[^/]*)\Z"
)
"""Programs, templates, recipes and settings; JSON is as often data, or written."""
_OF_HYDRA = lazy_pattern(r"(?:\A|/)(?:\.hydra/[^/]+\.yaml|multirun\.yaml)\Z")
"""What an application of Hydra writes of itself into its output folders."""
_PICTURES = frozenset({".gif", ".htm", ".html", ".jpeg", ".jpg", ".pdf", ".png", ".svg", ".webp"})
_PICTURE_FOLDERS = frozenset({"fig", "figs", "figures", "images", "img", "plots"})
_LOGS = (".err", ".log", ".out", ".pid")
_TABLES = frozenset({".csv", ".json", ".jsonl", ".tsv", ".txt"})
"""As likely to be read as written: at the top of a project they count."""
_QUIET_S = 120.0
"""An attempt that goes on writes into its own folder at least this often: telemetry, if no more."""


def find_non_code_files(
    snapshot: CodeSnapshot, output_dir: Path, is_output: Callable[[Path], bool], words: str
) -> frozenset[str]:
    """Return the files that do not count: papers, logs, outputs of hpckit and Hydra, and what runs wrote.

    Also files of points of any launch: their values are in the configurations of its runs. Notebooks,
    and pictures that git doesn't track, count if `words`, those of the commands, name them.
    `is_output` is whether hpckit wrote a file. Runs whose launches are in `output_dir` wrote an
    untracked file if it is from the time of an attempt that ran in the project itself, and its
    folder had no code when that launch was frozen.
    """
    tops = {PurePosixPath("."), PurePosixPath(snapshot.working_dir)}
    files = [file for file in snapshot.files or () if file.link is None]
    found = {file.path for file in files if _is_project_document(PurePosixPath(file.path), tops)}
    shown = [file for file in files if _is_notebook_or_picture(file, tops)]
    found |= {file.path for file in shown if PurePosixPath(file.path).name not in words}
    loose = [file.path for file in files if not file.tracked]
    found |= {path for path in loose if path.endswith(_LOGS) or _OF_HYDRA.search(path)}
    left = [file for file in files if not (file.tracked or file.path in found)]
    left = [file for file in left if not (file.executable or has_source_suffix(file.path))]
    found |= {file.path for file in left if is_output(snapshot.root / file.path)}
    left = [file for file in left if file.path not in found]
    for paths in map(LaunchPaths, list_own_launches(output_dir)):
        record = read_json_object(paths.code_record)
        if record.get("project") == str(snapshot.project):
            found |= set(record.get("points") or ())
            found |= _find_files_runs_wrote(left, paths, record, tops) if left else set()
    return frozenset(found)


def has_source_suffix(name: str) -> bool:
    """Return whether a file of this name is code, whatever it is and wherever: by its ending."""
    return _SOURCE.search(name) is not None


def _is_project_document(path: PurePosixPath, tops: Collection[PurePosixPath]) -> bool:
    if path.suffix.lower() not in _PROSE:
        return False
    named = path.stem.lower() in _PAPERS and path.parent in tops
    return named or (path.parts[0] in {"doc", "docs"} and path.suffix.lower() == ".md")


def _is_notebook_or_picture(file: CodeFile, tops: Collection[PurePosixPath]) -> bool:
    """Whether a file is from where one looks at results: its plots and notes change with each look."""
    path = PurePosixPath(file.path)
    drawn = path.suffix.lower() in _PICTURES and not file.tracked
    return path.suffix == ".ipynb" or (
        drawn and (path.parent in tops or path.parent.name.lower() in _PICTURE_FOLDERS)
    )


def _find_files_runs_wrote(
    files: Collection[CodeFile],
    paths: LaunchPaths,
    record: Mapping[str, Any],
    tops: Collection[PurePosixPath],
) -> set[str]:
    if not record.get("in_project"):
        return set()
    before = {path for path, _ in read_frozen_checksums(paths)} - set(record.get("uncounted") or ())
    folders = {parent for path in before for parent in PurePosixPath(path).parents}
    new = [file for file in files if file.path not in before and _may_be_run_output(file, folders, tops)]
    times = list(_list_attempt_times(paths)) if new else []
    return {file.path for file in new if any(begin <= file.mtime <= end for begin, end in times)}


def _may_be_run_output(
    file: CodeFile, folders: Collection[PurePosixPath], tops: Collection[PurePosixPath]
) -> bool:
    path = PurePosixPath(file.path)
    if path.parent in tops:
        return path.suffix.lower() not in _TABLES
    return path.parent not in folders


def _list_attempt_times(paths: LaunchPaths) -> Iterator[tuple[float, float]]:
    """Yield the start of each attempt of a launch, and its end or last sign of life."""
    runs = paths.run(0).folder.parent
    for folder in runs.iterdir() if runs.is_dir() else ():
        for number in list_attempt_numbers(RunPaths(folder).attempts):
            attempt = RunPaths(folder).attempt(number)
            told = list(read_attempt_events(attempt, without=NUMEROUS))
            if told and isinstance(told[-1], AttemptEnded):
                yield told[0].at.timestamp(), told[-1].at.timestamp()
            elif told:
                yield told[0].at.timestamp(), _find_last_write_time(attempt.folder) + _QUIET_S


def _find_last_write_time(folder: Path) -> float:
    """Return when something in a folder was last written; 0 if nothing is there any more."""
    times = [0.0]
    with suppress(OSError):
        for file in folder.iterdir():
            with suppress(OSError):  # those of a live run come and go
                times.append(file.stat().st_mtime)
    return max(times)
