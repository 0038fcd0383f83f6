"""Promises of `hpckit launch`, on the real local executor and on a fake Slurm."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tiers import thorough

from hpckit.model import events
from hpckit.record.launches import load_launch, read_run_records

QUICK = ("experiment=command", 'command="true"', "code.snapshot=false")
LOCAL = (*QUICK, "cluster=local")
SLURM = (*QUICK, "cluster=slurm")
KNOWN = ("skipped", "adopted", "left_out")


def said_events(shell: Any, folder: Path) -> list[str]:
    """Return the kinds of the launch's events, in order."""
    return [event.kind for event in shell.events(folder)]


def test_launch_dry_run_prints_what_render_writes_to_the_letter(shell: Any) -> None:
    """With the same moment and token, the text shown is the text in the file, and all of it."""
    shell.tokens, shell.faster = lambda: "same", 0
    shown = shell("launch", "--dry-run", *SLURM, 'name="a b $(x)"')
    assert shown.code == 0
    assert shell.outputs == []
    rendered = json.loads(shell("render", "--json", *SLURM, 'name="a b $(x)"').out)
    assert shown.out == Path(rendered["scripts"][0]).read_text()


def test_launch_dry_run_leaves_nothing_behind(shell: Any) -> None:
    """Neither a launch folder nor the folder of launches appears."""
    assert shell("launch", "--dry-run", "-m", *LOCAL, "seed=1,2", "resources.mem_gb=1,2").code == 0
    assert list(shell.cwd.iterdir()) == []


def test_launch_dry_run_json_holds_every_script(shell: Any) -> None:
    """As JSON, each job's script has its path and its text."""
    words = ("-m", *SLURM, "seed=1,2", "resources.mem_gb=1,2")
    shown = json.loads(shell("launch", "--dry-run", "--json", *words).out)
    assert [Path(script["path"]).name for script in shown["scripts"]] == ["job-0.sbatch", "job-1.sbatch"]
    assert all(script["text"].startswith("#!/bin/bash\n") for script in shown["scripts"])


def test_launch_wait_runs_on_this_machine(shell: Any) -> None:
    """Without Slurm the local executor does it all, and a good end is exit code 0."""
    (shell.cwd / "say.py").write_text("open('here.txt', 'w').write('ran')\n")
    said = shell("launch", "--wait", "experiment=command", "command=python say.py", "cluster=local")
    assert said.code == 0, said.err
    (folder,) = shell.outputs
    assert (folder / "runs/00000/work/here.txt").read_text() == "ran"
    assert not (folder / "code/here.txt").exists()
    assert "1 run: 1 completed" in said.out
    assert not (shell.cwd / "here.txt").exists()


@pytest.mark.slow
def test_launch_wait_is_1_where_a_run_failed(shell: Any) -> None:
    """One failed run of a sweep makes exit code 1, and the others still run."""
    words = ("-m", "experiment=command", "command=[test,0,-eq,${params.i}]", "+params.i=0,1")
    said = shell("launch", "--wait", *words, "cluster=local", "code.snapshot=false")
    assert said.code == 1
    assert "1 failed" in said.out
    assert "1 completed" in said.out


def test_launch_wait_draws_on_a_terminal(shell: Any) -> None:
    """Before a person, the states are drawn live, and the end stays on the screen."""
    said = shell("launch", "--wait", *LOCAL, terminal=True)
    assert said.code == 0
    assert "\x1b[" in said.out
    assert "completed" in said.out


def test_launch_json_is_one_documented_object(slurm_shell: Any) -> None:
    """`launch --json` prints the object automation relies on, and nothing else."""
    said = slurm_shell("launch", "--json", "-m", *SLURM, "seed=3,4")
    launched = json.loads(said.out)
    assert list(launched) == ["launch", "dir", "runs", "jobs", "auto_resume_job", "backlog_job", *KNOWN]
    (folder,) = slurm_shell.outputs
    (job,) = launched["jobs"]
    assert (launched["launch"], launched["dir"]) == (folder.name, str(folder))
    assert launched["runs"] == [
        {
            "run": f"{folder.name}.{index}",
            "index": index,
            "overrides": launched["runs"][index]["overrides"],
            "job": f"{job}_{index}",
            "stage": None,
        }
        for index in range(2)
    ]
    assert "seed=4" in launched["runs"][1]["overrides"]


def test_launch_json_on_this_machine_has_no_jobs(shell: Any) -> None:
    """Without Slurm, jobs are null; with --wait the object stays the only output."""
    launched = json.loads(shell("launch", "--json", "--wait", *LOCAL).out)
    assert launched["jobs"] == []
    assert [run["job"] for run in launched["runs"]] == [None]


def test_launch_on_slurm_records_the_intent_before_and_the_job_after(slurm_shell: Any) -> None:
    """A crash in between leaves a trace by which the job is found."""
    said = slurm_shell("launch", *SLURM)
    assert said.code == 0, said.err
    (folder,) = slurm_shell.outputs
    intent, confirmed = slurm_shell.events(folder)[:2]
    assert isinstance(intent, events.SubmitIntended)
    assert intent.job_name == folder.name
    assert isinstance(confirmed, events.Submitted)
    assert confirmed.job in said.out


@thorough
@pytest.mark.slow
def test_launch_wait_follows_slurm_to_the_end(slurm_shell: Any) -> None:
    """A sweep as one array: --wait ends when all of it has, with the right exit code."""
    words = ("-m", "experiment=command", "command=[test,0,-eq,${params.i}]", "+params.i=0,0,1")
    good = slurm_shell("launch", "--wait", *SLURM)
    assert good.code == 0, good.err
    bad = slurm_shell("launch", "--wait", *words, "cluster=slurm", "code.snapshot=false")
    assert bad.code == 1, bad.err
    assert "3 runs: " in bad.out
    assert "1 failed" in bad.out


def test_launch_in_several_jobs_submits_them_all(slurm_shell: Any) -> None:
    """Runs that ask for different resources become several jobs of one launch."""
    words = ("-m", *SLURM, "resources.mem_gb=1,2,1")
    launched = json.loads(slurm_shell("launch", "--json", *words).out)
    first, second = launched["jobs"]
    assert [run["job"] for run in launched["runs"]] == [f"{first}_0", second, f"{first}_1"]


def test_launch_refused_says_slurms_words_and_leaves_nothing(slurm_shell: Any) -> None:
    """A refusal is exit code 3 with sbatch's own words, and no folder is left."""
    said = slurm_shell("launch", "--no-check", *SLURM, "resources.partition=nowhere")
    assert said.code == 3
    assert "invalid partition" in said.err.lower()
    assert "nothing was submitted" in said.err
    assert slurm_shell.outputs == []


def test_launch_refused_half_way_takes_the_rest_back(slurm_shell: Any, fake_slurm: Any) -> None:
    """When a later job is refused, earlier ones are cancelled and the record says why."""
    words = ("experiment=command", "command=sleep 60", "cluster=slurm", "code.snapshot=false")
    said = slurm_shell("launch", "-m", "--no-check", *words, "resources.partition=batch,nowhere")
    assert said.code == 3
    assert "was cancelled" in said.err
    (folder,) = slurm_shell.outputs
    launch = load_launch(folder)
    kept, refused = read_run_records(launch)
    assert kept.cancel_requested
    assert refused.failure is not None
    assert "partition" in refused.failure.message
    while fake_slurm.slurm("squeue", "--me", "--Format=Name:0|"):
        time.sleep(0.05)


def test_launch_without_slurm_installed_is_3_and_leaves_nothing(shell: Any) -> None:
    """cluster=slurm on a host without sbatch says so before anything is written."""
    said = shell("launch", *SLURM)
    assert said.code == 3
    assert "sbatch was not found" in said.err
    assert shell.outputs == []


def test_launch_with_slurm_away_keeps_the_intent_for_doctor(slurm_shell: Any, fake_slurm: Any) -> None:
    """No answer is no refusal: the folder stays, and the error names who finds out."""
    fake_slurm.fail("controller-away")
    said = slurm_shell("launch", *SLURM)
    assert said.code == 3
    assert "hpckit doctor" in said.err
    (folder,) = slurm_shell.outputs
    assert said_events(slurm_shell, folder) == ["submit_intended"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("experiment=digit",), "digits"),
        (("resources.nodes=two",), "two"),
        (("resourcs.nodes=2",), "resources"),
        (("experiment=digits", "resources.nodes=0"), "at least 1"),
        (("seed=1,2",), "-m"),
        (("experiment=command",), "command"),
        (("experiment=digits", "cluster=sandbox", "resources.partition=bacth"), "batch"),
        (("-m", "output_dir=a,b"), "output_dir differs"),
        (("experiment=digits", "code.root=nowhere"), "nowhere"),
    ],
)
def test_launch_with_a_wrong_configuration_is_2(shell: Any, words: tuple[str, ...], said: str) -> None:
    """Each mistake is one message that names what is wrong, exit code 2, and no folder."""
    answer = shell("launch", "cluster=local", *words)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert list(shell.cwd.iterdir()) == []


def test_launch_into_an_unwritable_folder_is_2_and_leaves_nothing(shell: Any) -> None:
    """An output folder that cannot be made is named; nothing is begun."""
    (shell.cwd / "taken").write_text("a file")
    answer = shell("launch", *LOCAL, "output_dir=taken/deep")
    assert answer.code == 2
    assert "taken" in answer.err
    assert "output_dir" in answer.err
    assert [path.name for path in shell.cwd.iterdir()] == ["taken"]


def test_launch_takes_overrides_anywhere_among_flags(shell: Any) -> None:
    """`launch a=1 --flag b=2 ~c` is read as one list of overrides, in its order."""
    words = ("params.x=1", "--dry-run", "seed=3", "--json", "~params.x", "+params.y=2")
    answer = shell("launch", "experiment=command", 'command="true"', "+params.x=0", *words)
    assert answer.code == 0, answer.err
    (run,) = json.loads(answer.out)["runs"]
    assert run["overrides"][2:] == ["+params.x=0", "params.x=1", "seed=3", "~params.x", "+params.y=2"]


def test_launch_shows_configuration_instead(shell: Any) -> None:
    """--cfg and --info print what was asked for, and nothing is launched."""
    whole = shell("launch", "seed=7", "--cfg")
    assert whole.code == 0, whole.err
    assert "seed: 7" in whole.out
    part = shell("launch", "--cfg", "resources", "seed=7")
    assert "nodes: 1" in part.out
    assert "seed" not in part.out
    swallowed = shell("launch", "--cfg", "seed=9")
    assert "seed: 9" in swallowed.out
    info = shell("launch", "--info")
    assert "digits" in info.out
    assert shell.outputs == []


def test_launch_finds_outputs_by_environment_and_says_how_to_go_on(shell: Any) -> None:
    """$HPCKIT_OUTPUTS is where launches go, and the next command that is shown works."""
    shell.environ["HPCKIT_OUTPUTS"] = str(shell.cwd / "there")
    answer = shell("launch", "--wait", *LOCAL)
    assert answer.code == 0, answer.err
    (folder,) = (shell.cwd / "there").iterdir()
    assert f"hpckit status {folder.name}" in answer.out
    assert shell("status", folder.name).code == 0


def test_launch_wait_interrupted_on_slurm_lets_the_run_go_on(slurm_shell: Any) -> None:
    """Ctrl-C on Slurm only ends the waiting, and says how to cancel."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    slurm_shell.sleep = interrupt
    words = ("experiment=command", "command=sleep 60", "cluster=slurm", "code.snapshot=false")
    answer = slurm_shell("launch", "--wait", *words)
    assert answer.code == 130
    assert "hpckit cancel" in answer.err
    (folder,) = slurm_shell.outputs
    assert "cancel_requested" not in said_events(slurm_shell, folder)


def test_launch_where_slurm_is_not_configured_leaves_nothing(shell: Any, tmp_path: Path) -> None:
    """Slurm's programs without a cluster (a package installed): exit 3, no folder to tidy up."""
    programs = tmp_path / "slurm"
    programs.mkdir()
    for name in ("sbatch", "srun", "squeue", "sacct"):
        (programs / name).write_text(
            "#!/bin/sh\necho 'fatal: Could not establish a configuration source' >&2\nexit 1\n"
        )
        (programs / name).chmod(0o755)
    said = shell(
        *("launch", "experiment=command", "command=true", "cluster=slurm"), f"cluster.bin_dir={programs}"
    )
    assert said.code == 3
    assert "no Slurm is configured" in said.err
    assert "cluster=local" in said.err
    assert shell.outputs == []


@pytest.mark.parametrize("verb", ["cancel", "status", "logs"])
def test_empty_reference_names_nothing(shell: Any, verb: str) -> None:
    """An empty word (an unset variable) is refused; it never means the only launch there is."""
    assert shell("render", "experiment=command", "command=true", "cluster=slurm").code == 0
    said = shell(verb, "")
    assert said.code == 2
    assert "empty" in said.err


@pytest.mark.parametrize("word", ["hydra.run.dir=x", "+hydra.sweeper.x=3"])
def test_launch_refuses_hydras_own_settings(shell: Any, word: str) -> None:
    """Settings of Hydra's launching have no effect here, and are refused instead of ignored."""
    said = shell("launch", "experiment=command", "command=true", word)
    assert said.code == 2
    assert "hydra.*" in said.err
    assert shell.outputs == []


def test_launch_dry_run_on_this_machine_lists_the_runs(shell: Any) -> None:
    """No sbatch script is shown that nobody submits."""
    said = shell("launch", "--dry-run", "-m", *LOCAL, "seed=1,2")
    assert said.code == 0
    head, *runs = said.out.splitlines()
    assert head == "2 runs on this machine"
    assert [line.split()[0].rpartition(".")[2] for line in runs] == ["0", "1"]
    assert [line.split()[-1] for line in runs] == ["seed=1", "seed=2"]


def test_this_machine_is_not_advised_where_its_administrators_rule_it_out(shell: Any) -> None:
    """Without Slurm either, the next try would be refused."""
    shell.environ = {**shell.environ, "PATH": "/nowhere", "HPCKIT_NO_LOCAL": "1"}
    for verb in ("launch", "check"):
        said = shell(verb, "cluster=slurm", "--", "/bin/true")
        assert "cluster=local" not in said.out + said.err
        assert "sbatch was not found" in said.out + said.err


def test_no_run_starts_on_a_login_node_where_that_is_ruled_out(shell: Any) -> None:
    """What a site's module sets: refused before anything is written, with what to do."""
    shell.environ = {**shell.environ, "HPCKIT_NO_LOCAL": "1"}
    for verb in (("launch",), ("launch", "--dry-run"), ("check",)):
        said = shell(*verb, "cluster=local", "--", "true")
        assert said.code == 2
        assert "cluster=slurm" in said.err
    assert not list(shell.cwd.iterdir())
