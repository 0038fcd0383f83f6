"""Programs that know Slurm's tasks but not hpckit: what their ranks find on real nodes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpckit.model.rank import TASK_VARIABLES
from hpckit.sandbox import daemons, process
from hpckit.sandbox.lifecycle import require_recorded_options

pytestmark = pytest.mark.slurm

COMPARED = (TASK_VARIABLES | {"SLURM_NNODES", "SLURM_CPUS_PER_TASK"}) - {"SLURM_TASK_PID"}

KEEPS = 'env > "$HPCKIT_PROJECT/$0.$SLURM_PROCID"; test "$SLURM_TASK_PID" = $$'


def variables(file: Path) -> dict[str, str]:
    """Return what a rank or a task kept of its environment, by which it knows who it is."""
    found = dict(line.partition("=")[::2] for line in file.read_text().splitlines())
    return {name: found[name] for name in COMPARED & found.keys()}


@pytest.mark.main
def test_rank_has_the_variables_of_a_task_of_srun(sandbox: Any, project: Any) -> None:
    """Two on each of two nodes, next to Slurm's own step of that shape."""
    shape = ("resources.nodes=2", "resources.tasks_per_node=2", 'resources.nodelist="n[1-2]"')
    done = project.hpckit(
        *("launch", "cluster=sandbox", "recovery=never", "--wait", *shape),
        *("--", "bash", "-c", KEEPS, "rank"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    step = f"srun -n4 --cpus-per-task=1 bash -c '{KEEPS}' task"
    sandbox.slurm(
        "sbatch",
        *("--wait", "-w", "n[1-2]", "-N2", "--ntasks-per-node=2", "--cpus-per-task=1"),
        *("--chdir=/tmp", "--output=/dev/null", f"--export=ALL,HPCKIT_PROJECT={project.folder}"),
        f"--wrap={step}",
    )
    for rank in range(4):
        task = variables(project.folder / f"task.{rank}")
        assert variables(project.folder / f"rank.{rank}") == task
        assert len(task) >= len(COMPARED) - 1  # newer ones have SLURM_TRES_PER_TASK, too


NESTED = """\
#!/bin/bash -e
if [ "$1" = inner ]; then echo inner $RANK of $WORLD_SIZE, task ${SLURM_PROCID-none}; exit; fi
srun -N1 -n1 -w $SLURMD_NODENAME bash -c 'echo step of $SLURM_NTASKS, task $SLURM_PROCID'
to=inner-$SLURM_PROCID
python -m hpckit launch cluster=local output_dir=$to --wait -- bash nested.sh inner >&2
cat $(find $to -name rank-00000.log)
"""


@pytest.mark.main
@pytest.mark.usefixtures("sandbox")
def test_what_a_rank_starts_is_not_taken_for_that_rank(project: Any) -> None:
    """Neither a step of srun nor a launch of hpckit: each knows its own world."""
    project.write("nested.sh", NESTED)
    done = project.hpckit(
        *("launch", "cluster=sandbox", "recovery=never", "--wait", "resources.nodes=2"),
        *("--", "bash", "nested.sh"),
    )
    said = project.hpckit("logs", "--rank", "all").stdout
    assert done.returncode == 0, done.stdout + said
    for rank in range(2):
        assert f"{rank}| step of 1, task 0" in said
        assert f"{rank}| inner 0 of 1, task none" in said


@contextlib.contextmanager
def names_of_loopback(folder: Path, *nodes: str) -> Iterator[None]:
    """Let the own name of each node stand for 127.0.1.1, as Debian's installer writes it."""
    with contextlib.ExitStack() as undone:
        for node in nodes:
            slurmd = process.find_recorded_pid(
                daemons.slurmd_record_name(require_recorded_options().find_node(node))
            )
            inside = ["nsenter", f"--target={slurmd}", "--mount"]
            lines = Path("/etc/hosts").read_text().splitlines()
            kept = [line for line in lines if line.startswith("10.") and node not in line.split()]
            hosts = folder / f"hosts.{node}"
            hosts.write_text("\n".join(["127.0.0.1 localhost", f"127.0.1.1 {node}", *kept, ""]))
            mount = [*inside, "mount", "--bind", str(hosts), "/etc/hosts"]
            subprocess.run(mount, check=True)
            undone.callback(subprocess.run, [*inside, "umount", "/etc/hosts"], check=True)
        yield


@pytest.mark.main
@pytest.mark.usefixtures("sandbox")
def test_nodes_whose_own_names_are_of_loopback_train_together(project: Any, tmp_path: Path) -> None:
    """Gloo would listen at 127.0.1.1, where no other node reaches it."""
    with names_of_loopback(tmp_path, "n1", "n2"):
        done = project.hpckit(
            *("launch", "experiment=function", "entry_point=task:fine", "cluster=sandbox"),
            *("resources.nodes=2", 'resources.nodelist="n[1-2]"', "recovery=never", "--wait"),
        )
    assert done.returncode == 0, done.stdout + done.stderr
