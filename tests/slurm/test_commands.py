"""What running Slurm's programs promises when they refuse, are silent, or are not there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from hpckit.errors import SchedulerAbsentError, SchedulerAwayError, SchedulerRefusedError
from hpckit.slurm.commands import SlurmCommands, build_command_error, remove_slurm_variables


def test_missing_program_is_away_and_says_what_to_do(path_without_slurm: str) -> None:
    """Without Slurm on this host, the error names the program and the three ways out."""
    commands = SlurmCommands(bin_dir=None, environ={"PATH": path_without_slurm})
    assert not commands.has_program("squeue")
    with pytest.raises(SchedulerAwayError, match="squeue was not found in PATH") as caught:
        commands.run("squeue")
    assert "cluster.bin_dir" in caught.value.hint
    assert caught.value.exit_code == 3


def test_silent_program_is_stopped(tmp_path: Path) -> None:
    """A program that does not answer within the patience is ended, and that is an error."""
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    patience = timedelta(seconds=0.2)
    commands = SlurmCommands(bin_dir=str(tmp_path), environ={"PATH": "/bin"}, timeout=patience)
    with pytest.raises(SchedulerAwayError, match=r"squeue did not answer within 0\.2 s"):
        commands.run("squeue")


def test_program_that_cannot_be_run_is_away(tmp_path: Path) -> None:
    """A broken installation is an error of ours, not a traceback."""
    program = tmp_path / "squeue"
    program.write_text("#!/nonexistent/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(SchedulerAwayError, match="squeue cannot be run"):
        SlurmCommands(bin_dir=str(tmp_path), environ={}).run("squeue")


@pytest.mark.parametrize(
    "words",
    [
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "Batch job submission failed: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "Problem talking to the database: Connection refused",
        "Could not establish a configuration source",
    ],
)
def test_silence_of_a_daemon_is_away(words: str) -> None:
    """Where a daemon did not answer, it is not a refusal: trying again may help."""
    assert isinstance(build_command_error("sbatch", 1, f"sbatch: error: {words}\n", {}), SchedulerAwayError)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("Invalid partition name specified", "resources.partition"),
        ("Invalid account or account/partition combination specified", "resources.account"),
        ("Invalid accounting frequency requested", "acctg_freq as task=30"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "timeout_min"),
        ("Requested node configuration is not available", "resources.*"),
        ("Job violates accounting/QOS policy (job submit limit, ...)", "limit on your jobs"),
        ("Invalid job array specification", "MaxArraySize"),
        ("Invalid feature specification", "resources.constraint"),
        ("Invalid generic resource (gres) specification", "resources.gres"),
        ("Job dependency problem", "resources.dependency"),
    ],
)
def test_refusal_keeps_slurms_words_and_adds_a_hint(words: str, hint: str) -> None:
    """A refusal is shown in Slurm's own words, with the key of ours that is to be changed."""
    error = build_command_error("sbatch", 1, f"sbatch: error: Batch job submission failed: {words}\n", {})
    assert isinstance(error, SchedulerRefusedError)
    assert words in error.message
    assert hint in error.hint


def test_environment_of_an_enclosing_job_is_left_behind() -> None:
    """Launching from inside a job tells Slurm nothing of that job, but which controller to ask."""
    environ = {
        "HOME": "/home/me",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "8",
        "SLURM_CPU_BIND": "verbose",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_ACCOUNT": "physics",
        "SQUEUE_FORMAT": "%i",
        "SRUN_CPUS_PER_TASK": "4",
    }
    assert remove_slurm_variables(environ) == {
        "HOME": "/home/me",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SBATCH_ACCOUNT": "physics",
    }


@pytest.mark.parametrize(("program", "form"), [("squeue", "%s"), ("sacct", "")])
def test_moments_are_in_seconds_where_any_are_asked_for(program: str, form: str, tmp_path: Path) -> None:
    """Not for sacct: with a form for moments, its JSON is an error in 22.05."""
    path = tmp_path / program
    path.write_text('#!/bin/sh\necho "$SLURM_TIME_FORMAT,$SLURM_BITSTR_LEN"\n')
    path.chmod(0o755)
    commands = SlurmCommands(bin_dir=str(tmp_path), environ={"SLURM_TIME_FORMAT": "relative"})
    assert commands.run(program) == f"{form},0\n"


def test_programs_of_another_cluster_are_never_taken(tmp_path: Path) -> None:
    """With bin_dir set, PATH is not searched: a rehearsal must not reach the production queue."""
    on_path = tmp_path / "path"
    on_path.mkdir()
    (on_path / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 1\n")
    (on_path / "sbatch").chmod(0o755)
    down = str(tmp_path / "sandbox-is-down")
    commands = SlurmCommands(bin_dir=down, environ={"PATH": str(on_path)})
    with pytest.raises(SchedulerAbsentError, match=r"not found in .*down \(is the sandbox up\?\)"):
        commands.run("sbatch")


def test_unconfigured_slurm_is_absent() -> None:
    """Slurm's programs without a configuration reached nobody: a definite no, with the way out."""
    words = "sbatch: error: resolve_ctls_from_dns_srv: x\nsbatch: fatal: Could not establish a "
    error = build_command_error("sbatch", 1, words + "configuration source\n", {})
    assert isinstance(error, SchedulerAbsentError)
    assert error.hint.startswith("cluster=local")
    assert error.message == (
        "sbatch is installed here, but no Slurm is configured: Could not establish a configuration source"
    )
