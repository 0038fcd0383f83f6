"""`hpckit.open` and `hpckit.ls`: handles on launches that any process started, without Hydra."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from hpckit.api.display import Table
from hpckit.api.handles import Launch, LaunchedRun
from hpckit.api.invocation import build_python_context, explain_errors
from hpckit.cli.commands.look.ls import build_launch_line, matches_any_name
from hpckit.context import Context, default_output_dir
from hpckit.errors import UsageError
from hpckit.model.ids import extract_name_from_launch_id
from hpckit.record.lookup import find_launch_of_any_owner, list_all_launches
from hpckit.report.selection import Filter, LaunchLine
from hpckit.report.text import format_state_counts

_COLUMNS = ("launch", "name", "created_at", "runs", "states")


@explain_errors
def open_launch(reference: str | Path | None = None, *, output_dir: Path | str | None = None) -> Launch:
    """Return a handle on a launch or run of any process: by id, its beginning, name, folder, or `.3`.

    Without a reference it is the latest launch. Launches are looked for in `output_dir`, else in
    `$HPCKIT_OUTPUTS`, else in ./outputs. Raises NotFoundError with the nearest names.

    Example:
        hpckit.open("digits").results().to_pandas()

    """
    context = build_python_context()
    named = None if reference is None else str(reference)
    found = find_launch_of_any_owner(named, _choose_output_dir(output_dir, context), cwd=context.cwd)
    folder = found.launch.folder
    if found.index is not None:
        return LaunchedRun([(folder, found.index)])
    return Launch([(folder, index) for index in range(len(found.launch.runs))], folder)


@explain_errors
def list_launches(
    *names: str, output_dir: Path | str | None = None, limit: int | None = 20
) -> Table[LaunchLine]:
    """Return the launches there are, newest first, by our record alone, as `hpckit ls`.

    `names` are beginnings or globs of ids. `limit` None is all of them.

    Example:
        for line in hpckit.ls("digits*"):
            print(line.head.id, line.counts)

    """
    context = build_python_context()
    if limit is not None and limit < 0:
        raise UsageError(f"limit is {limit}; it must be None (all), 0 or more")
    every = list_all_launches(_choose_output_dir(output_dir, context))
    folders = (folder for folder in every if matches_any_name(folder.name, names))
    found = (build_launch_line(folder, Filter(), context) for folder in folders)
    lines = tuple(islice((line for line in found if line is not None), limit))
    records = []
    for line in lines:
        name, runs = extract_name_from_launch_id(line.head.id), sum(line.counts.values())
        records.append((line.head.id, name, line.head.created_at, runs, format_state_counts(line.counts)))
    return Table(rows=lines, columns=_COLUMNS, records=tuple(records))


def _choose_output_dir(given: Path | str | None, context: Context) -> Path:
    return default_output_dir(context) if given is None else context.cwd / Path(given).expanduser()
