"""Submits rendered scripts with sbatch: the only module that uses submitit.

It returns the id of the job, and records nothing.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor, SlurmJob
from submitit.core.utils import CommandFunction, FailedJobError, FailedSubmissionError

from hpckit.errors import SchedulerError, SchedulerRefusedError, TemplateError
from hpckit.model.plan import JobSpec
from hpckit.record.layout import LaunchPaths
from hpckit.slurm.cached_query import invalidate_cached_answers
from hpckit.slurm.clusters import HINT, parse_sbatch_answer
from hpckit.slurm.commands import SlurmCommands, build_command_error, list_variables_to_hide_from_sbatch
from hpckit.slurm.query import ask_scontrol_settings, find_jobs_by_name

_STOPPED = frozenset({124, 137})
"""Exit codes of timeout(1) when it stopped a program with SIGTERM or SIGKILL."""


class FrozenScriptExecutor(SlurmExecutor):
    """submitit's Slurm executor for a script that was rendered and frozen beforehand.

    submitit itself would write the script, start srun, and exchange pickles with the job. Here the script
    is given, and the job is hpckit's supervisor, for single jobs and arrays.
    """

    def __init__(
        self, *, text: str, script: Path, folder: Path, commands: SlurmCommands, options: Sequence[str] = ()
    ) -> None:
        super().__init__(folder)
        self._text = text
        self._options = options
        self._script = script
        self._commands = commands
        self._errors = folder / "errors"

    @classmethod
    def affinity(cls) -> int:
        """Claim that Slurm is available: SlurmCommands checks it."""
        return 2

    def submit_frozen(self) -> str:
        """Submit and return the job id; raises submitit's own errors."""
        return str(self._submit_command("").job_id)

    def _submit_command(self, command: str) -> SlurmJob[Any]:  # noqa: ARG002
        """Run sbatch in an environment of its own: that of this process belongs to all its threads."""
        hidden = list_variables_to_hide_from_sbatch(self._text)
        environ = {name: value for name, value in self._commands.environ.items() if name not in hidden}
        submit = CommandFunction(self._make_submission_command(self._script), verbose=False, env=environ)
        try:
            job = self._get_job_id_from_submission_command(submit())
        except FailedJobError as error:
            said = self._errors.read_text(errors="replace").strip() if self._errors.exists() else str(error)
            raise FailedJobError(said) from error.__cause__
        return self.job_class(folder=self.folder, job_id=job, tasks=[0])

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        """Submit the frozen file, whose path users see in Slurm; what sbatch says goes into a file."""
        if submission_file_path.read_text(encoding="utf-8") != self._text:
            raise TemplateError(
                f"{self._script} is not the text that was rendered for it",
                hint="launch again; nothing was submitted",
            )
        # submitit waits indefinitely; so may sbatch if the controller does not answer.
        patience = f"{self._commands.timeout.total_seconds():g}"
        sbatch = self._commands.build_command_line("sbatch", *self._options, str(submission_file_path))
        quiet = ["sh", "-c", 'exec "$@" 2> "$0"', str(self._errors)]  # submitit would print it, too
        return [*quiet, "timeout", "--kill-after=5", patience, *sbatch]

    @staticmethod
    def _get_job_id_from_submission_command(string: str | bytes) -> str:
        said = string.decode(errors="replace") if isinstance(string, bytes) else string
        job, cluster = parse_sbatch_answer(said) or (None, None)
        if job is None or cluster is not None:
            raise FailedSubmissionError(said)
        return job


def submit_job(
    text: str,
    job: JobSpec,
    folder: Path,
    commands: SlurmCommands,
    *,
    behind: str | None = None,
    waits: str | None = None,
) -> str:
    """Submit the script of a job, frozen in the launch folder; return the main job id.

    `behind` is a job to wait for, in addition to the script's own dependencies. `waits` is a
    dependency in Slurm's words: if it can never be satisfied, Slurm cancels the job. Raises
    SchedulerRefusedError with sbatch's own words, or SchedulerAwayError.
    """
    script = LaunchPaths(folder).script(job.index)
    with tempfile.TemporaryDirectory(prefix="hpckit-submit-") as own:
        executor = FrozenScriptExecutor(
            text=text,
            script=script,
            folder=Path(own),
            commands=commands,
            options=_build_dependency_options(job, behind, waits),
        )
        try:
            return executor.submit_frozen()
        except FailedJobError as error:
            raise _build_submit_error(error, commands) from error
        except FailedSubmissionError as error:
            return _find_job_in_unusual_answer(str(error), job.name, commands)
        finally:
            invalidate_cached_answers(commands)


def _find_job_in_unusual_answer(answer: str, name: str, commands: SlurmCommands) -> str:
    """Return the job of this name that an unusual answer of sbatch refers to.

    A job on another cluster is cancelled, whether a user's template or the site sent it there.
    """
    job, cluster = parse_sbatch_answer(answer) or (None, None)
    if job is not None and cluster is not None:
        if cluster == ask_scontrol_settings(commands, "config").get("ClusterName"):
            return job
        _cancel_on_other_cluster(job, cluster, commands)
    numbers = re.findall(r"\d+", answer)
    for job in reversed(find_jobs_by_name(name, commands)):
        if job in numbers:
            return job
    raise SchedulerRefusedError(
        f"sbatch answered with {answer!r}, not with the id of a job named {name}",
        hint="sbatch may be a wrapper script: set cluster.bin_dir to Slurm's own programs",
    )


def _cancel_on_other_cluster(job: str, cluster: str, commands: SlurmCommands) -> None:
    """Cancel a job on another cluster; raise SchedulerRefusedError in any case."""
    try:
        commands.run("scancel", f"--clusters={cluster}", job)
        then = "it was cancelled"
    except SchedulerError as error:
        then = f"cancel it: scancel --clusters={cluster} {job} ({error.message})"
    raise SchedulerRefusedError(f"job {job} went to the cluster {cluster}; {then}", hint=HINT)


def _build_dependency_options(job: JobSpec, behind: str | None, waits: str | None) -> list[str]:
    """Return the dependency options; job ids are known only after the script was frozen."""
    if behind is None and waits is None:
        return []
    words = [job.resources.dependency, behind and f"afterany:{behind}", waits]
    options = [f"--dependency={','.join(word for word in words if word)}"]
    return [*options, "--kill-on-invalid-dep=yes"] if waits else options


def _build_submit_error(error: FailedJobError, commands: SlurmCommands) -> SchedulerError:
    cause = error.__cause__
    code = cause.returncode if isinstance(cause, subprocess.CalledProcessError) else 1
    if code in _STOPPED:
        return commands.build_timeout_error("sbatch")
    return build_command_error("sbatch", code, str(error), commands.environ)
