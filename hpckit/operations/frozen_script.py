"""Renders batch scripts for jobs that are added to a frozen launch.

Templates are taken from `slurm_templates` in the snapshot, else in the project.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from hpckit.config.request import ComposeRequest, list_template_folders
from hpckit.context import Context
from hpckit.errors import ConfigError, TemplateError, UsageError
from hpckit.model.plan import JobSpec, LaunchPlan
from hpckit.record.launches import Launch


def render_frozen_script(launch: Launch, job: JobSpec, context: Context) -> str:
    """Return the batch script of a job of a frozen launch; raises TemplateError."""
    # Imported here: it imports Jinja2, and most resumes have nothing to render.
    from hpckit.slurm.script import render_batch_script  # noqa: PLC0415

    try:
        return render_batch_script(
            rebuild_plan_without_runs(launch), job, find_template_folders(launch, context)
        )
    except TemplateError as error:
        raise TemplateError(
            f"the script of the resumed runs cannot be rendered: {error.message}",
            hint="put back the template that the launch was rendered with, or start a new launch",
        ) from error


def refuse_missing_python(launch: Launch) -> None:
    """Raise UsageError if the Python of the launch's runs is gone: each job would fail."""
    # Slurm's nodes may have a Python that this host does not have.
    if launch.cluster.python is None and not Path(launch.python).exists():
        raise missing_python_error(f"the Python that {launch.id} ran with is gone: {launch.python}")


def missing_python_error(message: str) -> UsageError:
    """Return the error for a Python that is gone, and what to do."""
    hint = "bring that environment back, or run with today's: hpckit rerun, without --exact"
    return UsageError(message, hint=hint)


def describe_changed_scripts(launch: Launch, jobs: Iterable[JobSpec], context: Context) -> list[str]:
    """Return how the scripts of these jobs differ from what would be rendered today."""
    found: list[str] = []
    for job in jobs:
        script = launch.paths.script(job.index)
        try:
            frozen = script.read_text(encoding="utf-8", errors="backslashreplace")
        except FileNotFoundError:
            found.append(f"{script.name} is gone")
            continue
        today = render_frozen_script(launch, job, context)
        if today != frozen:
            found.append(
                f"{script.name} would be another one today: {_describe_first_difference(frozen, today)}"
            )
    return found


def _describe_first_difference(frozen: str, today: str) -> str:
    pairs = zip_longest(frozen.splitlines(), today.splitlines(), fillvalue="")
    for number, (was, now) in enumerate(pairs, 1):
        if was != now:
            return f"line {number} was {was!r} and is {now!r}"
    return "only the end of the last line differs"


def rebuild_plan_without_runs(launch: Launch) -> LaunchPlan:
    """Return the plan of a launch without its runs."""
    return LaunchPlan(
        id=launch.id,
        name=launch.name,
        created_at=launch.created_at,
        folder=str(launch.folder),
        arguments=launch.arguments,
        cluster=launch.cluster,
        python=launch.python,
        runs=(),
        jobs=launch.jobs,
    )


def find_template_folders(
    launch: Launch, context: Context, folders: Sequence[Path] | None = None
) -> list[Path]:
    """Return the template folders of a launch: in its snapshot, then in its project.

    With `folders`, those of a launch started in one of these folders.
    """
    found: list[Path] = []
    given = find_launch_option(launch, "--config-dir")
    config_dir = Path(given) if given else None
    for cwd in folders or _find_working_folders(launch):
        request = ComposeRequest(config_dir=config_dir, environ=context.environ, cwd=cwd)
        try:
            these = list_template_folders(request)
        except ConfigError:
            # The folder of --config-dir is not in the snapshot, or no longer exists.
            these = list_template_folders(ComposeRequest(environ={}, cwd=cwd))
        # The last one is hpckit's own and stays last.
        found = list(dict.fromkeys([*found[:-1], *these]))
    return found


def _find_working_folders(launch: Launch) -> list[Path]:
    """Return the folders the launch was started in: its copy in the snapshot and the original."""
    here, project = Path(launch.code.working_dir), Path(launch.code.project)
    if here.is_relative_to(launch.paths.code):
        return [here, project / here.relative_to(launch.paths.code)]
    return [here]


def find_launch_option(launch: Launch, name: str) -> str | None:
    """Return the value of an option that the launch was made with; the last one wins."""
    words, found = launch.arguments, None
    if "--" in words:  # what follows is a command with its own options
        words = words[: words.index("--")]
    for word, following in zip(words, (*words[1:], ""), strict=True):
        option, _, value = word.partition("=")
        if option == name:
            found = value or following
    return found
