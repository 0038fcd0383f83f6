"""Promises of `hpckit launch` about earlier runs: skipped, adopted, or launched anew."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough
from waiting import run_to_end

from hpckit.record.launches import load_launch

pytestmark = pytest.mark.slow

SAY = ("experiment=command", "command=[sh,say.sh,'${params.i}']", "cluster=local")
SWEEP = ("-m", *SAY, "+params.i=0,1,2")
STAGED = ("experiment=pair", "cluster=local")
STAGES = {
    "conf/experiment/pair.yaml": "# @package _global_\nstages:\n"
    "  one: {overrides: ['command=[sh,say.sh,\"0\"]']}\n"
    "  two: {overrides: ['command=[sh,say.sh,\"1\"]']}\n"
}
EMPTY: dict[str, object] = {
    "launch": None,
    "dir": None,
    "runs": [],
    "jobs": [],
    "auto_resume_job": None,
    "backlog_job": None,
}


@pytest.fixture
def project(shell: Any) -> Any:
    """Return a shell in a project with one script: it fails for 2 until a file says otherwise."""
    (shell.cwd / "say.sh").write_text(f"[ $1 != 2 ] || [ -e {shell.cwd.parent}/mended ]\n")
    return shell


def launched(shell: Any, *words: str) -> dict[str, Any]:
    """Return what `launch --json` says; it must not fail for anything but a failed run."""
    said = shell("launch", "--json", *words)
    assert said.code in {0, 1}, said.err
    assert said.out, said.err
    document: dict[str, Any] = json.loads(said.out)
    return document


def known(documents: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return which runs stand for others, and their state."""
    return [(document["run"].rpartition(".")[2], document["state"]) for document in documents]


def test_launch_skips_what_has_completed_and_launches_the_rest(project: Any) -> None:
    """Of a sweep of which two runs completed, the second launch holds the third one alone."""
    first = launched(project, "--wait", *SWEEP)
    assert (first["skipped"], first["adopted"]) == ([], [])
    second = launched(project, "--wait", *SWEEP)
    assert known(second["skipped"]) == [("0", "completed"), ("1", "completed")]
    assert {one["dir"] for one in second["skipped"]} == {first["dir"]}
    (run,) = second["runs"]
    assert (run["index"], run["overrides"][-1]) == (0, "+params.i=2")
    rest = json.loads(project("results", second["launch"], "--json").out)["elsewhere"]
    assert rest == [{"launch": first["launch"], "runs": [0, 1]}]


def test_launch_names_a_secret_that_it_did_not_compare(project: Any) -> None:
    """A plain variable may have the name of a secret: its other value is no other run."""
    launched(project, "--wait", *SAY, "+params.i=0", "env.TOKEN_MIXER=attention")
    said = project("launch", "--wait", *SAY, "+params.i=0", "env.TOKEN_MIXER=pooling")
    assert "already completed" in said.err
    assert "env.TOKEN_MIXER counts as a secret by its name" in said.err
    assert "secret" not in project("launch", "--wait", *SAY, "+params.i=0", "env.SEEN=1").err


def test_launch_of_what_is_all_known_writes_nothing_and_is_0(project: Any) -> None:
    """Where all has completed, in several launches, it says where, and leaves no folder."""
    first = launched(project, "--wait", *SWEEP)["launch"]
    (project.cwd.parent / "mended").touch()
    second = launched(project, "--wait", *SWEEP)["launch"]
    before = project.outputs
    third = project("launch", "--wait", *SWEEP)
    assert third.code == 0
    assert "nothing to launch: all 3 runs" in third.out
    assert f"2 runs skipped: already completed as {first}, runs 0-1" in third.err
    assert f"1 run skipped: already completed as {second}.0" in third.err
    assert project.outputs == before
    document = launched(project, *SWEEP)
    assert {key: document[key] for key in EMPTY} == EMPTY
    assert len(document["skipped"]) == 3


@thorough
def test_launch_rerun_insists_on_all(project: Any) -> None:
    """With --rerun nothing earlier counts."""
    words = (*SAY, "+params.i=0")
    launched(project, "--wait", *words)
    again = launched(project, "--rerun", *words)
    assert (len(again["runs"]), again["skipped"]) == (1, [])


@thorough
def test_launch_with_changed_code_is_another_one_unless_told(project: Any) -> None:
    """A changed file of the snapshot makes runs differ; --any-code does not look at it."""
    words = (*SAY, "+params.i=0")
    launched(project, "--wait", *words)
    with (project.cwd / "say.sh").open("a") as script:
        script.write("# changed\n")
    assert "would be skipped" in project("launch", "--dry-run", "--any-code", *words).err
    said = project("launch", "--wait", "--changed-code", *words)
    assert "1 completed with other code (say.sh differs), the latest in " in said.err
    for name in ("a.npz", "b.csv", "c.pt"):
        (project.cwd / name).write_text(name)
    dry = project("launch", "--dry-run", *words)
    for name in ("a.npz", "b.csv", "c.pt"):
        (project.cwd / name).unlink()
    assert re.search(r"other code \(a\.npz, b\.csv, c\.pt( and 1 more)? differ\), the lat", dry.err)
    assert "launched anew" not in said.err
    assert len(project.outputs) == 2
    assert "nothing to launch" in project("launch", *words).out


def test_code_that_is_not_frozen_counts(project: Any, tmp_path: Path) -> None:
    """A script by its whole path, and a folder that Python imports from."""
    script, library = tmp_path / "tools" / "say.sh", tmp_path / "library"
    for file in (script, library / "lib.py"):
        file.parent.mkdir()
        file.write_text("true\n")
    project.environ["PYTHONPATH"] = str(library)
    words = ("experiment=command", f"command=[sh,{script}]", "cluster=local")
    launched(project, "--wait", *words)
    assert len(launched(project, *words)["skipped"]) == 1
    for file in (script, library / "lib.py"):
        file.write_text("true again\n")
        said = project("launch", *words)
        name = f"{script if file == script else f'{library}/'}"
        # Which of the two launches counts as the newer one is open here: their clock is not real.
        assert (said.code, name in said.err) == (2, True), said.err
        before = launched(project, "--dry-run", "--any-code", *words)["skipped"][0]["dir"]
        after = launched(project, "--wait", "--changed-code", *words)["dir"]
        shown = project("diff", before, after).out
        assert (f"changed: {name}" in shown, "the same files" in shown) == (True, False), shown


def test_a_script_more_in_a_sweep_of_scripts_runs_alone(project: Any, tmp_path: Path) -> None:
    """The scripts of the other runs are as they were."""
    for name in "abc":
        (tmp_path / f"{name}.sh").write_text("true\n")
    scripts = [f"{tmp_path}/{name}.sh" for name in "abc"]
    words = ("experiment=command", "command=[sh,'${params.s}']", "cluster=local")
    launched(project, "--wait", "-m", *words, f"+params.s={','.join(scripts[:2])}")
    again = launched(project, "--wait", "-m", *words, f"+params.s={','.join(scripts)}")
    assert (len(again["skipped"]), len(again["runs"])) == (2, 1)
    assert "is the same as it was" in project("rerun", again["launch"], "--dry-run").err
    (tmp_path / "b.sh").write_text("true again\n")
    said = project("launch", "-m", *words, f"+params.s={','.join(scripts)}")
    assert f"1 completed run would run again, with other code ({scripts[1]} differs)" in said.err


def test_a_run_that_began_with_other_code_than_was_recorded_is_not_reused(
    project: Any, tmp_path: Path
) -> None:
    """The script was edited while the run waited: its result is of neither code."""
    script = tmp_path / "say.sh"
    script.write_text("exit 1\n")
    words = ("experiment=command", f"command=[sh,{script}]", "cluster=local")
    first = json.loads(project("launch", "--json", "--wait", *words).out)
    script.write_text("true\n")
    resumed = project("resume", "--wait", first["launch"])
    told = f"code that is not frozen has changed since the launch: {script}"
    assert f"warning: {told}; what is resumed runs it as it is now" in resumed.err
    assert told in project("status", first["launch"]).out
    for text in ("true\n", "exit 1\n"):
        script.write_text(text)
        said = project("launch", *words)
        assert (said.code, f"({script} differs)" in said.err) == (2, True), said.err
    exact = project("rerun", first["launch"], "--exact", "--wait")
    assert told not in exact.err
    script.write_text("true\n")
    exact = project("rerun", first["launch"], "--exact", "--wait")
    assert f"warning: {told}; the runs take it as it is now" in exact.err
    assert len(launched(project, *words)["skipped"]) == 1


MORE_WAYS = ("absolute", "variable", "script", "in_place")


@pytest.mark.parametrize("how", ["line", "module", *(pytest.param(how, marks=thorough) for how in MORE_WAYS)])
def test_edits_of_the_projects_own_files_count_where_a_run_takes_them_from_there(
    project: Any, how: str
) -> None:
    """The script was edited while the run waited, and then put back: its result is not reused."""
    script = project.cwd / "say.py"
    script.write_text("raise SystemExit(1)\n")
    (project.cwd / "job.sh").write_text(f"cd {project.cwd}; {sys.executable} say.py\n")
    commands = {
        "absolute": ("cluster=local", "--", "python", str(script)),
        "line": ("cluster=local", "--", "bash", "-c", f"cd {project.cwd} && python say.py"),
        "variable": (
            "cluster=local", "--", "bash", "-c", 'cd "$HPCKIT_PROJECT" && python say.py'
        ),
        "script": ("cluster=local", "--", "bash", "job.sh"),
        "in_place": (
            "cluster=local", "runtime.cwd=project", "--", "bash", "-c", "python say.py"
        ),
        "module": ("cluster=local", "runtime.cwd=project", "--", "python", "-m", "say"),
    }  # fmt: skip
    words = commands[how]
    assert "taken from the project, not from the frozen code" in project("check", *words).out
    first = json.loads(project("launch", "--json", "--wait", *words).out)
    script.write_text("pass\n")
    resumed = project("resume", "--wait", first["launch"])
    told = f"code that is not frozen has changed since the launch: {script}"
    assert f"warning: {told}; what is resumed runs it as it is now" in resumed.err
    assert "runs the code as it was then" not in resumed.err
    assert told in project("status", first["launch"]).out
    script.write_text("raise SystemExit(1)\n")
    said = project("launch", *words)
    assert (said.code, f"({script} differs)" in said.err) == (2, True), said.err
    launched(project, "--wait", "--changed-code", *words)


def test_another_environment_of_a_skipped_run_is_said(project: Any) -> None:
    """Packages do not count, and what differs is named."""
    words = (*SAY, "+params.i=0")
    folder = Path(launched(project, "--wait", *words)["dir"])
    assert "the environment differs" not in project("launch", *words).err
    record = json.loads((folder / "environment.json").read_text())
    record["packages"]["torch"] = "1.0"
    (folder / "environment.json").write_text(json.dumps(record))
    assert "package torch: was 1.0, is " in project("launch", *words).err


@pytest.mark.parametrize("stages", [False, True])
def test_completed_runs_whose_code_differs_run_again_only_if_someone_says_so(
    project: Any, *, stages: bool
) -> None:
    """Without a terminal it is an error that names how many and which files; nothing is left."""
    words = STAGED if stages else ("-m", *SAY, "+params.i=0,1")
    if stages:
        for name, text in STAGES.items():
            (project.cwd / name).parent.mkdir(parents=True, exist_ok=True)
            (project.cwd / name).write_text(text)
    launched(project, "--wait", *words)
    (project.cwd / "say.sh").write_text("true\n")
    for more in (("--json",), ()):
        said = project("launch", *more, *words)
        assert (said.code, said.out) == (2, "")
        assert "error: 2 completed runs would run again, with other code (say.sh" in said.err
        assert "--changed-code" in said.err
    shown = project("launch", "--dry-run", "--json", *words)
    assert (shown.code, shown.out) == (2, "")
    checked = project("check", *words)
    assert "2 completed with other code (say.sh differs)" in checked.err
    assert "launch would ask first" in checked.err
    declined = project("launch", *words, terminal=True, answer="")
    assert (declined.code, declined.out) == (2, "run 2 completed runs again? [y/N] ")
    assert "2 completed with other code (say.sh differs)" in declined.err
    assert len(project.outputs) == 1
    assert project("launch", "--wait", *words, terminal=True, answer="y\n").code == 0
    assert len(project.outputs) == 2
    again = launched(project, "--wait", "--changed-code", *words, "output_dir=outputs")
    assert len(again["skipped"]) == 2


@pytest.mark.parametrize("tracked", [True, pytest.param(False, marks=thorough)])
def test_a_file_of_points_counts_for_no_launch_of_the_project(project: Any, *, tracked: bool) -> None:
    """Whichever sweep is launched; also for one that was launched while it was not known for it."""
    for name in ("a", "b"):
        (project.cwd / f"{name}.csv").write_text(f"params.{name}\n0\n1\n")
    for git in (["init", "-q"], ["add", "-A" if tracked else "say.sh"]):
        subprocess.run(["git", *git], cwd=project.cwd, check=True)
    word = "command=[sh,say.sh,'${params.%s}']"
    a, b = (("-m", "cluster=local", word % name, f"sweep.points={name}.csv") for name in "ab")
    other = ("-m", *SAY, "+params.i=0,1")
    for words in (other, a, b):
        assert len(launched(project, "--wait", *words)["runs"]) == 2
    (project.cwd / "b.csv").write_text("params.b\n0\n1\n5\n")
    for words in (other, a):
        assert len(launched(project, *words)["skipped"]) == 2
    (project.cwd / "say.sh").write_text("true\n")
    assert "other code (say.sh differs)" in project("launch", *other).err


def test_papers_and_what_hpckit_wrote_are_no_code(project: Any) -> None:
    """A report, a figure's like and an edited README run nothing again; data and code count."""
    words = (*SAY, "+params.i=0")
    (project.cwd / "README.md").write_text("old")
    launched(project, "--wait", *words)
    (project.cwd / "README.md").write_text("new")
    (project.cwd / "docs").mkdir()
    (project.cwd / "docs" / "guide.md").write_text("new")
    for verb in (("report",), ("export", "csv", "-o", "values.csv")):
        assert project(*verb).code == 0
    assert len(list(project.cwd.glob("*.html"))) == 1
    assert len(launched(project, *words)["skipped"]) == 1
    assert project("rerun", "@-1", "--exact", "--wait").code == 0
    (project.cwd / "res.csv").write_text(project("results", "--csv").out)
    (project.cwd / "res.json").write_text(project("results", "--json").out)
    for name in ("run.log", "NOTES.txt", "analysis.ipynb", "curve.png", "plots/loss.pdf"):
        (project.cwd / name).parent.mkdir(exist_ok=True)
        (project.cwd / name).write_text("mine")
    for of_hydra in ("multirun/0/.hydra/config.yaml", "multirun/multirun.yaml"):
        (project.cwd / of_hydra).parent.mkdir(parents=True, exist_ok=True)
        (project.cwd / of_hydra).write_text("lr: 1")
    assert len(launched(project, *words)["skipped"]) == 1
    named = (*words[:-1], "command=[cat,drawn.png,say.sh]")
    (project.cwd / "drawn.png").write_text("old")
    launched(project, "--wait", *named)
    (project.cwd / "drawn.png").write_text("new")
    assert "(drawn.png differs)" in project("launch", *named).err
    (project.cwd / "drawn.png").unlink()
    for name in ("data.csv", "data/cat.png", "prompts/README.md", "docs/conf.py", "docs/a.rst", "TODO"):
        (project.cwd / name).parent.mkdir(exist_ok=True)
        (project.cwd / name).write_text("launch,run\n")
        said = project("launch", *words)
        assert (said.code, f"({name} differs)" in said.err) == (2, True), said.err
        (project.cwd / name).unlink()


def test_files_that_a_shell_put_output_into_are_no_code(project: Any) -> None:
    """Neither that of the very launch, which is empty by then, nor those of verbs before."""
    python = f"{sys.executable} -P -m hpckit"

    def typed(line: str) -> str:
        environ = {"HPCKIT_OUTPUTS": f"{project.cwd}/outputs", **project.environ}
        done = run_to_end(
            ["sh", "-c", line.replace("hpckit", python, 1)], cwd=project.cwd, env={**os.environ, **environ}
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    words = shlex.join([*SAY, "+params.i=0"])
    typed(f"hpckit launch --json --wait {words} > m.json")
    assert not [*project.cwd.glob("outputs/*/code/m.json")]
    for verb, file in (
        ("status", "s.txt"),
        ("status --json", "s.json"),
        ("results", "r.txt"),
        ("results --json", "r.json"),
        ("ls", "ls.txt"),
        ("ls --json", "ls.json"),
        ("show", "show.txt"),
        (f"launch --json {words}", "n.json"),
        (f"check {words}", "c.txt"),
        (f"check --json {words}", "c.json"),
    ):
        typed(f"hpckit {verb} > {file}")
    typed(f"hpckit launch {words} > n.txt 2> e.txt")
    assert "already completed" in (project.cwd / "e.txt").read_text()
    assert "already completed" in typed(f"hpckit launch {words}")
    (project.cwd / "ids.txt").write_text("say-20260101-000000-abcdef.0\n")
    assert "(ids.txt differs)" in project("launch", *SAY, "+params.i=0").err


def test_a_sweep_that_grew_shows_by_what(project: Any) -> None:
    """The new launch has one run or one value of a key: what was swept is a column all the same."""
    width = (*SAY, "-m", "+params.i=3,4")
    launched(project, "--wait", *width, "seed=1")
    second = launched(project, "--wait", *width, "seed=1,2")["launch"]
    assert project("results", second, "--csv").out.splitlines()[0].startswith("index,params.i,seed,")
    rows = json.loads(project("results", second, "--json").out)["runs"]
    assert [row["overrides"] for row in rows] == [{"params.i": 3, "seed": 2}, {"params.i": 4, "seed": 2}]
    assert "seed" in project("results", second).out.splitlines()[0]
    third = launched(project, "--wait", *SAY, "-m", "+params.i=3,4,5", "seed=1")["launch"]
    assert json.loads(project("results", third, "--json").out)["overrides"] == ["params.i"]
    assert re.search("^0 +i=5 +completed", project("status", third).out, re.MULTILINE)
    again = project("rerun", f"{second}.1", "--json", "--wait")
    document = json.loads(project("results", json.loads(again.out)["launch"], "--json").out)
    assert document["overrides"] == ["params.i", "seed"]


def test_a_file_of_points_grows_and_only_the_new_ones_run(project: Any) -> None:
    """Its values are in the configurations; a line that changes makes another run."""
    points = project.cwd / "points.csv"
    points.write_text("+params.i\n0\n1\n")
    words = ("-m", *SAY, "sweep.points=points.csv")
    launched(project, "--wait", *words)
    with points.open("a") as file:
        file.write("3\n")
    again = launched(project, "--wait", *words)
    assert (len(again["skipped"]), len(again["runs"])) == (2, 1)


def test_what_runs_wrote_into_the_project_is_no_code(project: Any) -> None:
    """With runtime.cwd=project results come to lie among the code; what a person adds counts."""
    (project.cwd / "write.sh").write_text(
        "mkdir -p results; date +%N | tee -a results/last-$1.pt >>results/log.json\n"
        "echo $$ >train.log; [ $1 != 2 ] || echo x >data/late.csv; [ $1 != 3 ] || echo >new.py\n"
    )
    (project.cwd / "data").mkdir()
    (project.cwd / "data" / "train.csv").write_text("1")
    write = ("experiment=command", "command=[sh,write.sh,'${params.i}']", "cluster=local")
    words = ("-m", *write, "runtime.cwd=project", "+params.i=0,1")
    launched(project, "--wait", *words)
    assert len(launched(project, *words)["skipped"]) == 2
    assert len(launched(project, "--wait", "--rerun", *words)["runs"]) == 2
    assert len(launched(project, *words)["skipped"]) == 2
    (project.cwd / "results" / "mine.pt").write_text("a person's own")
    assert "(results/mine.pt differs)" in project("launch", *words).err
    (project.cwd / "results" / "mine.pt").unlink()
    for index, file in (("2", "data/late.csv"), ("3", "new.py")):
        launched(project, "--wait", *write, "runtime.cwd=project", f"+params.i={index}")
        assert f"({file} differs)" in project("launch", *words).err
        (project.cwd / file).unlink()


def test_run_whose_supervisor_was_killed_wrote_nothing_later(project: Any) -> None:
    """What comes into the project after its last sign of life is a person's."""
    launched(project, "--wait", *SAY, "+params.i=0")
    (project.cwd / "write.sh").write_text("mkdir results; echo 1 >results/last.pt\n")
    killed = ("experiment=command", "command=[sh,write.sh]", "cluster=local", "runtime.cwd=project")
    folder = Path(launched(project, "--wait", *killed)["dir"])
    (events,) = folder.glob("runs/*/attempts/*/events.jsonl")
    events.write_text("".join(events.read_text().splitlines(keepends=True)[:-1]))
    (project.cwd / "write.sh").unlink()
    assert len(launched(project, *SAY, "+params.i=0")["skipped"]) == 1
    late = project.cwd / "results" / "late.pt"
    late.write_text("a person's own")
    os.utime(late, (time.time() + 1000, time.time() + 1000))
    assert "(results/late.pt differs)" in project("launch", *SAY, "+params.i=0").err


def test_launch_asks_before_a_run_under_way_is_launched_again_with_other_code(project: Any) -> None:
    """It is refused or asked about as for completed runs, and the old one can be cancelled."""
    go = project.cwd.parent / "go"
    (project.cwd / "say.sh").write_text(f"until [ -e {go} ]; do sleep 0.1; done\n")
    words = (*SAY, "+params.i=0")
    first = launched(project, *words)["launch"]
    with (project.cwd / "say.sh").open("a") as script:
        script.write("# changed\n")
    why = f"with other code (say.sh differs), the latest in {first}"
    dry = project("launch", "--dry-run", *words)
    assert (dry.code, f"1 is under way {why}: that does not count" in dry.err) == (2, True)
    for more in (("--json",), ()):
        said = project("launch", *more, *words)
        assert (said.code, said.out) == (2, "")
        assert f"1 run under way would be launched a second time, {why}; nothing was" in said.err
        assert f"`hpckit cancel {first}.0` ends what is under way" in said.err
    declined = project("launch", *words, terminal=True, answer="")
    assert (declined.code, declined.out) == (2, "run 1 run under way again? [y/N] ")
    assert [folder.name for folder in project.outputs] == [first]
    assert len(launched(project, "--changed-code", *words)["runs"]) == 1
    go.touch()
    for folder in project.outputs:
        assert project("logs", "--follow", folder.name).code == 0


def test_launch_says_what_the_run_that_it_adopts_was_given_otherwise(project: Any) -> None:
    """Other time, memory and recovery are named, and never dropped without a word."""
    go = project.cwd.parent / "go"
    (project.cwd / "say.sh").write_text(f"until [ -e {go} ]; do sleep 0.1; done\n")
    words = (*SAY, "+params.i=0")
    first = launched(project, *words, "resources.timeout_min=2")["launch"]
    same = launched(project, *words, "resources.timeout_min=2")
    assert [one["differs"] for one in same["adopted"]] == [[]]
    other = (*words, "resources.timeout_min=600", "resources.mem_gb=8")
    said = project("launch", *other, "recovery=patient")
    assert said.code == 0, said.err
    told = "resources.mem_gb=null, not 8.0, resources.timeout_min=2, not 600, "
    assert f"warning: {first}.0 has {told}recovery.restarts." in said.err
    assert f"`hpckit cancel {first}.0`" in said.err
    (adopted,) = launched(project, *other)["adopted"]
    assert adopted["differs"] == [
        {"key": "resources.mem_gb", "has": None, "asked": 8.0},
        {"key": "resources.timeout_min", "has": 2, "asked": 600},
    ]
    go.touch()
    assert project("logs", "--follow", first).code == 0


def test_a_staged_sweep_that_grows_asks_before_it_runs_everything_again(project: Any) -> None:
    """Runs of stages need each other: what completed is counted and asked about."""
    (project.cwd / "conf/experiment").mkdir(parents=True)
    for name, text in STAGES.items():
        (project.cwd / name).write_text(text)
    words = (*STAGED, "-m")
    launched(project, "--wait", *words, "seed=1,2")
    assert len(launched(project, *words, "seed=1,2")["skipped"]) == 4
    said = project("launch", *words, "seed=1,2,3")
    assert (said.code, len(project.outputs)) == (2, 1)
    assert "4 completed runs would run again, as runs of stages need each other" in said.err
    asked = project("launch", *words, "seed=1,2,3", terminal=True, answer="")
    assert (asked.code, asked.out) == (2, "run 4 completed runs again? [y/N] ")
    assert len(launched(project, "--changed-code", *words, "seed=1,2,3")["runs"]) == 6


def test_launch_on_slurm_says_that_the_run_it_skips_was_here(project: Any) -> None:
    """A test on this machine stands for the run; who meant a test only, reads how to go on."""
    words = ("experiment=command", "command=[sh,say.sh,'0']")
    launched(project, "--wait", "cluster=local", *words)
    said = project("launch", "--dry-run", "cluster=slurm", *words)
    assert ".0, on this machine (--rerun runs it on Slurm)" in said.err
    assert "on this machine" not in project("launch", "--dry-run", "cluster=local", *words).err


def test_launch_says_nothing_of_other_code_about_another_project(project: Any) -> None:
    """The same words in another folder are another program: none of its code has changed."""
    words = (*SAY, "+params.i=0")
    launched(project, "--wait", *words)
    other = project.cwd.parent / "other"
    other.mkdir()
    (other / "say.sh").write_text("true\n")
    project.environ["HPCKIT_OUTPUTS"] = str(project.cwd / "outputs")
    project.cwd = other
    said = project("launch", "--dry-run", *words)
    assert said.code == 0
    assert "other code" not in said.err


def test_launch_with_planned_faults_is_never_skipped(project: Any) -> None:
    """Who asks for faults wants to see them, though the same was computed without."""
    words = (*SAY, "+params.i=0")
    launched(project, "--wait", *words)
    assert "nothing to launch" in project("launch", *words).out
    faulty = launched(project, "--dry-run", *words, "chaos=['kill rank=0 step=1']")
    assert len(faulty["runs"]) == 1


@thorough
def test_launch_without_snapshot_compares_the_commit_and_its_diff(project: Any) -> None:
    """In a checkout they tell; outside one nothing tells, and the run is launched anew."""
    words = (*SAY, "+params.i=0", "code.snapshot=false")
    launched(project, "--wait", *words)
    assert len(launched(project, "--wait", "--changed-code", *words)["runs"]) == 1
    for git in (("init", "-q"), ("add", "say.sh"), ("commit", "-qm", "start")):
        identity = ("-c", "user.name=u", "-c", "user.email=u@example.org")
        subprocess.run(["git", *identity, *git], cwd=project.cwd, check=True)
    assert len(launched(project, "--wait", "--changed-code", *words)["runs"]) == 1
    assert "nothing to launch" in project("launch", *words).out
    with (project.cwd / "say.sh").open("a") as script:
        script.write("# changed\n")
    assert len(launched(project, "--changed-code", *words)["runs"]) == 1


def test_launch_does_not_count_what_was_only_rendered(project: Any) -> None:
    """Scripts that nobody handed in are no runs on their way."""
    words = (*SAY, "+params.i=0")
    assert project("render", *words).code == 0
    assert len(launched(project, *words)["runs"]) == 1


def test_launch_adopts_what_is_under_way(slurm_shell: Any) -> None:
    """What waits or runs in Slurm is named, not submitted again; what was cancelled is."""
    words = ("experiment=command", "command=sleep 300", "cluster=slurm", "-m")
    first = launched(slurm_shell, *words, "seed=1,2")
    (said,) = [slurm_shell("launch", "--json", *words, "seed=2,3")]
    second = json.loads(said.out)
    assert f"1 run not submitted again: under way as {first['launch']}.1" in said.err
    assert [one["run"] for one in second["adopted"]] == [f"{first['launch']}.1"]
    assert len(second["runs"]) == len(second["jobs"]) == 1
    assert slurm_shell("cancel", "--all").code == 0
    third = launched(slurm_shell, "--dry-run", *words, "seed=1,2,3")
    assert (third["adopted"], len(third["runs"])) == ([], 3)


@thorough
def test_launch_wait_waits_for_what_it_adopted(slurm_shell: Any) -> None:
    """--wait ends when the adopted run has, with its exit code."""
    going = slurm_shell.cwd.parent / "going"
    going.touch()
    command = f"while [ -e {going} ]; do sleep 0.1; done; exit 3"
    words = ("experiment=command", f"command=[sh,-c,'{command}']", "cluster=slurm")
    first = launched(slurm_shell, *words)
    nap = slurm_shell.sleep

    def sleep(seconds: float) -> None:
        going.unlink(missing_ok=True)  # whoever waits has adopted the run by now
        nap(seconds)

    slurm_shell.sleep = sleep
    said = slurm_shell("launch", "--wait", *words)
    assert said.code == 1, said.err
    assert [folder.name for folder in slurm_shell.outputs] == [first["launch"]]


def test_launch_notes_a_launch_that_cannot_be_read(project: Any) -> None:
    """A folder that somebody edited is no reason not to launch."""
    words = (*SAY, "+params.i=2")
    folder = Path(launched(project, "--wait", *words)["dir"])
    (folder / "launch.json").write_text("{")
    said = project("launch", *words)
    assert said.code == 0
    assert "is damaged" in said.err
    with pytest.raises(Exception, match="is damaged"):
        load_launch(folder)


@thorough
def test_run_that_ended_in_another_layout_is_not_what_is_asked_for(shell: Any) -> None:
    """A comparison of layouts gets both, and is told why; back in its own layout it counts."""
    words = ("experiment=command", "command=[sh,say.sh]", "resources.tasks_per_node=2")
    (shell.cwd / "say.sh").write_text(f"[ -e {shell.cwd.parent}/mended ]\n")
    fsdp = (*words, "cluster=local", "parallel=fsdp")
    first = launched(shell, "--wait", *fsdp)
    (shell.cwd.parent / "mended").touch()
    assert shell("resume", "parallel=tensor", "--wait").code == 0
    said = shell("launch", "--json", "--wait", *fsdp)
    again = json.loads(said.out)
    assert (again["skipped"], len(again["runs"])) == ([], 1)
    assert f"{first['launch']}.0 completed, but in another layout" in said.err
    assert "(parallel=tensor): that does not count" in said.err
    third = launched(shell, *fsdp)
    assert known(third["skipped"]) == [("0", "completed")]
    assert third["skipped"][0]["dir"] == again["dir"]
