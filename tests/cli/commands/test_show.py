"""Promises of `hpckit show`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import run_to_end

from hpckit.errors import UsageError
from hpckit.model import events
from hpckit.model.launch import ClusterKind
from hpckit.record.launches import load_run_settings

SECRET = "hf_0123456789abcdef"  # noqa: S105  # a case


@pytest.fixture
def checkout(shell: Any) -> Path:
    """Return the shell's folder as a checkout with a commit and a change since."""
    folder: Path = shell.cwd
    (folder / "train.py").write_text("print(1)\n")
    (folder / "other.py").write_text("print(1)\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(folder)]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    (folder / "train.py").write_text("print(2)\n")
    return folder


def test_show_of_a_real_run_says_what_it_is(shell: Any, checkout: Path) -> None:
    """Code, environment, program, attempts and paths are those that the run had."""
    words = ("cluster=local", "experiment=command", "command=[sh,-c,'exit 3']")
    assert shell("launch", *words, f"+env.HF_TOKEN={SECRET}", "--wait").code == 1
    said = shell("show", "--json")
    about = json.loads(said.out)
    assert (about["state"], about["failure"]["cause"]) == ("failed", "exit_code")
    assert about["program"] == "sh -c 'exit 3'"
    head = run_to_end(["git", "-C", str(checkout), "rev-parse", "HEAD"], check=True).stdout.strip()
    code = about["code"]
    assert (code["commit"], code["branch"], code["dirty"]) == (head, "main", True)
    assert code["changed_files"] == ["train.py"]
    assert about["environment"]["python"].startswith("3.")
    (attempt,) = about["attempts"]
    assert (attempt["attempt"], attempt["state"], attempt["exit_code"]) == (1, "failed", 3)
    assert all(Path(about["paths"][name]).exists() for name in ("folder", "logs", "frozen_in"))
    page = shell("show").out
    for text in ("failed: exit_code", head, "train.py", "sh -c 'exit 3'", about["signature"]):
        assert text in page
    assert SECRET not in said.out + page + shell("show", "--config").out


def test_show_config_is_yaml_that_reads_back(desk: Any) -> None:
    """All of it and nothing else, so that it can go into a file."""
    launch = desk.freeze(env={"A": "x: y", "B": "1", "C": "naïve"})
    said = desk.say("show", "--config")
    assert yaml.safe_load(said.out) == load_run_settings(launch, 0)[1]
    assert "naïve" in said.out
    assert json.loads(desk.say("show", "--config", "--json").out) == load_run_settings(launch, 0)[1]


def test_show_config_is_harmless_and_still_the_same(desk: Any) -> None:
    """What a terminal would obey is escaped as YAML has it."""
    launch = desk.freeze(env={"A": "\x1b[2J\u202eevil"})
    said = desk.say("show", "--config")
    assert yaml.safe_load(said.out) == load_run_settings(launch, 0)[1]
    assert not {"\x1b", "\u202e"} & set(said.out + desk.say("show").out)


def test_show_of_several_runs_shows_what_they_share(desk: Any, writer: Any) -> None:
    """They are listed with their states; a configuration is of one run."""
    launch = desk.freeze(sweep=[("a=1",), ("a=2",)])
    writer(launch=launch, index=1).start()
    writer(launch=launch, index=1).fail()
    said = desk.say("show", launch.id).out
    assert f"{launch.id}.1" in said
    assert "2 runs: 1 pending, 1 failed" in said
    about = json.loads(desk.say("show", launch.id, "--json").out)
    assert [run["state"] for run in about["runs"]] == ["pending", "failed"]
    assert "config" not in about
    with pytest.raises(UsageError, match="2 runs, each with a configuration"):
        desk.say("show", launch.id, "--config")
    one = json.loads(desk.say("show", f"{launch.id}.1", "--json").out)
    assert (one["run"], one["overrides"]) == (f"{launch.id}.1", ["a=2"])


def test_show_has_the_job_and_nodes_of_each_attempt(desk: Any, writer: Any, fake_slurm: Any) -> None:
    """A run that was interrupted has its earlier job, too."""
    desk.environ = fake_slurm.environ
    launch = desk.freeze(kind=ClusterKind.slurm)
    desk.tell(launch, events.Submitted(at=launch.created_at, job_index=0, job="7"))
    for number, job in ((1, "7"), (2, "9")):
        attempt = writer(launch=launch, attempt=number)
        attempt.start(job=job)
        attempt.round(1)
    writer(launch=launch, attempt=1).interrupt()
    about = json.loads(desk.say("show", "--json").out)
    told = [(one["job"], one["nodes"], one["rounds"], one["state"]) for one in about["attempts"]]
    assert told == [("7", ["n1", "n2"], 2, "interrupted"), ("9", ["n1", "n2"], 2, None)]


def test_show_of_damaged_records_shows_the_rest(desk: Any) -> None:
    """What cannot be read of code and environment is left out."""
    launch = desk.freeze()
    launch.paths.environment.write_text("{")
    launch.paths.code_record.write_text("[]")
    about = json.loads(desk.say("show", "--json").out)
    assert (about["environment"]["python"], about["code"]["commit"]) == (None, None)
    assert launch.id in desk.say("show").out


def test_show_writes_numbers_of_a_command_as_its_process_saw_them(shell: Any) -> None:
    """A word that the configuration filled with a number, a boolean or a blank is one word."""
    words = ("cluster=local", "+params.lr=0.1", "+params.text='a b'")
    filled = "command=[echo,${params.lr},true,${params.text}]"
    assert shell("launch", "experiment=command", *words, filled, "--wait").code == 0
    assert json.loads(shell("show", "--json").out)["program"] == "echo 0.1 true 'a b'"
