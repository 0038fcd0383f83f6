"""Promises of `hpckit check`, and of the check before a launch, on a fake Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.slurm.store import GPUS

from hpckit.record.launches import load_launch, load_run_settings
from hpckit.record.snapshot.environment import find_cpu_only_torch

QUICK = ("experiment=command", "command=sleep 60", "code.snapshot=false")
SLURM = (*QUICK, "cluster=slurm")
FUNCTION = ("experiment=function", "cluster=local")


def findings(said: Any) -> list[tuple[str, str]]:
    """Return severity and key of what `check --json` found."""
    return [(load["severity"], load["key"]) for load in json.loads(said.out)["findings"]]


def test_check_says_when_it_would_start_and_what_it_costs(slurm_shell: Any) -> None:
    """Of a launch that fits: no findings, Slurm's forecast, the most it takes; exit code 0."""
    words = (*SLURM, "resources.gpus_per_node=2", "cluster.gpus_per_node=8")
    said = slurm_shell("check", "-m", "--json", *words, "resources.timeout_min=30", "seed=1,2,3")
    assert said.code == 0, said.err
    document = json.loads(said.out)
    assert (document["ok"], document["findings"], document["unchecked"]) == (True, [], [])
    assert document["estimate"]["gpu_hours"] == pytest.approx(3)
    assert document["starts"][0]["at"].startswith("2026-01-02T")
    shown = slurm_shell("check", *SLURM)
    assert "start    job 0: 2026-01-02" in shown.out
    assert "at most  1 CPU-hours" in shown.out
    for minutes, hours in ((2, "0.03"), (50, "0.83")):
        shown = slurm_shell("check", *SLURM, f"resources.timeout_min={minutes}")
        assert f"at most  {hours} CPU-hours" in shown.out


def test_check_leaves_nothing_and_submits_nothing(slurm_shell: Any, fake_slurm: Any) -> None:
    """Neither a folder nor a job is there afterwards."""
    assert slurm_shell("check", *SLURM).code == 0
    assert list(slurm_shell.cwd.iterdir()) == []
    assert fake_slurm.slurm("squeue", "--Format=JobArrayID:0|", "--states=all") == ""


@pytest.mark.parametrize("verb", ["check", "launch"])
def test_setup_that_bash_cannot_read_is_refused(slurm_shell: Any, verb: str) -> None:
    """Before anything is written or submitted."""
    said = slurm_shell(verb, *SLURM, "cluster.setup=['true','echo $((1']")
    assert (said.code, "bash cannot read line 2 of cluster.setup" in said.err + said.out) == (2, True)
    assert slurm_shell.outputs == []


def test_check_looks_for_the_python_of_this_machine(shell: Any) -> None:
    """A cluster.python that is not there is an error here, before a folder is made."""
    words = ("experiment=command", "command=[true]", "cluster=local", "cluster.python=/no/python")
    for verb in ("check", "launch"):
        said = shell(verb, *words)
        assert said.code == 2
        assert "there is no such program on this machine" in said.out + said.err
    assert shell.outputs == []


def test_check_names_how_to_run_a_file_that_is_no_program(shell: Any) -> None:
    """`-- train.py` is answered with `python train.py` if that file is here."""
    (shell.cwd / "train.py").write_text("print(1)\n")
    said = shell("launch", "cluster=local", "--", "train.py")
    assert (said.code, "write python train.py" in said.err) == (2, True)


@pytest.mark.parametrize("verb", ["check", "launch"])
@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("resources.partition=bacth",), "did you mean resources.partition=batch"),
        (("resources.timeout_min=20000",), "allows 10080"),
        (("resources.nodes=9",), "has 4"),
        (
            ("resources.gpus_per_node=1", "cluster.gpus_per_node=8", "budget.gpu_hours=0.5"),
            "budget.gpu_hours allows 0.5",
        ),
        (
            ("resources.mem_gb=1", "+resources.additional_parameters.mem_per_cpu=1G"),
            "only one of --mem and --mem-per-cpu",
        ),
        (("command=python nowhere.py",), "no file nowhere.py"),
        (("resources.cpus_per_task=65",), "65 CPUs; the largest node of partition batch has 64"),
        (("resources.mem_gb=300",), "300 GB; the largest node of partition batch has 250 GB"),
        (
            ("-m", "seed=range(0,65)", "sweep.runs_per_job=65"),
            "65 runs x 1 CPU = 65; the largest node of partition batch has 64",
        ),
        (
            ("resources.gpus_per_node=4", "cluster.gpus_per_node=8", "resources.gres=gpu:a100:4"),
            "both ask for GPUs",
        ),
        (
            ("resources.constraint=a", "+resources.additional_parameters.constraint=b"),
            "sbatch takes the second alone",
        ),
    ],
)
def test_errors_refuse_before_anything_is_written(
    slurm_shell: Any, verb: str, words: tuple[str, ...], key: str
) -> None:
    """Exit code 2, the reason in words, and no folder: for both verbs alike."""
    said = slurm_shell(verb, *SLURM, *words)
    assert said.code == 2
    assert key in said.out + said.err
    assert not (slurm_shell.cwd / "outputs").exists()
    if verb == "launch":
        assert said.out == ""


def test_no_check_leaves_it_to_slurm(slurm_shell: Any) -> None:
    """With --no-check Slurm alone decides: its own refusal has its own exit code."""
    said = slurm_shell("launch", "--no-check", *SLURM, "resources.partition=bacth")
    assert said.code == 3
    assert "Slurm refused" in said.err


def test_warnings_are_said_and_the_launch_goes_on(slurm_shell: Any) -> None:
    """A path that this machine does not have is named on standard error, and no obstacle."""
    said = slurm_shell("launch", "--json", *SLURM, "+params.data.path=/no/such/data")
    assert said.code == 0, said.err
    assert "hpckit: warning: params.data.path names /no/such/data" in said.err
    assert json.loads(said.out)["jobs"]


def test_drained_nodes_are_no_refusal(slurm_shell: Any, fake_slurm: Any) -> None:
    """What --test-only refuses while nodes are away is a warning: sbatch would let it wait."""
    fake_slurm.fail("nodes-drained")
    said = slurm_shell("check", "--json", *SLURM)
    assert said.code == 0
    assert findings(said) == [("warning", "resources")]


def test_the_users_defaults_count_where_nothing_is_said(slurm_shell: Any) -> None:
    """SBATCH_PARTITION is what sbatch takes, so it is what is checked; a stated one wins."""
    slurm_shell.environ["SBATCH_PARTITION"] = "nowhere"
    assert findings(slurm_shell("check", "--json", *SLURM)) == [("error", "resources.partition")]
    assert slurm_shell("check", *SLURM, "resources.partition=batch").code == 0


def test_a_controller_that_is_away_is_said_and_refuses_nothing(slurm_shell: Any, fake_slurm: Any) -> None:
    """What could not be asked stands under `unchecked`, once."""
    fake_slurm.fail("controller-away")
    said = slurm_shell("check", "--json", *SLURM)
    assert said.code == 0
    (reason,) = json.loads(said.out)["unchecked"]
    assert "Unable to contact slurm controller" in reason


def test_off_the_cluster_it_checks_what_it_can(shell: Any) -> None:
    """Without sbatch, options and code are looked at, and what is not is said."""
    said = shell("check", "--json", *SLURM, "+resources.additional_parameters.cpus_per_gpu=2")
    assert said.code == 2
    assert findings(said) == [("error", "resources.additional_parameters.cpus_per_gpu")]
    assert "sbatch was not found" in json.loads(said.out)["unchecked"][0]


@pytest.mark.parametrize(
    ("source", "code", "found"),
    [
        ("def main(config, run): ...\n", 0, []),
        ("def mian(run): ...\n", 2, [("error", "entry_point")]),
        ("def main(config, run) ...\n", 2, [("error", "entry_point")]),
        ("raise SystemExit('imported')\ndef main(config, run): ...\n", 0, []),
        ("def main(config): ...\n", 2, [("error", "entry_point")]),
        ("async def main(config, run): ...\n", 2, [("error", "entry_point")]),
        ("import hydra\n@hydra.main()\ndef main(cfg): ...\n", 2, [("error", "entry_point")]),
        (None, 2, [("error", "entry_point")]),
    ],
)
def test_entry_point_is_looked_for_and_not_imported(
    shell: Any, source: str | None, code: int, found: list[tuple[str, str]]
) -> None:
    """A missing module, one that is no Python and one without the name refuse the launch."""
    if source is not None:
        (shell.cwd / "task.py").write_text(source)
    said = shell("check", "--json", *FUNCTION, "entry_point=task:main")
    assert (said.code, findings(said)) == (code, found), said.out + said.err


def test_code_that_git_ignores_will_not_be_on_the_nodes(shell: Any) -> None:
    """A module that exists here, but not in the snapshot, is an error that says why."""
    (shell.cwd / "task.py").write_text("def main(config, run): ...\n")
    (shell.cwd / ".gitignore").write_text("task.py\n")
    subprocess.run(["git", "init", "-q", str(shell.cwd)], check=True)
    said = shell("check", *FUNCTION, "entry_point=task:main")
    assert said.code == 2
    assert "git ignores it" in said.out
    assert shell("check", *FUNCTION, "entry_point=task:main", "code.snapshot=false").code == 0


def test_a_program_that_is_missing_refuses_here_and_warns_for_nodes(shell: Any, slurm_shell: Any) -> None:
    """Nodes and modules may have what this machine has not."""
    words = ("--json", "experiment=command", "command=no-such-program 1")
    assert findings(shell("check", *words, "cluster=local")) == [("error", "command")]
    assert findings(slurm_shell("check", *words, "cluster=slurm")) == [("warning", "command")]


def test_weights_of_others_are_refused_and_missing_ones_warned_about(shell: Any, tmp_path: Path) -> None:
    """What ranks would refuse to begin with is told before it waits in the queue."""
    task = ("--json", "cluster=local", "experiment=command", "command=[true]")
    file = tmp_path / "model.safetensors"
    asked = (*task, f"checkpoint.weights={file}")
    assert findings(shell("check", *asked)) == [("error", "checkpoint.weights")]
    far = [one for one in asked if one != "cluster=local"]
    assert ("warning", "checkpoint.weights") in findings(shell("check", "cluster=slurm", *far))
    file.write_bytes(b"")
    assert findings(shell("check", *asked)) == []
    file.chmod(0o666)
    assert findings(shell("check", *asked)) == [("error", "checkpoint.weights")]
    asked = (*task, f"checkpoint.weights={tmp_path}")
    assert findings(shell("check", *asked)) == [("error", "checkpoint.weights")]
    file.chmod(0o600)
    assert findings(shell("check", *asked)) == []
    file.unlink()
    assert findings(shell("check", *asked)) == [("error", "checkpoint.weights")]


def test_python_without_hpckit_is_named_before_runs_fail_of_it(shell: Any, tmp_path: Path) -> None:
    """It exists, so only asking it tells; a job may add what this machine lacks."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    words = ("check", "--json", f"cluster.python={python}")
    here = shell(*words, "cluster=local", "--", "true")
    assert findings(here) == [("error", "cluster.python")]
    assert "hpckit is not installed for it here" in here.out
    assert ("warning", "cluster.python") in findings(shell(*words, "cluster=slurm", "--", "true"))


def test_modules_that_the_nodes_would_not_have_are_named(shell: Any) -> None:
    """The first run would fail at them, unless a set-up brings them: so it is a warning."""
    (shell.cwd / "task.py").write_text("import nowhere\ndef main(config, run): ...\n")
    (shell.cwd / "train.py").write_text("import task\n")
    words = ("check", "--json", "cluster=local")
    command = shell(*words, "--", "python", "train.py")
    assert findings(command) == [("warning", "command")]
    assert "train.py imports nowhere" in command.out
    function = shell(*words, *FUNCTION, "entry_point=task:main")
    assert findings(function) == [("warning", "entry_point")]
    (shell.cwd / "more").mkdir()
    (shell.cwd / "more" / "nowhere.py").touch()
    helped = shell(*words, "env.PYTHONPATH=more", "--", "python", "train.py")
    assert findings(helped) == []
    assert findings(shell(*words, "--", "/usr/bin/python3", "train.py")) == []


def test_saved_state_that_would_go_into_every_run_is_warned_of(shell: Any) -> None:
    """A trial's last.ckpt is no code; one that git tracks is meant."""
    (shell.cwd / "train.py").write_text("")
    (shell.cwd / "last.ckpt").write_bytes(b"x")
    git = ["git", "-C", str(shell.cwd), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    words = ("check", "--json", "cluster=local", "--", "python", "train.py")
    said = shell(*words)
    assert findings(said) == [("warning", "code.snapshot")]
    assert "last.ckpt will be in the folder of every run" in said.out
    subprocess.run([*git, "add", "."], check=True)
    assert findings(shell(*words)) == []


def test_checkpoint_dir_that_cannot_be_is_warned_about(shell: Any, tmp_path: Path) -> None:
    """The folder itself need not exist, but something above it has to."""
    (shell.cwd / "task.py").write_text("def main(config, run): ...\n")
    words = ("--json", *FUNCTION, "entry_point=task:main")
    missing = shell("check", *words, "checkpoint.dir=/no-such-scratch/me")
    assert findings(missing) == [("warning", "checkpoint.dir")]
    assert findings(shell("check", *words, f"checkpoint.dir={tmp_path}/new")) == []


COMMAND = ("experiment=command", "cluster=local", "code.snapshot=false")


@pytest.mark.parametrize(("text", "code"), [("print(1)", 0), ("import hpckit", 2)])
def test_check_refuses_a_loop_that_would_leave_at_once(slurm_shell: Any, text: str, code: int) -> None:
    """A plain command is told of the time limit by Slurm alone: one minute is enough for it."""
    (slurm_shell.cwd / "train.py").write_text(text)
    words = ("experiment=command", "cluster=slurm", "code.snapshot=false", "command=python train.py")
    said = slurm_shell("check", *words, "resources.timeout_min=1")
    assert (said.code, "as soon as it began" in said.out + said.err) == (code, code == 2)


@pytest.mark.parametrize(
    ("text", "layout", "warnings"),
    [
        ("print('DDP by hand')", "parallel=fsdp", 1),
        ("import hpckit; run = hpckit.attach()", "parallel=fsdp", 0),
        ("print('DDP by hand')", "parallel=none", 0),
    ],
)
def test_check_warns_of_a_command_that_follows_no_layout(
    shell: Any, text: str, layout: str, warnings: int
) -> None:
    """Each of its ranks would train the whole model and complete; a function is refused then."""
    (shell.cwd / "train.py").write_text(text)
    said = shell("check", *COMMAND, "resources=cpu_pair", "command=python train.py", layout)
    assert said.code == 0
    assert (said.out + said.err).count("train.py does not mention hpckit") == warnings


@pytest.mark.parametrize(
    ("command", "word", "warnings"),
    [
        ("train.py --lr 0.2", "+lr=0.5", 1),
        ("train.py --lr 0.2", "+optim.lr=0.7", 1),
        ("train.py --lr ${lr}", "+lr=5e-1", 0),
        ("train.py --lr 0.2", "+env.LR=0.5", 0),
        ("reads.py", "+lr=0.5", 0),
    ],
)
def test_check_warns_of_an_added_key_that_a_command_does_not_get(
    shell: Any, command: str, word: str, warnings: int
) -> None:
    """Its run would be recorded with a value that it never had."""
    (shell.cwd / "train.py").write_text("print('DDP by hand')")
    (shell.cwd / "reads.py").write_text("import hpckit; run = hpckit.attach()")
    said = shell("check", *COMMAND, f"command=python {command}", word)
    assert said.code == 0, said.err
    assert (said.out + said.err).count(f"{word} changes nothing") == warnings


@pytest.mark.parametrize(
    ("text", "words", "warnings"),
    [
        ("", ("command=python train.py --lr 0.5",), 1),
        ("", ("command=python train.py --lr ${params.lr}",), 0),
        ("", ("command=python train.py", "env.LR=${params.lr}"), 0),
        ("import os; os.environ['HPCKIT_CONFIG']", ("command=python train.py",), 0),
        ("import hpckit", ("command=python train.py",), 0),
    ],
)
def test_check_warns_of_a_sweep_that_its_command_does_not_read(
    shell: Any, text: str, words: tuple[str, ...], warnings: int
) -> None:
    """All its runs would be the same, and their results look like an experiment."""
    (shell.cwd / "train.py").write_text(text)
    quoted = [w.replace("command=", 'command="') + '"' if w[:8] == "command=" else w for w in words]
    quoted = [f"+{one}" if one.startswith("env.") else one for one in quoted]
    said = shell("check", *COMMAND, "-m", "+params.lr=0.1,0.2", *quoted)
    assert said.code == 0
    assert (said.out + said.err).count("differ in params.lr, and start the same") == warnings


@pytest.mark.parametrize(
    ("words", "said", "severity"),
    [
        (("command=python -m train3",), "module train3 of the command is neither in", "error"),
        (("command=bash run.sh",), "there is no file run.sh in", "error"),
        (("command=./tool",), "tool is not executable", "error"),
        (("command=torchrun --nproc-per-node 2 nowhere.py",), "no file nowhere.py", "error"),
        (
            ("command=torchrun --nproc-per-node 2 train.py", "resources=cpu_pair"),
            "torchrun starts its own ranks, in each of the 2 tasks",
            "error",
        ),
        (("command=python solve.py", "resources=cpu_pair"), "is a program of MPI", "error"),
        (("command=python train.py --data $DATA",), "$DATA in command is not expanded", "warning"),
        (("command=python train.py | tee log",), "| in command is not expanded", "warning"),
        (("command=python train.py --lr {lr}",), "{lr} in command is not expanded", "warning"),
        (
            ("command=true", "cluster.setup=['false']", "resources.timeout_min=5"),
            "nothing reads cluster.setup, resources.timeout_min",
            "warning",
        ),
        (("command=true", "-m", "+params.lr=1,1,2"), "1 run of this sweep is the same", "warning"),
    ],
)
def test_check_finds_what_was_hardly_meant(
    shell: Any, words: tuple[str, ...], said: str, severity: str
) -> None:
    """What ran on silently, or failed on the node, is said beforehand."""
    (shell.cwd / "train.py").write_text("")
    (shell.cwd / "solve.py").write_text("from mpi4py import MPI\n")
    (shell.cwd / "tool").write_text("#!/bin/sh\n")
    quoted = [w.replace("command=", 'command="') + '"' if w[:8] == "command=" else w for w in words]
    found = json.loads(shell("check", "--json", *COMMAND, *quoted).out)["findings"]
    assert [one["severity"] for one in found if said in one["message"]] == [severity], found


def test_check_refuses_a_script_outside_of_the_project(shell: Any) -> None:
    """A run starts in a folder of its own: `..` leads elsewhere; a whole path is fine."""
    script = shell.cwd.parent / "train.py"
    script.write_text("")
    words = ("check", "--json", "experiment=command", "cluster=local")
    (found,) = json.loads(shell(*words, "command=python ../train.py").out)["findings"]
    assert found["severity"] == "error"
    assert "it leads out of the project" in found["message"]
    (shell.cwd / "train.py").write_text("")
    back = f"command=python ../{shell.cwd.name}/train.py"
    (found,) = json.loads(shell(*words, back).out)["findings"]
    assert "it leads out of the project" in found["message"]
    assert not json.loads(shell(*words, f"command=python {script}").out)["findings"]
    assert not json.loads(shell(*words, *COMMAND, "command=python ../train.py").out)["findings"]


def test_check_refuses_a_command_that_is_one_quoted_word(shell: Any) -> None:
    """As nothing has such a name; a file whose path has spaces is fine."""
    (shell.cwd / "sub dir").mkdir()
    tool = shell.cwd / "sub dir" / "my tool.sh"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    check = ("check", "cluster=local", "code.snapshot=false", "--")
    said = shell(*check, "python train.py --lr 1")
    assert said.code == 2
    assert "leave its quotes out: hpckit launch -- python train.py --lr 1" in said.out + said.err
    fine = shell(*check, "sub dir/my tool.sh")
    assert "quotes" not in fine.out + fine.err


def test_check_is_content_with_what_a_shell_reads(shell: Any) -> None:
    """Words for a shell are left to it; a module that is there and one rank each are fine."""
    (shell.cwd / "train.py").write_text("")
    for command in ("[bash,-c,'echo $HOME | cat']", "'\"python -m train\"'", "'\"torchrun train.py\"'"):
        words = ("check", "--json", *COMMAND, f"command={command.strip(chr(39))}")
        assert json.loads(shell(*words).out)["findings"] == [], command


def test_check_warns_of_data_that_git_ignores(shell: Any) -> None:
    """A relative path that exists here and is not in the snapshot: in a key, and in a command."""
    subprocess.run(["git", "init", "-q"], cwd=shell.cwd, check=True)
    (shell.cwd / ".gitignore").write_text("data/\noutputs/\n")
    (shell.cwd / "data").mkdir()
    (shell.cwd / "data/x.npz").write_text("")
    (shell.cwd / "kept.npz").write_text("")
    (shell.cwd / "train.py").write_text("")
    run = ("check", "--json", "experiment=command", "cluster=local")
    ignored = f"data/x.npz exists in {shell.cwd}, but the run will not find it: git ignores it"
    for words in (
        ("command=true", "+params.data=data/x.npz"),
        ('command="python train.py --data data/x.npz"',),
        ('command="python train.py --data=data/x.npz"',),
    ):
        found = json.loads(shell(*run, *words).out)["findings"]
        assert [one["message"][: len(ignored)] for one in found] == [ignored], found
        assert str(shell.cwd / "data/x.npz") in found[0]["hint"]
    fine = ("command=true", "+params.data=kept.npz", "+params.dataset=mnist", "+params.path=.")
    assert json.loads(shell(*run, *fine).out)["findings"] == []
    lost = json.loads(shell(*run, "command=true", "+params.data=data/nope.npz").out)["findings"]
    assert "does not exist in" in lost[0]["message"]


def test_equal_runs_are_named(slurm_shell: Any) -> None:
    """Which runs are the same, and what they have in common."""
    said = slurm_shell("check", *SLURM, "-m", "seed=1,2,1", "+x=3,3")
    assert "4 runs of this sweep are the same as another run of it" in said.out
    assert "runs 0, 1, 4, 5 (" in said.out
    assert "runs 2, 3 (" in said.out


def test_check_reads_a_command_as_its_interpreter_does(shell: Any) -> None:
    """Options of a script are its own, and those of an interpreter may take values."""
    (shell.cwd / "train.py").write_text("")
    (shell.cwd / "run.sh").write_text("")
    for command in ("python train.py -m train3", "bash -o pipefail run.sh", "python -W error train.py"):
        words = ("check", "--json", *COMMAND, f'command="{command}"')
        assert json.loads(shell(*words).out)["findings"] == [], command


def test_check_looks_where_the_run_starts(shell: Any) -> None:
    """With runtime.cwd=project a run has what git ignores; without it neither file nor script."""
    subprocess.run(["git", "init", "-q"], cwd=shell.cwd, check=True)
    (shell.cwd / ".gitignore").write_text("data/\noutputs/\nrun.sh\nmine.py\n")
    (shell.cwd / "data").mkdir()
    for name in ("data/x.npz", "run.sh", "mine.py"):
        (shell.cwd / name).write_text("")
    for command, severity in (
        ("bash run.sh", "error"),
        ("python mine.py", "error"),
        ("python -m mine", "error"),
        ("ls data/x.npz", "warning"),
    ):
        words = ("check", "--json", "experiment=command", "cluster=local", f'command="{command}"')
        (found,) = json.loads(shell(*words).out)["findings"]
        assert found["severity"] == severity
        assert "git ignores it" in found["message"]
        assert json.loads(shell(*words, "runtime.cwd=project").out)["findings"] == [], command


def test_check_warns_of_gpus_that_pytorch_cannot_use(shell: Any) -> None:
    """Where the PyTorch of this environment is a CPU build, and ranks are to use it."""
    build = find_cpu_only_torch()
    (shell.cwd / "train.py").write_text("def main(config, run): ...\n")
    asked = ("--json", "cluster=local", "cluster.gpus_per_node=1", "resources=one_gpu")
    for words, said in (
        (("experiment=function", "entry_point=train:main"), build is not None),
        (("experiment=command", 'command="python train.py"'), build is not None),
        (("experiment=command", "command=ls"), False),
        (("experiment=function", "entry_point=train:main", "runtime.device=cpu"), False),
    ):
        found = findings(shell("check", *asked, *words))
        assert found == ([("warning", "resources.gpus_per_node")] if said else []), words


def test_check_and_dry_run_say_the_layout(slurm_shell: Any) -> None:
    """What a run shrinks by is read before it is queued; the scripts stay what is submitted."""
    words = (*SLURM, "resources.nodes=2", "resources.tasks_per_node=2", "parallel=fsdp")
    line = "shard 4 (a replica is 2 nodes)"
    assert f"  layout   {line}\n" in slurm_shell("check", *words).out
    assert json.loads(slurm_shell("check", "--json", *words).out)["layouts"] == [line]
    dry = slurm_shell("launch", "--dry-run", *words)
    assert f"layout: {line}" in dry.err
    assert line not in dry.out
    assert json.loads(slurm_shell("launch", "--dry-run", "--json", *words).out)["layouts"] == [line]
    assert "layout" not in slurm_shell("check", *words[:-1]).out


def test_switches_and_segment_reach_the_script(slurm_shell: Any) -> None:
    """A count is typed as a number, with or without a wait; both become lines of the script."""
    words = ("launch", "--dry-run", *SLURM, "resources.nodes=2", "resources.segment=2")
    for switches in ("1", "1@60"):
        shown = slurm_shell(*words, f"resources.switches={switches}").out
        assert f"#SBATCH --switches={switches}\n#SBATCH --segment=2\n" in shown


def test_program_that_is_not_the_active_environments_is_said(shell: Any, tmp_path: Path) -> None:
    """A central hpckit puts its own `python` first, which lacks what the command imports."""
    active = tmp_path / "own" / "bin" / "python"
    active.parent.mkdir(parents=True)
    active.symlink_to(sys.executable)
    words = ("check", "--json", "cluster=local", "--", "python", "-c", "pass")
    shell.environ = {**shell.environ, "VIRTUAL_ENV": str(active.parents[1])}
    said = json.loads(shell(*words).out)
    (found,) = (one for one in said["findings"] if one["key"] == "command")
    assert f"not {active} (from the active one)" in found["message"]
    assert f"cluster.python={active}" in found["hint"]
    chosen = shell(*words[:3], f"cluster.python={sys.executable}", *words[3:])
    assert json.loads(chosen.out)["findings"] == [], "a Python that was set is meant"
    own = str(Path(sys.executable).parents[1])
    shell.environ = {**shell.environ, "VIRTUAL_ENV": own}
    assert json.loads(shell(*words).out)["findings"] == []


def test_cpus_by_gpu_count_as_those_of_a_rank(slurm_shell: Any) -> None:
    """The plan, the cost and the threads of a rank are by what the GPUs bring."""
    words = ("resources=one_gpu", "+resources.additional_parameters.cpus_per_gpu=6")
    said = slurm_shell("launch", "--dry-run", "--json", *SLURM, *words)
    assert said.code == 0, said.err
    (script,) = json.loads(said.out)["scripts"]
    assert "--cpus-per-gpu=6" in script["text"]
    assert "--cpus-per-task" not in script["text"]
    both = slurm_shell("check", "--json", *SLURM, *words, "resources.cpus_per_task=2")
    assert ("error", "resources.additional_parameters.cpus_per_gpu") in findings(both)


def test_slurm_is_asked_how_many_gpus_a_node_has(slurm_shell: Any) -> None:
    """`one_node` on a cluster of which nobody wrote a file takes what its nodes have."""
    said = slurm_shell("launch", "--dry-run", "--json", *SLURM, "resources=one_node")
    (script,) = json.loads(said.out)["scripts"]
    assert f"--gpus-per-node={GPUS}\n#SBATCH" in script["text"]
    assert f"--ntasks-per-node={GPUS}\n" in script["text"]
    assert f"Slurm says that its nodes have {GPUS} GPUs" in said.err
    assert slurm_shell("launch", *SLURM, "resources=one_node").code == 0
    launch = load_launch(slurm_shell.outputs[0])
    assert load_run_settings(launch, 0)[0].cluster.gpus_per_node == GPUS
    typed = [word for word in launch.runs[0].overrides if "gpus_per_node" in word]
    assert typed == [], "what nobody typed is no override"
    elsewhere = ("resources=one_node", "resources.partition=none")
    refused = slurm_shell("launch", "--dry-run", *SLURM, *elsewhere)
    assert refused.code == 2
    assert "cluster.gpus_per_node, which is not stated" in refused.err


def test_gpus_of_a_node_are_those_of_the_default_partition(slurm_shell: Any, fake_slurm: Any) -> None:
    """Where none is named, sbatch takes that one; what a partition has that is named counts."""
    fake_slurm.fail("unlike-partitions")
    words = ("launch", "--dry-run", "--json", *SLURM, "resources=one_node")
    named = "resources.partition=urgent"
    for said, gpus in ((slurm_shell(*words), GPUS), (slurm_shell(*words, named), GPUS // 2)):
        (script,) = json.loads(said.out)["scripts"]
        assert f"--gpus-per-node={gpus}\n#SBATCH" in script["text"]


@pytest.mark.parametrize("group", ["one_node", "multi_node"])
def test_zero_gpus_of_a_node_that_a_word_states_are_not_overridden(slurm_shell: Any, group: str) -> None:
    """They contradict a group that takes all GPUs of a node, and that is said."""
    words = (*SLURM, f"resources={group}", "cluster.gpus_per_node=0")
    said = slurm_shell("launch", "--dry-run", *words)
    assert (said.code, said.out) == (2, "")
    assert "cluster.gpus_per_node=0 says that nodes have no GPUs" in said.err
    assert "leave cluster.gpus_per_node out: hpckit asks Slurm" in said.err


def test_modules_that_git_ignores_are_named(shell: Any) -> None:
    """They are in the project, and not in the frozen code: every run would fail at its import."""
    subprocess.run(["git", "init", "-q"], cwd=shell.cwd, check=True)
    (shell.cwd / ".gitignore").write_text("helper.py\nhelpers/\n")
    (shell.cwd / "helpers").mkdir()
    for name in ("helper.py", "helpers/deep.py"):
        (shell.cwd / name).touch()
    (shell.cwd / "train.py").write_text("import json, helper, helpers.deep\n")
    words = ("check", "--json", "cluster=local")
    for command in (("python", "train.py"), ("python", "-m", "train")):
        said = shell(*words, "--", *command)
        assert findings(said) == [("warning", "command")] * 2, said.out
        for name in ("helper", "helpers"):
            told = f"train.py imports {name}, which is not part of the frozen code: git ignores"
            assert told in said.out
        assert "git add -f it" in said.out
    found = shell(*words, f"env.PYTHONPATH={shell.cwd}", "--", "python", "train.py")
    assert "not part of the frozen code" not in found.out
    live = shell(*words, "--", "python", str(shell.cwd / "train.py"))
    assert "not part of the frozen code" not in live.out
    whole = shell(*words, "code.snapshot=false", "--", "python", "train.py")
    assert findings(whole) == []
