"""The JSON object of the verbs that launch: in each the fields that cli/launch.md promises."""

from __future__ import annotations

import json
from typing import Any

COMMON = ["launch", "dir", "runs", "jobs", "auto_resume_job", "backlog_job"]
WORDS = ("cluster=local", "experiment=command", "command=[false]")


def _fields(shell: Any, *words: str) -> list[str]:
    said = shell(*words, "--json")
    assert said.code == 0, said.err
    return list(json.loads(said.out))


def test_launch_documents_have_the_same_fields_in_each_verb(shell: Any) -> None:
    """launch, render, resume and rerun, with and without --dry-run, have the common fields."""
    own = ["skipped", "adopted", "left_out"]
    rerun = ["rerun_of", "exact", "code", "differences"]
    assert _fields(shell, "launch", *WORDS, "--dry-run") == [*COMMON, *own, "layouts", "scripts"]
    assert _fields(shell, "render", *WORDS) == [*COMMON, "scripts"]
    assert _fields(shell, "launch", *WORDS, "seed=2") == [*COMMON, *own]
    shell("watch")
    assert _fields(shell, "rerun", "--dry-run") == [*COMMON, *rerun, "layouts", "scripts"]
    assert _fields(shell, "resume", "--dry-run") == [*COMMON, "new_layouts", "skipped", "scripts"]
    assert _fields(shell, "resume") == [*COMMON, "new_layouts", "skipped"]
    shell("watch")
    assert _fields(shell, "rerun", "--no-check") == [*COMMON, *rerun]


def test_launch_documents_have_no_script_where_none_is_used(shell: Any) -> None:
    """On this machine --dry-run lists the runs, in text and in JSON, and no batch script."""
    shown = json.loads(shell("launch", *WORDS, "--dry-run", "--json").out)
    assert (shown["scripts"], len(shown["runs"])) == ([], 1)
