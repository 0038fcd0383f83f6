"""`hpckit launch [words] -- COMMAND`: a program of the user's, as the shell gave it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpckit.record.launches import load_launch, load_run_settings

SAY = "import json, sys\njson.dump(sys.argv[1:], open('said.json', 'w'))\n"
LOCAL = ("cluster=local", "--rerun")

_WORDS = st.text(
    st.one_of(
        st.sampled_from(list("\\\"'$%{}[](),=:~@ \t\n\r?|><&;`*#!+-./")),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    )
).filter(lambda word: "${" not in word and word != "???")


@given(words=st.lists(_WORDS, min_size=30, max_size=200))
@example(words=["", "--", "--wait", "-m", "null", "a, b", "\\", "$HOME", "|", "x=1,2", "~a"])
@example(words=["\udcff\udc80", "'", '"', "\x1b[31m", "\r\n", "é", "\u202e"])
@settings(max_examples=1, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_words_survive_to_the_process(shell: Any, words: list[str]) -> None:
    """What the program finds in its arguments is what stood behind `--`, also what is frozen."""
    (shell.cwd / "say.py").write_text(SAY)
    before = set(shell.outputs)
    said = shell("launch", "--wait", *LOCAL, "--", "python", "say.py", *words)
    assert said.code == 0, said.err
    (folder,) = set(shell.outputs) - before
    heard = json.loads((folder / "runs/00000/work/said.json").read_text())
    assert heard == words
    frozen, _ = load_run_settings(load_launch(folder), 0)
    assert frozen.command == ["python", "say.py", *words]


def test_a_sweep_fills_in_each_runs_values(shell: Any) -> None:
    """With -m, `${params.lr}` is another value in each run; overrides may not stand behind `--`."""
    (shell.cwd / "say.py").write_text(SAY)
    words = ("-m", "+params.lr=0.1,0.2", *LOCAL, "--", "python", "say.py", "--lr", "${params.lr}")
    assert shell("launch", "--wait", *words).code == 0
    (folder,) = shell.outputs
    runs = [folder / f"runs/0000{index}/work/said.json" for index in range(2)]
    assert [json.loads(run.read_text()) for run in runs] == [["--lr", "0.1"], ["--lr", "0.2"]]


def test_check_and_render_take_the_same_words(shell: Any) -> None:
    """So does --dry-run, which shows what render writes."""
    (shell.cwd / "say.py").write_text(SAY)
    assert shell("check", *LOCAL[:1], "--", "python", "say.py").code == 0
    missing = shell("check", *LOCAL[:1], "--", "python", "gone.py")
    assert missing.code == 2
    assert "gone.py" in missing.out + missing.err
    rendered = shell("render", "--json", "--", "python", "say.py", "a b")
    assert rendered.code == 0, rendered.err
    (run,) = json.loads(rendered.out)["runs"]
    assert run["overrides"] == ["experiment=command", "command=[python,say.py,a b]"]
    (folder,) = shell.outputs
    arguments = json.loads((folder / "launch.json").read_text())["arguments"]
    assert arguments == ["render", "--json", "--", "python", "say.py", "a b"]


@pytest.mark.parametrize("verb", ["launch", "check", "render"])
def test_an_experiment_with_an_entry_point_takes_no_command(shell: Any, verb: str) -> None:
    """One clear error, and nothing is written."""
    said = shell(verb, "experiment=digits", "--", "python", "train.py")
    assert said.code == 2
    assert "both entry_point=" in said.err
    assert "hpckit launch -- python train.py" in " ".join(said.err.split())
    assert shell.outputs == []


@pytest.mark.parametrize("verb", ["launch", "check", "render"])
def test_the_variable_names_the_primary_configuration(shell: Any, verb: str) -> None:
    """The option wins; an empty variable is unset."""
    (shell.cwd / "conf").mkdir()
    for name in ("config", "hpc", "other"):
        text = f"defaults: [hpckit, _self_]\nname: from-{name}\n"
        (shell.cwd / f"conf/{name}.yaml").write_text(text)
    for value, option, found in [
        ("hpc", (), "from-hpc"),
        ("hpc", ("--config-name", "other"), "from-other"),
        ("", (), "from-config"),
    ]:
        shell.environ["HPCKIT_CONFIG_NAME"] = value
        assert shell(verb, "--cfg", "name", *option).out == f"name: {found}\n"
    shell.environ["HPCKIT_CONFIG_NAME"] = "nope"
    said = shell(verb, "--", "true")
    assert said.code == 2
    assert "no configuration 'nope'" in said.err
    assert "$HPCKIT_CONFIG_NAME" in said.err


def test_what_the_variable_chose_is_recorded_and_not_needed_again(shell: Any) -> None:
    """The recorded words say it as an option; rerun and resume read what was frozen."""
    (shell.cwd / "conf").mkdir()
    (shell.cwd / "conf/hpc.yaml").write_text("defaults: [hpckit, _self_]\nname: mine\n")
    shell.environ["HPCKIT_CONFIG_NAME"] = "hpc"
    assert shell("launch", "--wait", "cluster=local", "--", "false").code == 1
    (folder,) = shell.outputs
    arguments = json.loads((folder / "launch.json").read_text())["arguments"]
    assert arguments[:2] == ["launch", "--config-name=hpc"]
    del shell.environ["HPCKIT_CONFIG_NAME"]
    (shell.cwd / "conf/hpc.yaml").unlink()
    (shell.cwd / "conf").rmdir()
    assert "1 of 1 run" in shell("resume", "--wait").out
    assert shell("rerun", str(folder), "--wait").code == 1
    assert [output.name.partition("-")[0] for output in shell.outputs] == ["mine", "mine"]


def test_metrics_that_cannot_be_read_are_warned_of(shell: Any) -> None:
    """A script that writes Python's text instead of JSON is told which line is the first."""
    (shell.cwd / "log.py").write_text(
        "import os\nwith open(os.environ['HPCKIT_ATTEMPT_DIR'] + '/metrics.jsonl', 'a') as file:\n"
        "    file.write('{\"step\": 0, \"loss\": 2.5}\\n' + str({'loss': 0.5}) + '\\n')\n"
    )
    said = shell("launch", "--wait", *LOCAL, "--", "python", "log.py")
    assert said.code == 0, said.err
    (run,) = json.loads(shell("status", "--json").out)["runs"]
    (warning,) = run["warnings"]
    assert warning.startswith("1 line of metrics.jsonl cannot be read, from line 2 on")
