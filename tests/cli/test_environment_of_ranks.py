"""What ranks of a run on this machine find around them: git's answers, and no other job's tasks."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from cli_world import shell

from hpckit.model.rank import TASK_VARIABLES

__all__ = ["shell"]

ASKS = """\
git rev-parse HEAD 2>/dev/null || echo no checkout
echo "told $WANDB_GIT_COMMIT"
"""


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, and return what it says."""
    identity = ("-c", "user.name=u", "-c", "user.email=u@example.org")
    command = ["git", *identity, *words]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def printed(shell: Any, *words: str) -> list[str]:
    """Launch on this machine, wait, and return the lines of rank 0."""
    before = set(shell.outputs)
    another = f"+params.launch={len(before)}"  # what has run already is not run again
    said = shell("launch", "cluster=local", "output_dir=outputs", another, "--wait", *words)
    assert said.code == 0, said.out + said.err
    (launch,) = (output for output in shell.outputs if output not in before and output.name[0] != ".")
    (log,) = launch.glob("runs/*/attempts/*/rounds/*/rank-00000.log")  # an empty `work` may just go
    return list(log.read_text().splitlines())


def test_git_in_a_run_never_answers_for_the_checkout_of_today(shell: Any) -> None:
    """Below the project's own folder, too; a tracker is told the commit of the frozen code."""
    (shell.cwd / ".gitignore").write_text("outputs\n")
    git(shell.cwd, "init", "-q")
    git(shell.cwd, "add", "-A")
    git(shell.cwd, "commit", "-qm", "one")
    commit = git(shell.cwd, "rev-parse", "HEAD")
    command = ("--", "bash", "-c", ASKS)
    assert printed(shell, "tracker=wandb", *command) == ["no checkout", f"told {commit}"]
    assert printed(shell, "runtime.cwd=code", *command) == ["no checkout", "told "]
    assert printed(shell, "runtime.cwd=project", *command) == [commit, "told "]
    live = printed(shell, "tracker=wandb", "code.snapshot=false", *command)
    assert live[-1] == "told "


def test_script_of_a_run_in_the_project_is_the_frozen_one(shell: Any) -> None:
    """What was edited after the launch is not what is resumed, nor are the modules beside it."""
    program = "import beside, sys\nprint('{0}', beside.WORD, sys.argv[1:])\nsys.exit({1})\n"
    script, module = shell.cwd / "ask.py", shell.cwd / "beside.py"
    script.write_text(program.format("one", 1))
    module.write_text("WORD = 'one'\n")
    words = ("cluster=local", "output_dir=outputs", "runtime.cwd=project", "--wait")
    shell("launch", *words, "--", "python", "ask.py", "--in", "ask.py")
    script.write_text(program.format("two", 0))
    module.write_text("WORD = 'two'\n")
    (launch,) = (output for output in shell.outputs if output.name[0] != ".")
    said = shell("resume", str(launch), "--failed", "--wait")
    assert "ask.py" in said.err
    logs = sorted(launch.rglob("rank-00000.log"))
    assert [log.read_text() for log in logs] == ["one one ['--in', 'ask.py']\n"] * 2


def test_run_on_this_machine_has_no_task_of_a_job_around_it(shell: Any) -> None:
    """In an allocation, or in a rank of another run, srun's variables describe something else."""
    shell.environ |= dict.fromkeys(TASK_VARIABLES, "7") | {"SLURM_JOB_ID": "5"}
    found = printed(shell, "resources.tasks_per_node=2", "--", "env")
    assert "WORLD_SIZE=2" in found
    assert not TASK_VARIABLES & {line.partition("=")[0] for line in found}
