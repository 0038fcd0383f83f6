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
    assert (again["rerun_of"], again["exact"], again["differences"]) == ([f"{first.name}.1"], True, [])
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
    assert "it is not the same as it was" in done.err
    project.cwd = elsewhere.parent / "project"
    assert said(project) == ["one 1", "today 1"]


@pytest.mark.parametrize("words", [(), pytest.param(("code.snapshot=false",), marks=thorough)])
def test_rerun_exact_without_its_snapshot_takes_the_commit(project: Any, words: tuple[str, ...]) -> None:
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
        "package gone: was 1.0, but is not here",
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
    for python, why in (("/no/python", "is gone: /no/python"), (bare, "hpckit is no longer installed")):
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


def test_rerun_takes_another_command_behind_dashes(project: Any) -> None:
    """As launch does: the way to give a plain command another argument."""
    assert project("launch", "cluster=local", "--wait", "--", "sh", "say.sh", "0.2").code == 0
    for words in (("--wait",), ("--wait", "runtime.cwd=project")):
        done = project("rerun", *words, "--", "sh", "say.sh", "it's 0.5")
        assert done.code == 0, done.err
    assert said(project) == ["one 0.2", *["one it's 0.5"] * 2]


def test_rerun_overrides_reach_the_command_behind_the_dashes(project: Any) -> None:
    """What `--` was followed by refers to values too, also in a rerun of a rerun."""
    words = ("cluster=local", "+params.i=1", "--", "sh", "say.sh", "${params.i}")
    assert project("launch", "--wait", *words).code == 0
    for value in ("2", "3"):
        done = project("rerun", f"params.i={value}", "runtime.cwd=project", "--wait")
        assert done.code == 0, done.err
    assert said(project) == ["one 1", "one 2", "one 3"]


def test_rerun_refuses_a_wrong_override_and_leaves_nothing(project: Any) -> None:
    """One error names it."""
    launched(project, "+params.i=1")
    before = project.outputs
    for word in ("params.i=1,2", "resources.nodez=2", "seed=", "runtime.cwd=moon", "parallel=x"):
        done = project("rerun", word)
        assert done.code == 2, word
        assert done.err.startswith("hpckit: error: "), done.err
        assert word.partition("=")[0] in done.err
        assert project.outputs == before


@pytest.fixture
def site(project: Any) -> Path:
    """Return a configuration folder outside the project: what is there is not frozen."""
    folder = Path(project.cwd.parent) / "site"
    for name in ("experiment", "optimizer"):
        (folder / name).mkdir(parents=True)
    return folder


EXPERIMENT = """# @package _global_
defaults: [{/optimizer: OPTIMIZER}]
lr: LR
who: ${optimizer.name}
stamp: ${now:%f}
command: ["true", "${lr}-${who}"]
layers: LAYERS
env: {API_KEY: AGE-of-the-site}
cluster: {env: {API_TOKEN: AGE-of-the-cluster}}
"""


def write_site(site: Path, name: str, **words: str) -> None:
    """Write an experiment, with these words in place of the names in capitals."""
    text = EXPERIMENT
    layers = ("{relu: 2, conv: 1}", "{conv: 1, relu: 2}")[name == "f"]
    for word, value in (words | {"LAYERS": layers}).items():
        text = text.replace(word, value)
    (site / "experiment" / f"{name}.yaml").write_text(text)


def launched_from(site: Path, project: Any, *more: str) -> None:
    """Launch an experiment with lr=0.1 and sgd, of which the files then say lr=0.5 and adam."""
    for name, line in (("sgd", "momentum: 0.9"), ("adam", "betas: [0.9, 0.99]")):
        (site / "optimizer" / f"{name}.yaml").write_text(f"name: {name}\n{line}\n")
    write_site(site, "f", LR="0.1", OPTIMIZER="sgd", AGE="old")
    words = ("--config-dir", str(site), "experiment=f", "cluster=local", "+extra=1", *more)
    done = project("launch", "--wait", *words)
    assert done.code == 0, done.err
    for name in "fg":
        write_site(site, name, LR="0.5", OPTIMIZER="adam", AGE="new")


def rerun(project: Any, *words: str) -> tuple[dict[str, Any], Path]:
    """Run the first launch again with these words; return its configuration and its folder."""
    first = min(project.outputs, key=lambda folder: folder.stat().st_ctime)
    done = project("rerun", first.name, *words, "--wait", "--json")
    assert done.code == 0, done.err
    again = json.loads(done.out)
    config: dict[str, Any] = json.loads(project("show", again["launch"], "--config", "--json").out)
    return config, Path(again["dir"])


def test_rerun_takes_values_that_python_calls_equal(project: Any) -> None:
    """1, 1.0 and true are three values, also in lists and mappings."""
    launched(project, "+params.i=1", "+params.j=1", "+params.l=[1,2]", "+params.m={a: 0}")
    words = ("params.i=true", "params.j=1.0", "params.l=[1.0,2.0]", "params.m.a=false")
    params = rerun(project, *words)[0]["params"]
    assert repr(params) == "{'i': True, 'j': 1.0, 'l': [1.0, 2.0], 'm': {'a': False}}"


def test_rerun_sets_what_a_word_names_though_the_files_say_so_by_now(project: Any, site: Path) -> None:
    """So do secrets, and all that refers to the key; what no word names stays as it was frozen."""
    launched_from(site, project)
    frozen = rerun(project)[0]
    config, folder = rerun(
        project, "lr=0.5", "env.API_KEY=new-of-the-site", "cluster.env.API_TOKEN=new-of-the-cluster"
    )
    assert config == {**frozen, "lr": 0.5, "command": ["true", "0.5-sgd"]}
    secrets = json.loads((folder / "secrets.json").read_text())["all"]
    assert secrets["env"] == {"API_KEY": "new-of-the-site"}
    assert secrets["cluster"] == {"API_TOKEN": "new-of-the-cluster"}


def test_rerun_sets_a_key_that_the_files_no_longer_have(project: Any, site: Path) -> None:
    """It is a key of the frozen configuration; one that is in neither is refused."""
    launched_from(site, project)
    path = site / "experiment" / "f.yaml"
    path.write_text(path.read_text().replace("lr: 0.5", "rate: 0.5").replace("${lr}", "${rate}"))
    config = rerun(project, "lr=2", "extra=2")[0]
    assert (config["lr"], config["extra"], config["command"]) == (2, 2, ["true", "0.1-sgd"])
    assert project("rerun", "lrr=2").code == 2


def test_rerun_takes_a_choice_though_the_files_choose_it_by_now(project: Any, site: Path) -> None:
    """Its section is what was chosen, with nothing left of the old choice."""
    launched_from(site, project)
    frozen = rerun(project)[0]
    config = rerun(project, "optimizer=adam")[0]
    adam = {"name": "adam", "betas": [0.9, 0.99]}
    assert config == {**frozen, "optimizer": adam, "who": "adam", "command": ["true", "0.1-adam"]}


def test_rerun_says_which_earlier_words_hold_below_a_choice(project: Any, site: Path) -> None:
    """Once for all runs; not of what this rerun sets itself, nor of a key beside the section."""
    launched_from(site, project, "-m", "optimizer.name=x,y", "lr=3")
    first = project.outputs[0].name
    said_of_two = project("rerun", first, "--runs", "0-1", "optimizer=adam", "--dry-run").err
    assert said_of_two.count("still apply") == 1
    words_said = "optimizer.name=x, optimizer.name=y; rerun with optimizer.name=… to change that"
    assert f"words of {first} still apply: {words_said}" in said_of_two
    config = rerun(project, "--runs", "1", "optimizer=adam")[0]
    assert config["optimizer"] == {"name": "y", "betas": [0.9, 0.99]}
    said_of_one = project("rerun", f"{first}.1", "optimizer=adam", "--dry-run").err
    assert f"words of {first} still apply: optimizer.name=y; rerun with" in said_of_one
    for words in (("optimizer=adam", "optimizer.name=z"), ("optimizer={name: z}",), ("who=1",)):
        done = project("rerun", f"{first}.1", *words, "--dry-run")
        assert (done.code, "still apply" in done.err) == (0, False), done.err


def test_rerun_takes_another_experiment_as_its_file_is(project: Any, site: Path) -> None:
    """All that it sets, in its order, and what it chooses; a key that only a word has set stays."""
    launched_from(site, project)
    config = rerun(project, "experiment=g")[0]
    assert (config["lr"], config["who"], config["extra"]) == (0.5, "adam", 1)
    assert list(config["layers"]) == ["relu", "conv"]
    assert (config["command"], "momentum" in config["optimizer"]) == (["true", "0.5-adam"], False)


def test_rerun_takes_overrides_of_a_run_of_a_stage(project: Any) -> None:
    """They count above the stage's own overrides."""
    (project.cwd / "conf" / "experiment").mkdir(parents=True)
    (project.cwd / "conf" / "experiment" / "staged.yaml").write_text(
        "# @package _global_\nlr: 0\nk: 0\ncommand: [sh, say.sh, '${lr}-${k}']\n"
        "stages: {a: {overrides: [lr=1]}, b: {overrides: [resources=cpu, lr=2]}}\n"
    )
    done = project("launch", "--wait", "experiment=staged", "cluster=local")
    assert done.code == 0, done.err
    (folder,) = project.outputs
    for words in (("k=5",), ("lr=3",)):
        done = project("rerun", f"{folder.name}.1", *words, "--wait")
        assert done.code == 0, done.err
    assert said(project) == ["one 1-0", "one 2-0", "one 2-5", "one 3-0"]
