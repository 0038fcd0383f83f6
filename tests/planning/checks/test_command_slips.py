"""Promises of planning.checks.command_slips: signs that nothing will read, and the cure."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.model.finding import Finding, Severity
from hpckit.model.launch import Resources
from hpckit.planning.checks.command_slips import find_command_mistakes

TWO_NODES = Resources(nodes=2)
KEYS = frozenset({"params.lr", "model.optimizer.lr", "seed", "params.name"})


def slips(command: str, **resources: Any) -> list[Finding]:
    """Return what is said of a command, with these resources and KEYS in the configuration."""
    return list(find_command_mistakes(shlex.split(command), Resources(**resources), KEYS))


@pytest.mark.parametrize(
    ("words", "cures"),
    [
        (("python", "train.py", "$params.lr"), ["write ${params.lr}"]),
        (("python", "train.py", "--lr={params.lr}"), ["write ${params.lr}"]),
        (("python", "train.py", "$HOME/data"), ["use a shell"]),
        (("python", "train.py", "${HOME}/data"), ["use a shell"]),
        (("python", "train.py", "~/data"), ["use a shell"]),
        (("python", "train.py", "$params.lr", "$HOME"), ["use a shell", "write ${params.lr}"]),
        (("LR=1", "python", "train.py"), ["set the variable in the configuration, env.LR=1"]),
        (("python", "train.py", "0.1"), []),
        (("python", "train.py", "cost=5$", "a$1"), []),
        (("bash", "-c", "echo $HOME | awk '{print}' > {x}"), []),
        (("bash", "-euo", "pipefail", "-c", "echo $HOME"), []),
        (("python", "-c", "print(f'{x} $HOME'); exit()"), []),
        (("bash", "-c", "echo $params.lr"), ["write ${params.lr}"]),
        (("my program", "--lr", "1"), []),
        (("find", ".", "-exec", "rm", "{}", ";"), []),
        (("awk", "{print $NF}", "f"), []),
        (("psql", "-c", "select 1;"), []),
        (("python", "train.py", "--wait"), ["if it is meant for hpckit: hpckit launch --wait -- …"]),
        (("python", "train.py", "--dry-run", "--json"), []),
    ],
)
def test_slips_name_the_way_out(words: tuple[str, ...], cures: list[str]) -> None:
    """A configured value is no variable of a shell: another cure, and a shell would lose it."""
    found = [finding.hint for finding in find_command_mistakes(words, Resources(), KEYS)]
    assert [hint[: len(cure)] for hint, cure in zip(found, cures, strict=True)] == cures


HIDDEN = "leave the pipe out"


@pytest.mark.parametrize(
    ("words", "cures"),
    [
        (("bash", "-c", "python train.py | tee out.txt"), [HIDDEN]),
        (("sh", "-c", "cd x && LR=1 torchrun train.py 2>&1 | tee out.txt"), [HIDDEN]),
        (("env", "A=1", "bash", "-lc", "uv run python train.py |& grep -v x | tee y"), [HIDDEN]),
        (("bash", "-c", "./train | tee out.txt"), [HIDDEN]),
        (("bash", "-c", "bash train.sh|tee out.txt"), [HIDDEN]),
        (("bash", "-c", "set -o pipefail; python train.py | tee out.txt"), []),
        (("bash", "-euo", "pipefail", "-c", "python train.py | tee out.txt"), []),
        (("bash", "-c", "python train.py | tee out.txt; exit ${PIPESTATUS[0]}"), []),
        (("bash", "-c", "zcat data.gz | python train.py"), []),
        (("bash", "-c", "python train.py || echo failed; nvidia-smi | head"), []),
        (("bash", "-c", "python train.py --sep 'a|b'"), []),
        (("python", "train.py", "a|b"), []),
    ],
)
def test_pipe_that_hides_a_failure_is_said(words: tuple[str, ...], cures: list[str]) -> None:
    """A pipe ends as its last program: without pipefail a failed training looks completed."""
    found = list(find_command_mistakes(words, Resources(), KEYS))
    assert [finding.hint[: len(HIDDEN)] for finding in found] == cures
    assert all(finding.severity is Severity.warning for finding in found)


def test_shell_that_is_proposed_for_a_pipe_keeps_failures() -> None:
    """The line that a warning proposes does not itself hide how the program ended."""
    (found,) = find_command_mistakes(("python", "train.py", "|", "tee", "x"), Resources(), KEYS)
    line = shlex.split(found.hint)[-1]
    assert line == "set -o pipefail; python train.py | tee x"


@pytest.mark.parametrize("sign", ["|", "&&", ";", ">", ">>", "2>", "<", "&"])
def test_signs_of_a_shell_are_shown_where_one_reads_them(sign: str) -> None:
    """The cure is the same line, behind `bash -c`."""
    (found,) = slips(f"python train.py '{sign}' log")
    assert f"{sign} in command is not expanded" in found.message
    given = shlex.split(found.hint)
    assert given[-2:] == ["-c", f"{'set -o pipefail; ' * (sign == '|')}python train.py {sign} log"]


def test_line_for_a_shell_keeps_words_together() -> None:
    """A variable is expanded within quotation marks, and nothing else of its word is."""
    words = ("printf", "%s,", "$HOME/a b", "~/x", 'c"d', "e f;", "|", "cat")
    (found,) = find_command_mistakes(words, Resources(), KEYS)
    line = shlex.split(found.hint.partition("; or insert")[0])[-1]
    said = subprocess.run(
        ["bash", "-c", line], env={"HOME": "/h"}, stdout=subprocess.PIPE, text=True, check=True
    )
    assert said.stdout == '/h/a b,/h/x,c"d,e f;,'


def test_variable_may_also_be_inserted_at_launch() -> None:
    """Who means the variable of the launching shell need not start one on the node."""
    assert "${oc.env:DATA}" in slips("python train.py $DATA")[0].hint
    assert "${oc.env:DATA}" in slips("python train.py ${DATA}/x")[0].hint


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("{lr}", "params.lr"),
        ("--lr={lr}", "params.lr"),
        ("{optimizer.lr}", "model.optimizer.lr"),
        ("{seed}", "seed"),
        ("{unknown}", "unknown"),
        ("run-{name}.txt", "params.name"),
        ("{epoch:02d}-{unknown}.pt", None),
        ("{epoch}.pt", None),
        ("{{lr}}", None),
        ("${lr}", None),
        ('{"lr": 1}', None),
        ("{a,b}", None),
    ],
)
def test_placeholder_that_nothing_fills_is_said(word: str, meant: str | None) -> None:
    """A whole value in braces, or the name of a key; what the script itself fills is left alone."""
    found = [slip for slip in slips(f"python train.py {shlex.quote(word)}") if "{" in slip.message]
    braced = [one.hint.partition(",")[0] for one in found if "no shell" not in one.message]
    assert braced == ([] if meant is None else [f"write ${{{meant}}}"])


@pytest.mark.parametrize(
    ("command", "resources", "launcher", "cure"),
    [
        ("torchrun --nproc 2 train.py --lr 1", {"tasks_per_node": 2}, "torchrun", "train.py --lr 1"),
        ("accelerate launch train.py", {"tasks_per_node": 2}, "accelerate launch", "train.py"),
        ("deepspeed train.py", {"tasks_per_node": 2}, "deepspeed", "train.py"),
        ("srun python train.py", {"tasks_per_node": 2}, "srun", "train.py"),
        ("mpirun -n 2 python train.py", {"nodes": 2}, "mpirun", "train.py"),
        ("torchrun train.py", {"nodes": 2}, "torchrun", "train.py"),
        ("python -m torch.distributed.run t.py", {"nodes": 2}, "torch.distributed.run", "t.py"),
        ("python -u -m torch.distributed.run t.py", {"nodes": 2}, "torch.distributed.run", "t.py"),
        ("torchrun -m pkg.train x", {"tasks_per_node": 2}, "torchrun", "-m pkg.train x"),
        ("env A=1 torchrun train.py", {"tasks_per_node": 2}, "torchrun", "train.py"),
        ("bash -c 'cd x && torchrun train.py'", {"tasks_per_node": 2}, "torchrun", "train.py"),
        ("bash -c 'A=1 exec torchrun t.py'", {"tasks_per_node": 2}, "torchrun", "t.py"),
    ],
)
def test_launcher_of_ranks_is_said_with_what_to_write(
    command: str, resources: dict[str, int], launcher: str, cure: str
) -> None:
    """Hpckit starts the ranks: the cure is the same command without the launcher.

    It is refused, as each rank would train alone, and the run would count as completed. A step of
    srun need not train.
    """
    (found,) = slips(command, **resources)
    assert found.message.startswith(f"{launcher} starts its own ranks")
    assert f" -- python {cure};" in found.hint
    assert found.severity is (Severity.warning if launcher == "srun" else Severity.error)


def test_cure_of_a_launcher_has_its_ranks() -> None:
    """Those of a node that it was told of become hpckit's."""
    (found,) = slips("torchrun --nproc-per-node=4 train.py", nodes=2)
    shape = "resources.nodes=2 resources.tasks_per_node=4"
    assert f"hpckit launch {shape} -- python train.py;" in found.hint


def test_launcher_in_one_chosen_rank_is_not_refused() -> None:
    """The line of a shell may start it on one node only: it is said, and runs."""
    (found,) = slips("bash -c 'if [ $RANK = 0 ]; then torchrun t.py; fi'", nodes=2)
    assert found.severity is Severity.warning


def test_launcher_of_mpi_names_the_way_of_mpi() -> None:
    """A program that is no Python is not advised to become train.py."""
    (found,) = slips("mpirun -n 2 ./solve", tasks_per_node=2)
    assert "train.py" not in found.hint
    assert "srun --mpi=pmix" in found.hint


@pytest.mark.parametrize(
    ("command", "resources"),
    [
        ("torchrun --nproc-per-node 2 train.py", {}),
        ("torchrun --nnodes 2 --rdzv-endpoint h:1 train.py", {"nodes": 2}),
        ("accelerate launch --main_process_ip h train.py", {"nodes": 2}),
        ("python train.py --launcher torchrun", {"tasks_per_node": 2}),
        ("accelerate config", {"tasks_per_node": 2}),
        ("bash -c 'echo torchrun'", {"tasks_per_node": 2}),
        ("bash run.sh torchrun", {"tasks_per_node": 2}),
    ],
)
def test_launcher_that_starts_each_rank_once_is_fine(command: str, resources: dict[str, int]) -> None:
    """One task a node, and nodes that find each other; or a word that starts nothing."""
    assert slips(command, **resources) == []


LAUNCHERS = [
    "torchrun train.py",
    "/opt/x/bin/torchrun --nproc-per-node 4 train.py",
    "python /opt/x/bin/torchrun train.py",
    "python /x/site-packages/torch/distributed/run.py train.py",
    "python -u -m torch.distributed.run --nproc_per_node=2 train.py",
    "python -m torch.distributed.launch train.py",
    "accelerate launch --multi_gpu train.py",
    "python -m accelerate.commands.launch train.py",
    "deepspeed --num_gpus 2 train.py",
    "python -m deepspeed train.py",
    "python -m deepspeed.launcher.runner train.py",
    "mpirun.openmpi -n 2 python train.py",
    "mpiexec.hydra -n 2 python train.py",
    "horovodrun -np 2 python train.py",
]
PROGRAMS = [
    "echo torchrun",
    "grep deepspeed log",
    "python train.py torchrun",
    "python train.py --launcher torchrun --nnodes 2",
    "python my_torchrun_notes.py",
    "python ds.py --deepspeed ds.json",
    "accelerate config",
    "command -v torchrun",
    "torchrun --help",
    "mpirun --version",
    "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint $H:1 train.py",
    "python -m torch.distributed.run --master_addr=x train.py",
]
BEFORE = [
    "nohup",
    "time",
    "time -p",
    "env A=1",
    "env -u X",
    "env -i A=1 B=2",
    "/usr/bin/env",
    "nice -n 5",
    "nice -5",
    "taskset -c 0",
    "numactl -N 0 --membind=0",
    "stdbuf -oL",
    "timeout -k 5 1h",
    "sudo -u x",
    "uv run",
    "uv run --with numpy --",
    "poetry run",
    "conda run --no-capture-output -n x",
    "apptainer exec --nv -B /data image.sif",
]
IN_SHELL = [
    "exec {}",
    "A=1 {}",
    "( {} )",
    "cd x && {}",
    "set -e; {}",
    "if true; then {}; fi",
    "while ! {}; do true; done",
    "{{ {}; }}",
    "# first\n{}",
    "module load x # it's\n{} \\\n",
]


@st.composite
def started(draw: st.DrawFn, commands: list[str]) -> list[str]:
    """Return a command behind words that merely start it, perhaps in a line for a shell."""
    line = draw(st.sampled_from(commands))
    for before in draw(st.lists(st.sampled_from(BEFORE), max_size=2)):
        line = f"{before} {line}"
    words = shlex.split(line)
    if draw(st.booleans()):
        inner = draw(st.sampled_from(IN_SHELL)).format(line)
        shell = draw(st.sampled_from(["bash -c", "bash -lc", "sh -e -c", "nohup /bin/bash -c"]))
        words = [*shlex.split(shell), inner]
    return words


@given(started(LAUNCHERS))
def test_words_before_a_launcher_do_not_hide_it(words: list[str]) -> None:
    """Each node would train alone; with one node and one task it may run."""
    assert any(found.severity is Severity.error for found in find_command_mistakes(words, TWO_NODES))
    assert not [f for f in find_command_mistakes(words, Resources()) if f.severity is Severity.error]


@given(started(PROGRAMS))
def test_words_before_a_program_do_not_make_it_a_launcher(words: list[str]) -> None:
    """Names of launchers among a program's own words are no launchers."""
    assert not [f for f in find_command_mistakes(words, TWO_NODES) if f.severity is Severity.error]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("behind", ["--rdzv_endpoint h:1", "--master_addr=x", "--nproc=8"])
def test_words_behind_the_script_change_nothing(launcher: str, behind: str) -> None:
    """They are the script's own, whatever a launcher would make of them."""
    told = slips(launcher, nodes=2)
    assert [f.hint.replace(f" {behind}", "") for f in slips(f"{launcher} {behind}", nodes=2)] == [
        f.hint for f in told
    ]
