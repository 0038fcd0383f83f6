"""Writes a launch folder with everything its runs will ever read, completely or not at all.

docs/reference/run-folder.md documents the frozen files. The folder is created under a hidden name
and renamed when complete, so a visible launch folder is always complete.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.errors import UsageError
from hpckit.model.launch import WorkingFolder
from hpckit.model.plain import attributes_to_json, to_plain
from hpckit.model.plan import LaunchPlan, RunSpec
from hpckit.record.frozen import has_foreground_option
from hpckit.record.layout import CONFIGS_PER_FILE, LaunchPaths
from hpckit.record.ownership import check_folder_is_own
from hpckit.record.remove import LaunchOrigin, read_launch_origin, remove_tree
from hpckit.record.secret_variables import write_secrets
from hpckit.record.snapshot import collect
from hpckit.record.snapshot.changes import write_snapshot_checksums
from hpckit.record.snapshot.identity import compute_code_identity
from hpckit.record.snapshot.package_zip import write_package_zip
from hpckit.record.store import (
    PRIVATE_FOLDER,
    make_private_folder,
    write_file_non_atomically,
    write_json,
    write_text_atomically,
)
from hpckit.record.trials import write_search_space

VERSION = 1


def write_frozen_launch(
    plan: LaunchPlan,
    *,
    scripts: Mapping[int, str],
    snapshot: collect.CodeSnapshot,
    environment: Mapping[str, object],
    files: Mapping[str, str | Path] | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> None:
    """Write the launch folder of a plan. `scripts` holds the rendered text of each job index.

    `files` are those of features by name: a text, or a file of several launches to link to. `tell` is called
    with the number of configurations written so far and the total.

    Raises UsageError if the folder cannot be written; nothing of it is left then.
    """
    folder = Path(plan.folder)
    part = folder.with_name(f".{folder.name}.part")
    # The topmost folder that has to be created.
    missing = [path for path in folder.parents if not path.exists()]
    outputs = missing[-1] if missing else None
    try:
        make_private_folder(part, exist_ok=False)
        check_folder_is_own(part)
        _write_code_scripts_and_record(plan, LaunchPaths(part), scripts, snapshot)
        _write_configs(plan.runs, LaunchPaths(part), tell)
        write_json(LaunchPaths(part).environment, environment)
        for name, held in (files or {}).items():
            if isinstance(held, Path):
                _link_file(part / name, held)
            else:
                write_file_non_atomically(part / name, held)
        part.rename(folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            remove_tree(part)
        if outputs is not None and outputs.is_dir():
            _remove_empty_folders(folder.parent, outputs)
        if isinstance(error, OSError):
            raise UsageError(
                f"the launch folder {folder} cannot be written: {error.strerror or error}"
                + (f" ({error.filename})" if error.filename else ""),
                hint="choose a folder you may write, on a file system all nodes see: "
                "output_dir=DIR, or set $HPCKIT_OUTPUTS",
            ) from error
        raise


def _link_file(link: Path, file: Path) -> None:
    try:
        link.hardlink_to(file)
    except OSError:  # the file system has no links between folders
        link.symlink_to(file)


def remove_launch_folder(folder: Path) -> None:
    """Remove the folder of a launch from which nothing was submitted."""
    hidden = folder.with_name(f".{folder.name}.part")
    folder.rename(hidden)
    remove_tree(hidden)


def _remove_empty_folders(folder: Path, top: Path) -> None:
    with contextlib.suppress(OSError):
        while folder.is_relative_to(top):
            folder.rmdir()
            folder = folder.parent


def _write_code_scripts_and_record(
    plan: LaunchPlan, paths: LaunchPaths, scripts: Mapping[int, str], snapshot: collect.CodeSnapshot
) -> None:
    paths.logs.mkdir(mode=PRIVATE_FOLDER)
    sums: str | None = None
    if snapshot.files is not None:
        collect.copy_snapshot(snapshot, paths.code)
        sums = write_snapshot_checksums(snapshot, paths)
    identity = compute_code_identity(snapshot, sums)
    in_project = any(run.settings.runtime.cwd is WorkingFolder.project for run in plan.runs)
    record = {**collect.snapshot_to_json(snapshot), "identity": identity, "in_project": in_project}
    text = json.dumps(to_plain(record), indent=2, ensure_ascii=False)
    write_file_non_atomically(paths.code_record, f"{text}\n")
    if snapshot.git is not None and snapshot.git.diff:
        write_file_non_atomically(paths.code_diff, snapshot.git.diff, errors="surrogateescape")
    for index, text in scripts.items():
        write_text_atomically(paths.script(index), text)
    unused = has_foreground_option(plan.arguments)
    signatures = ("-" if unused else run.signature for run in plan.runs)
    write_file_non_atomically(paths.signatures, "".join(f"{signature}\n" for signature in signatures))
    if plan.search is not None:
        write_search_space(paths, plan.search)
    if plan.containers:
        write_package_zip(paths.hpckit_zip, LaunchPaths(Path(plan.folder)).hpckit_zip)
    write_secrets(paths, [run.secrets for run in plan.runs])
    origin = read_launch_origin(paths.folder, Path(plan.folder))
    write_json(paths.launch, _build_launch_record(plan, paths, snapshot, origin))


def _write_configs(
    runs: Sequence[RunSpec], paths: LaunchPaths, tell: Callable[[int, int], None] | None
) -> None:
    """Write the configurations, many per file: cluster file systems are slow with many files."""
    paths.configs_file_of_run(0).parent.mkdir(mode=PRIVATE_FOLDER)
    known: dict[int, str] = {}
    for start in range(0, len(runs), CONFIGS_PER_FILE):
        if tell is not None:
            tell(start, len(runs))
        part = runs[start : start + CONFIGS_PER_FILE]
        write_file_non_atomically(
            paths.configs_file_of_run(start), "".join(_config_to_json_line(run.config, known) for run in part)
        )


def _config_to_json_line(config: Mapping[str, Any], known: dict[int, str]) -> str:
    """Return a configuration as JSON; texts of values that runs share are `known` by identity."""
    for value in config.values():
        if id(value) not in known:
            known[id(value)] = json.dumps(to_plain(value), ensure_ascii=False)
    texts = (f"{json.dumps(k, ensure_ascii=False)}: {known[id(v)]}" for k, v in config.items())
    return "{" + ", ".join(texts) + "}\n"


def _build_launch_record(
    plan: LaunchPlan, paths: LaunchPaths, snapshot: collect.CodeSnapshot, origin: LaunchOrigin
) -> dict[str, object]:
    record: dict[str, object] = to_plain(
        {
            "v": VERSION,
            **attributes_to_json(plan, "id", "name", "created_at"),
            "origin": origin,
            **attributes_to_json(plan, "arguments", "python", "cluster", "stages", "swept", "containers"),
            "searched": plan.search is not None,
            "jobs": [{**to_plain(job), "script": paths.script(job.index).name} for job in plan.jobs],
            "runs": [
                attributes_to_json(run, "index", "id", "overrides", "signature", "stage") for run in plan.runs
            ],
            "code": {
                "snapshot": snapshot.files is not None,
                "working_dir": snapshot.working_dir,
                "python_path": snapshot.python_path,
                "project": str(snapshot.project),
            },
        }
    )
    return record
