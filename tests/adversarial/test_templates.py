"""What a new user's templates of batch scripts did in silence, or ended in a traceback."""

from __future__ import annotations

from typing import Any

import pytest

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
        (EXTENDS + "module load x\n" + MODULE, "'module load x' stands outside of blocks"),
        (EXTENDS + "{{ launch | shell }}", "'an expression' stands outside of blocks"),
        ((EXTENDS + "{% block setup %}# é\n{% endblock %}").encode("latin1"), "is not UTF-8"),
        (EXTENDS + "{% block setup %}{{ 1/0 }}{% endblock %}", "line 2: ZeroDivisionError"),
        (EXTENDS + "{% block setup %}{{ 1 + 'a' }}{% endblock %}", "line 2: TypeError"),
        (EXTENDS + "{% block setup %}{{ nosuch }}{% endblock %}", "'nosuch' is undefined"),
        ("hello\n", "does not begin with #!"),
        ("", "does not begin with #!"),
        ("#!/bin/bash\necho hello\n", "it would start no run"),
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
