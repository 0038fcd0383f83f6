"""What a new user's templates of batch scripts did in silence, or ended in a traceback."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.whole

EXTENDS = '{% extends "hpckit/job.sbatch.j2" %}\n'
MODULE = "{% block modules %}{{ super() }}module load site/extras\n{% endblock %}"
WORDS = ("--dry-run", "cluster=slurm", "experiment=command", "command=true", "code.snapshot=false")


@pytest.fixture
def templates(shell: Any) -> Any:
    """Return a function that launches, dry, with a file in ./slurm_templates; no conf is there."""
    folder = shell.cwd / "slurm_templates"
    folder.mkdir()

    def launch(text: str | bytes, name: str = "job.sbatch.j2") -> Any:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return shell("launch", *WORDS)

    return launch


def test_template_counts_without_a_configuration_folder(templates: Any) -> None:
    """It lies in the project, and is in what is frozen."""
    assert "module load site/extras" in templates(EXTENDS + MODULE).out


@pytest.mark.parametrize("name", ["jobs.sbatch.j2", "job.sbatch.jinja"])
def test_folder_of_templates_of_which_none_is_used_is_said(templates: Any, name: str) -> None:
    """A slip in the name of the file."""
    said = templates(EXTENDS + MODULE, name)
    assert said.code == 0
    assert "it has no file job.sbatch.j2 (cluster.template), but " + name in said.err


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (EXTENDS + MODULE.replace("modules", "moduls"), "has no block moduls"),
        (EXTENDS + "module load x\n" + MODULE, "'module load x' is outside of all blocks"),
        (EXTENDS + "{{ launch | shell }}", "'an expression' is outside of all blocks"),
        ((EXTENDS + "{% block setup %}# é\n{% endblock %}").encode("latin1"), "is not UTF-8"),
        (EXTENDS + "{% block setup %}{{ 1/0 }}{% endblock %}", "line 2: ZeroDivisionError"),
        (EXTENDS + "{% block setup %}{{ 1 + 'a' }}{% endblock %}", "line 2: TypeError"),
        (EXTENDS + "{% block setup %}{{ nosuch }}{% endblock %}", "'nosuch' is undefined"),
        (EXTENDS + "{% if nodes %}module load lost\n{% endif %}", "'module load lost' is outside"),
        (EXTENDS + "{% for n in [1] %}echo lost\n{% endfor %}", "'echo lost' is outside"),
        (EXTENDS + "{% with %}echo lost\n{% endwith %}", "'echo lost' is outside"),
        (EXTENDS + "{% if nodes %}{% block moduls %}{% endblock %}{% endif %}", "no block moduls"),
        (EXTENDS + "{% include 'x.j2' %}", "'an include' is outside"),
        ("hello\n", "begins with 'hello\\n' instead of #!"),
        ("", "begins with nothing instead of #!"),
        ("#!/bin/bash\n# hpckit supervise\necho hello\n", "it would start nothing"),
    ],
)
def test_template_that_does_not_do_what_it_seems_to_is_refused(
    templates: Any, text: str | bytes, error: str
) -> None:
    """One error that names the template, and exit code 2."""
    said = templates(text)
    assert said.code == 2
    assert error in said.err
    assert "Traceback" not in said.err


BASE = """#!/bin/bash
#SBATCH --nodes={{ nodes }}
exec {{ python | shell }} -P -m hpckit  \\
  supervise {{ folder | shell }} --job {{ job_index }}
"""


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("#!/bin/bash -l\n" + EXTENDS + MODULE, "module load site/extras"),
        (EXTENDS + "{% if nodes %}" + MODULE + "{% endif %}", "module load site/extras"),
        (EXTENDS + "{% macro say() %}echo mine{% endmacro %}" + MODULE, "module load site/extras"),
        (
            EXTENDS
            + "{% block mine %}echo mine{% endblock %}"
            + MODULE.replace("module load site/extras", "{{ self.mine() }}"),
            "echo mine",
        ),
        (
            "{% if nodes > 1 %}{% extends 'x.j2' %}{% else %}" + EXTENDS + "{% endif %}" + MODULE,
            "module load site/extras",
        ),
        ("{% set base = 'hpckit/job.sbatch.j2' %}{% extends base %}" + MODULE, "site/extras"),
        ("{# mine #}\n" + EXTENDS + "{# more #}\n" + MODULE, "module load site/extras"),
        (BASE, "supervise"),
    ],
)
def test_template_that_does_what_it_seems_to_is_taken(templates: Any, text: str, there: str) -> None:
    """Text before `extends` is printed; blocks may stand in conditions, or be printed by name."""
    said = templates(text)
    assert said.code == 0, said.err
    assert there in said.out


@pytest.mark.parametrize("parent", ["job_template", "'hpckit/auto_resume.sbatch.j2'"])
def test_template_of_auto_resume_jobs_is_checked_as_others(shell: Any, parent: str) -> None:
    """Its parent is named by a variable."""
    folder = shell.cwd / "slurm_templates"
    folder.mkdir()
    own = folder / "auto_resume.sbatch.j2"
    own.write_text(f"{{% extends {parent} %}}{{% block setpu %}}echo mine\n{{% endblock %}}")
    words = ("launch", "--auto-resume", *WORDS)
    assert "has no block setpu" in shell(*words).err
    own.write_text(own.read_text().replace("setpu", "setup"))
    assert "has no block setup" not in shell(*words).err


def test_template_of_another_tool_does_not_hold_up_a_run_here(shell: Any) -> None:
    """On this machine nothing reads the script of a job."""
    folder = shell.cwd / "slurm_templates"
    folder.mkdir()
    (folder / "job.sbatch.j2").write_text("#SBATCH -N {{ N }}\n")
    words = ("experiment=command", "command=true", "code.snapshot=false")
    assert shell("launch", "--dry-run", "cluster=local", *words).code == 0
    assert "'N' is undefined" in shell("launch", "--dry-run", "cluster=slurm", *words).err
