"""The only module that runs Slurm's programs and interprets their refusals.

It finds a program, runs it within a time limit in a clean environment, and turns a failure into an
error with a hint. It does not interpret the output of a successful call.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import NoReturn

from hpckit.context import NO_LOCAL
from hpckit.errors import SchedulerAbsentError, SchedulerAwayError, SchedulerError, SchedulerRefusedError
from hpckit.model.failure import signal_name
from hpckit.model.rank import THREADS
from hpckit.patterns import lazy_pattern

PATIENCE = timedelta(seconds=60)
"""How long a program may take: sbatch itself retries for up to half a minute."""

_DROPPED = (*("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_"), THREADS)
_KEPT = frozenset({"SLURM_CONF", "SLURM_JWT"})
_SITE_DEFAULTS = frozenset({"SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS"})

_FOR_PROGRAMS = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "%s"}
"""Without the first, ranges of array elements are cut at 64 characters. With the second, squeue
prints moments as seconds since 1970, independent of the time zone.
"""

_FOR_SACCT = {"SLURM_BITSTR_LEN": "0"}
"""sacct is asked for no moments, and with a time format set, `sacct --json` of 22.05 fails on the
query that it writes itself: "Query empty or not RFC7320 compliant".
"""

_AWAY = (
    "unable to contact slurm controller",
    "unable to connect to",
    "problem talking to",
    "connection refused",
    "connect failure",
    "socket timed out",
    "zero bytes were transmitted",
    "temporarily unable to accept",
    "backup controller",
    "standby mode",
    "slurmdbd",
)

_ABSENT = ("could not establish a configuration source", "unable to process configuration file")


def _hint_for_absent_slurm(environ: Mapping[str, str]) -> str:
    here = "" if environ.get(NO_LOCAL) else "cluster=local runs it on this machine; "
    return (
        f"{here}for Slurm start from a login node, or set cluster.bin_dir to the folder of Slurm's programs"
    )


_HINTS: Mapping[str, str] = {
    "invalid partition": "list the partitions with `sinfo -s` and set resources.partition",
    "partition configuration": "list the limits of the partition with "
    "`scontrol show partition` and lower resources.nodes or resources.timeout_min",
    "invalid accounting frequency": "write resources.additional_parameters.acctg_freq as task=30, "
    "not above JobAcctGatherFrequency in `scontrol show config`",
    "invalid account": "list your accounts with `sacctmgr show associations user=$USER` and set "
    "resources.account",
    "invalid qos": "list your QOS with `sacctmgr show associations user=$USER format=qos` and set "
    "resources.qos",
    "time limit": "lower resources.timeout_min below the limit that "
    "`sinfo -o '%P %l'` shows for the partition",
    "node configuration is not available": "no node offers this: compare nodes, CPUs, memory and "
    "GPUs per node of resources.* with `sinfo -N -o '%N %c %m %G'`",
    "node count": "lower resources.nodes; `sinfo -s` shows how many there are",
    "invalid generic resource": "compare resources.gres and resources.gpus_per_node with `sinfo -o '%N %G'`",
    "invalid feature": "compare resources.constraint with `sinfo -o '%N %f'`",
    "invalid node name": "compare resources.nodelist and resources.exclude with `sinfo -N`",
    "qos policy": "a limit on your jobs is reached: wait for some of them, or sweep fewer points",
    "array": "the cluster allows smaller arrays: see MaxArraySize in `scontrol show config`",
    "dependency": "resources.dependency has to name jobs that exist, such as afterok:123",
    "reservation": "list reservations with `scontrol show reservation`",
    "unrecognized option": "look at resources.additional_parameters; `man sbatch` has the options",
    "permission denied": "only the owner of a job may do this",
}


def remove_slurm_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings of an enclosing job, of this shell or for display.

    Inside a job, SLURM_* describes that job, and SBATCH_* takes precedence over #SBATCH lines. The
    choice of controller, and the user's defaults for account, partition and QOS, stay. The choice
    of other clusters is removed (slurm.clusters has the reason).
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or name in _SITE_DEFAULTS or not name.startswith(_DROPPED)
    }


_PLACED = lazy_pattern(r"^#SBATCH --(account|partition|qos)\b", re.MULTILINE)


class SlurmCommands:
    """Slurm's programs, as found in `bin_dir`, or if that is None on the PATH of `environ`.

    They see `environ` without the variables of an enclosing job.
    """

    def __init__(
        self, *, bin_dir: str | None, environ: Mapping[str, str], timeout: timedelta = PATIENCE
    ) -> None:
        self.timeout = timeout
        self.bin_dir = bin_dir
        self.environ = remove_slurm_variables(environ)
        self._found: dict[str, str | None] = {}

    def has_program(self, program: str) -> bool:
        """Return whether the program is installed here."""
        return self._find_program_path(program) is not None

    def build_command_line(self, program: str, *args: str) -> list[str]:
        """Return the command line of a program; raises SchedulerAbsentError if not installed."""
        path = self._find_program_path(program)
        if path is None:
            sandbox = " (is the sandbox up?)" if self.bin_dir else ""
            raise SchedulerAbsentError(
                f"{program} was not found in {self.bin_dir or 'PATH'}{sandbox}; this host has no such Slurm",
                hint=_hint_for_absent_slurm(self.environ),
            )
        return [path, *args]

    def run(self, program: str, *args: str) -> str:
        """Run a program and return what it printed.

        Raises SchedulerRefusedError with the program's own words, or SchedulerAwayError if it is
        not installed, does not answer in time, or cannot reach its daemon.
        """
        return self._run_program(program, args, self.environ).stdout

    def run_with_all_output(self, program: str, *args: str, without: Collection[str] = ()) -> str:
        """Run a program as `run` does, and return its standard output and error.

        `without` are variables that it must not see.
        """
        environ = {name: text for name, text in self.environ.items() if name not in without}
        done = self._run_program(program, args, environ)
        return done.stdout + done.stderr

    def _run_program(
        self, program: str, args: Sequence[str], environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        try:
            done = subprocess.run(
                self.build_command_line(program, *args),
                env={**environ, **(_FOR_SACCT if program == "sacct" else _FOR_PROGRAMS)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self.timeout.total_seconds(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise self.build_timeout_error(program) from error
        except OSError as error:
            raise SchedulerAwayError(f"{program} cannot be run: {error}") from error
        if done.returncode < 0:
            # The end of a job ends the processes it started, including this program.
            raise SchedulerAwayError(
                f"{program} was ended by {signal_name(-done.returncode)} before it answered",
                hint="check in Slurm whether it took effect before trying again",
            )
        if done.returncode != 0:
            said = done.stderr or done.stdout
            raise build_command_error(program, done.returncode, said, self.environ)
        return done

    def exec_program(self, program: str, *args: str) -> NoReturn:
        """Replace this process with a program, which takes over its streams, signals and exit code.

        Raises SchedulerAwayError if that is impossible.
        """
        argv = self.build_command_line(program, *args)
        try:
            os.execve(argv[0], argv, dict(self.environ))  # noqa: S606  # no shell is the point
        except OSError as error:
            raise SchedulerAwayError(f"{program} cannot be run: {error}") from error

    def build_timeout_error(self, program: str) -> SchedulerAwayError:
        """Return the error for a program that was stopped after the timeout."""
        return SchedulerAwayError(
            f"{program} did not answer within {self.timeout.total_seconds():g} s",
            hint="see `scontrol ping`; a job may have been accepted anyway: look at "
            "`squeue --me` before launching again",
        )

    def _find_program_path(self, program: str) -> str | None:
        if program not in self._found:
            # Never search PATH when bin_dir is set: a sandbox rehearsal must not reach the
            # production queue.
            path = self.bin_dir or self.environ.get("PATH", os.defpath)
            self._found[program] = shutil.which(program, path=path)
        return self._found[program]


def build_command_error(program: str, code: int, words: str, environ: Mapping[str, str]) -> SchedulerError:
    """Return the error for a program that ended with this exit code and output."""
    said = _join_error_lines(program, words) or f"exit code {code} and no output"
    lowered = said.lower()
    if any(mark in lowered for mark in _ABSENT):
        last = said.rpartition("; ")[2].removeprefix("fatal: ")  # what it ended for
        return SchedulerAbsentError(
            f"{program} is installed here, but no Slurm is configured: {last}",
            hint=_hint_for_absent_slurm(environ),
        )
    if any(mark in lowered for mark in _AWAY):
        return SchedulerAwayError(
            f"Slurm is away: {program}: {said}",
            hint="try again later; `scontrol ping` shows whether the controller answers",
        )
    hints = (hint for mark, hint in _HINTS.items() if mark in lowered)
    return SchedulerRefusedError(f"Slurm refused: {program}: {said}", hint=next(hints, ""))


def _join_error_lines(program: str, text: str) -> str:
    lines = (line.strip().removeprefix(f"{program}: ") for line in text.splitlines())
    return "; ".join(line.removeprefix("error: ") for line in lines if line)


_TOO_MANY = lazy_pattern(r"Max(Array)?SubmitJob|GrpSubmitJobs?|job submit limit", re.IGNORECASE)
"""The wording in 22.05 to 26.05: QOSMaxSubmitJobPerUserLimit, AssocMaxSubmitJobLimit and others."""


def is_submit_limit_error(error: SchedulerError) -> bool:
    """Return whether Slurm refused only because the user has too many jobs queued now."""
    return _TOO_MANY.search(error.message) is not None


def list_variables_to_hide_from_sbatch(text: str) -> tuple[str, ...]:
    """Return the variables to hide from sbatch, as they would override the script's own options."""
    return tuple(f"SBATCH_{name.upper()}" for name in _PLACED.findall(text))
