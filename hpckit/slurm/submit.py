"""Submits rendered scripts with sbatch: the only module that uses submitit.

It returns the id of the job, and records nothing.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError

from hpckit.errors import SchedulerError, SchedulerRefusedError, TemplateError
from hpckit.model.plan import JobSpec
from hpckit.record.layout import LaunchPaths
from hpckit.slurm.cached_query import forget
from hpckit.slurm.clusters import HINT, read_answer
from hpckit.slurm.commands import SlurmCommands, command_error, stated_variables
from hpckit.slurm.query import find_by_name, settings

_STOPPED = frozenset({124, 137})
"""Exit codes of timeout(1) when it stopped a program with SIGTERM or SIGKILL."""


class FrozenScriptExecutor(SlurmExecutor):
    """submitit's Slurm executor for a script that was rendered and frozen beforehand.

    submitit itself would write the script, start srun, and exchange pickles with the job. Here the
    script is given, and the job is hpckit's supervisor, for single jobs and arrays.
    """

    def __init__(
        self,
        *,
        text: str,
        script: Path,
        folder: Path,
        commands: SlurmCommands,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(folder)
        self._text = text
        self._options = options
        self._script = script
        self._commands = commands

    @classmethod
    def affinity(cls) -> int:
        """Claim that Slurm is available: SlurmCommands checks it."""
        return 2

    def submit_frozen(self) -> str:
        """Submit and return the job id; raises submitit's own errors."""
        return str(self._submit_command("").job_id)

    def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002
        return self._text

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        """Submit the frozen file rather than submitit's copy: users see its path in Slurm."""
        if submission_file_path.read_text(encoding="utf-8") != self._script.read_text("utf-8"):
            raise TemplateError(
                f"{self._script} is not the text that was rendered for it",
                hint="launch again; nothing was submitted",
            )
        # submitit waits indefinitely; so may sbatch if the controller does not answer.
        patience = f"{self._commands.timeout.total_seconds():g}"
        sbatch = self._commands.argv("sbatch", *self._options, str(self._script))
        return ["timeout", "--kill-after=5", patience, *sbatch]

    def _num_tasks(self) -> int:
        """Return 1: the batch script is one process, and results do not come through submitit."""
        return 1

    @staticmethod
    def _get_job_id_from_submission_command(string: str | bytes) -> str:
        said = string.decode(errors="replace") if isinstance(string, bytes) else string
        job, cluster = read_answer(said) or (None, None)
        if job is None or cluster is not None:
            raise FailedSubmissionError(said)
        return job


def submit(
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
    with (
        tempfile.TemporaryDirectory(prefix="hpckit-submit-") as own,
        contextlib.redirect_stderr(io.StringIO()),
        commands.own_environment(without=stated_variables(text)),
    ):
        executor = FrozenScriptExecutor(
            text=text,
            script=script,
            folder=Path(own),
            commands=commands,
            options=_behind(job, behind, waits),
        )
        try:
            return executor.submit_frozen()
        except FailedJobError as error:
            raise _failure(error, commands) from error
        except FailedSubmissionError as error:
            return _settled(str(error), job.name, commands)
        finally:
            forget(commands)


def _settled(answer: str, name: str, commands: SlurmCommands) -> str:
    """Return the job of this name that an answer means which is not sbatch's usual one.

    A job on another cluster is cancelled, whether a user's template or the site sent it there.
    """
    job, cluster = read_answer(answer) or (None, None)
    if job is not None and cluster is not None:
        if cluster == settings(commands, "config").get("ClusterName"):
            return job
        _take_back(job, cluster, commands)
    numbers = re.findall(r"\d+", answer)
    for job in reversed(find_by_name(name, commands)):
        if job in numbers:
            return job
    raise SchedulerRefusedError(
        f"sbatch answered with {answer!r}, not with the id of a job named {name}",
        hint="a wrapper may stand in front of sbatch: set cluster.bin_dir to Slurm's own",
    )


def _take_back(job: str, cluster: str, commands: SlurmCommands) -> None:
    """Cancel a job on another cluster; raise SchedulerRefusedError in any case."""
    try:
        commands.run("scancel", f"--clusters={cluster}", job)
        then = "it was cancelled"
    except SchedulerError as error:
        then = f"cancel it: scancel --clusters={cluster} {job} ({error.message})"
    raise SchedulerRefusedError(f"job {job} went to the cluster {cluster}; {then}", hint=HINT)


def _behind(job: JobSpec, behind: str | None, waits: str | None) -> list[str]:
    """Return the dependency options; job ids are known only after the script was frozen."""
    if behind is None and waits is None:
        return []
    words = [job.resources.dependency, behind and f"afterany:{behind}", waits]
    options = [f"--dependency={','.join(word for word in words if word)}"]
    return [*options, "--kill-on-invalid-dep=yes"] if waits else options


def _failure(error: FailedJobError, commands: SlurmCommands) -> SchedulerError:
    cause = error.__cause__
    code = cause.returncode if isinstance(cause, subprocess.CalledProcessError) else 1
    if code in _STOPPED:
        return commands.no_answer("sbatch")
    return command_error("sbatch", code, str(error), commands.environ)
