"""Promises of `hpckit rerun`: runs anew, with today's code or exactly what was frozen."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

pytestmark = pytest.mark.slow

WORDS = ("experiment=command", "command=[sh,say.sh,'${params.i}']", "cluster=local")
SAID = "said"


def git(folder: Path, *words: str) -> None:
    """Run git in a folder."""
    identity = ("-c", "user.name=u", "-c", "user.email=u@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(shell: Any) -> Any:
    """Return a shell in a checkout whose script writes down what it is: one, committed."""
    write(shell, "one")
    (shell.cwd / ".gitignore").write_text("outputs/\n")
    git(shell.cwd, "init", "-q")
    git(shell.cwd, "add", "-A")
    git(shell.cwd, "commit", "-qm", "one")
    return shell


def write(shell: Any, word: str) -> None:
    """Let the project's script write down another word."""
    (shell.cwd / "say.sh").write_text(f"echo {word} $1 >> {shell.cwd.parent}/{SAID}\n")


def said(shell: Any) -> list[str]:
    """Return what the runs wrote down."""
    text: str = (shell.cwd.parent / SAID).read_text()
    return text.splitlines()


def launched(shell: Any, *words: str) -> Path:
    """Launch, wait, and return the folder."""
    done = shell("launch", "--wait", "--json", *WORDS, *words)
    assert done.code == 0, done.err
    return Path(json.loads(done.out)["dir"])


def test_rerun_exact_runs_the_frozen_code_and_configuration(project: Any) -> None:
    """A new launch has the old one's code, configuration and signature, whatever is there today."""
    write(project, "uncommitted")
    first = launched(project, "-m", "+params.i=1,2")
    (first / "code" / "by-a-run.txt").write_text("not frozen")
    write(project, "today")
    done = project("rerun", f"{first.name}.1", "--exact", "--wait", "--json")
    assert done.code == 0, done.err
    again = json.loads(done.out)
    assert said(project) == ["uncommitted 1", "uncommitted 2", "uncommitted 2"]
    assert (again["rerun_of"], again["exact"], again["differences"]) == (
        [f"{first.name}.1"],
        True,
        [],
    )
    second = Path(again["dir"])
    assert not (second / "code" / "by-a-run.txt").exists()
    for name in ("code.sha256", "code.json", "code.diff"):
        assert (second / name).read_text() == (first / name).read_text(), name
    signatures = (first / "signatures.txt").read_text().split()
    assert (second / "signatures.txt").read_text().split() == signatures[1:]


def test_rerun_takes_todays_code_and_says_so(project: Any) -> None:
    """Without --exact only the configuration is what it was; from which folder does not matter."""
    launched(project, "+params.i=1")
    write(project, "today")
    elsewhere = project.cwd.parent / "elsewhere"
    elsewhere.mkdir()
    outputs = str(project.cwd / "outputs")
    project.cwd = elsewhere
    done = project("rerun", "--wait", "--output-dir", outputs)
    assert done.code == 0, done.err
    assert "code: today's" in done.err
    assert "it is not what it was" in done.err
    project.cwd = elsewhere.parent / "project"
    assert said(project) == ["one 1", "today 1"]


@pytest.mark.parametrize("words", [(), pytest.param(("code.snapshot=false",), marks=thorough)])
def test_rerun_exact_without_its_snapshot_takes_the_commit(
    project: Any, words: tuple[str, ...]
) -> None:
    """Where a clean removed the snapshot, or there was none, commit and diff give it back."""
    write(project, "changed")
    first = launched(project, "+params.i=1", *words)
    assert project("clean", "--code", "--yes").code == 0
    assert not (first / "code").exists()
    write(project, "today")
    git(project.cwd, "commit", "-qam", "today")
    done = project("rerun", "--exact", "--wait")
    assert done.code == 0, done.err
    assert "as frozen (commit" in done.err
    assert said(project) == ["changed 1", "changed 1"]
    assert ("not recorded" in done.err) == bool(words)


def test_rerun_exact_refuses_what_is_not_what_was_frozen(project: Any) -> None:
    """An edited snapshot, files that git never had, no checkout: refused, with what to do."""
    (project.cwd / "extra.txt").write_text("git does not know me\n")
    first = launched(project, "+params.i=1")
    script = first / "code" / "say.sh"
    script.write_text("# edited\n" + script.read_text())
    edited = project("rerun", "--exact")
    assert edited.code == 2
    assert "code/say.sh was edited" in edited.err
    shutil.rmtree(first / "code")
    missing = project("rerun", "--exact")
    assert "1 of 3 files differ or are missing, such as extra.txt" in missing.err
    shutil.rmtree(project.cwd / ".git")
    gone = project("rerun", "--exact")
    assert gone.code == 2
    assert "git cannot write out commit" in gone.err
    assert "leave --exact out" in gone.err
    assert len(project.outputs) == 1


def test_rerun_tells_every_difference_of_environment(project: Any) -> None:
    """Python, packages, modules, host, driver: each that is not what it was is a line."""
    first = launched(project, "+params.i=1")
    path = first / "environment.json"
    record = json.loads(path.read_text())
    record["packages"] |= {"gone": "1.0", "numpy": "0.1"}
    record |= {"host": "other", "modules": ["cuda/12"], "driver": "535.1"}
    record["python"]["version"] = "2.7"
    path.write_text(json.dumps(record))
    done = project("rerun", "--exact", "--dry-run")
    assert done.code == 0, done.err
    for line in (
        "host: was other, is ",
        "modules: was cuda/12, is ",
        "driver: was 535.1, ",
        "python: was 2.7, is 3.",
        "package gone: was 1.0, and is not here",
        "package numpy: was 0.1, is ",
    ):
        assert f"hpckit: environment: {line}" in done.err
    assert done.err.count("environment: ") == 6
    assert done.out.startswith("1 run on this machine\n")
    assert len(project.outputs) == 1


def test_rerun_needs_one_run(project: Any) -> None:
    """Of a sweep one has to be named; a Python that is gone is said."""
    first = launched(project, "-m", "+params.i=1,2")
    several = project("rerun")
    assert several.code == 2
    assert "has 2 runs" in several.err
    record = json.loads((first / "launch.json").read_text())
    bare = shutil.which("python3", path="/usr/bin")
    for python, why in (
        ("/no/python", "is gone: /no/python"),
        (bare, "hpckit is no longer installed"),
    ):
        (first / "launch.json").write_text(json.dumps(record | {"python": python}))
        gone = project("rerun", f"{first.name}.0", "--exact")
        assert gone.code == 2
        assert why in gone.err


@thorough
def test_rerun_is_not_skipped(project: Any) -> None:
    """Though the run has completed, and with the same code."""
    launched(project, "+params.i=1")
    assert project("rerun", "--wait").code == 0
    assert said(project) == ["one 1", "one 1"]


def test_rerun_takes_overrides_wherever_the_configuration_refers_to_them(project: Any) -> None:
    """The rest stays as it was frozen; a rerun of the rerun builds on it, and `show` says so."""
    (project.cwd / "conf" / "experiment").mkdir(parents=True)
    (project.cwd / "conf" / "experiment" / "said.yaml").write_text(
        "# @package _global_\nlr: 1\nwho: x\ncommand: [sh, say.sh, '${lr}-${who}']\n"
    )
    done = project("launch", "--wait", "experiment=said", "cluster=local", "+extra=5", "seed=3")
    assert done.code == 0, done.err
    today = (project.cwd / "conf" / "experiment" / "said.yaml").read_text()
    (project.cwd / "conf" / "experiment" / "said.yaml").write_text(today.replace("x", "today"))
    words = ("lr=2", "extra=6", "cluster.max_parallel=2")
    first = json.loads(project("rerun", *words, "--wait", "--json").out)["launch"]
    again = json.loads(project("rerun", first, "extra=7", "--exact", "--wait", "--json").out)
    assert said(project) == ["one 1-x", "one 2-x", "one 2-x"]
    shown = json.loads(project("show", again["launch"], "--json").out)
    assert (shown["config"]["seed"], shown["config"]["extra"]) == (3, 7)
    assert {"lr=2", "+extra=7", "seed=3"} <= set(shown["overrides"])


def test_rerun_overrides_reach_the_command_behind_the_dashes(project: Any) -> None:
    """What `--` was followed by refers to values too, also in a rerun of a rerun."""
    words = ("cluster=local", "+params.i=1", "--", "sh", "say.sh", "${params.i}")
    assert project("launch", "--wait", *words).code == 0
    for value in ("2", "3"):
        done = project("rerun", f"params.i={value}", "runtime.cwd=project", "--wait")
        assert done.code == 0, done.err
    assert said(project) == ["one 1", "one 2", "one 3"]


@pytest.mark.parametrize("word", ["params.i=1,2", "resources.nodez=2", "seed=", "runtime.cwd=moon"])
def test_rerun_refuses_a_wrong_override_and_leaves_nothing(project: Any, word: str) -> None:
    """One error names it."""
    launched(project, "+params.i=1")
    before = project.outputs
    done = project("rerun", word)
    assert done.code == 2
    assert done.err.startswith("hpckit: error: "), done.err
    assert word.partition("=")[0] in done.err
    assert project.outputs == before
