"""The training on the sandbox's Slurm, by hpckit and by the tools that others use instead.

Every contestant is started as its own manual says. Jobs have their nodes exclusively, so that a
lost node affects no other job.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.commands import RIVAL_FOLDER, SANDBOX_BIN, on_path, run, slurm, wait_until
from benchmarks.scene import Scene

LIGHTNING = ("lightning==2.6.6", "lightning-utilities==0.15.3", "torchmetrics==1.9.0", "tqdm")
_LIGHTNING_FOLDER = RIVAL_FOLDER / "lightning"
_GONE = frozenset({"", "FAILED", "CANCELLED", "TIMEOUT", "COMPLETED", "NODE_FAIL"})

_BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append --output=job.log
#SBATCH --exclusive --time={minutes} {directive}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
srun {command}
"""
_TORCHRUN = (
    "{python} -m torch.distributed.run --nnodes=2 --nproc-per-node=1 --max-restarts=3"
    " --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$head:29517 with_torchrun.py"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A contestant's job in its scene."""

    scene: Scene
    job: str
    contestant: str

    def state(self) -> str:
        """Return the job's state in Slurm, empty once Slurm has forgotten the job."""
        return (
            slurm("squeue", "-h", "-a", "-t", "all", "-o", "%A %T")
            .partition(f"{self.job} ")[2]
            .partition("\n")[0]
        )

    def ended(self) -> bool:
        """Whether Slurm will not start it again."""
        return self.state() in _GONE

    def nodes(self) -> list[str]:
        """Return the names of its nodes, the batch host first."""
        names = slurm("squeue", "-h", "-j", self.job, "-o", "%N")
        return slurm("scontrol", "show", "hostnames", names).split()

    def cancel(self) -> None:
        """End the job, if it has not ended."""
        if self.contestant == "hpckit":
            self.scene.cancel()
        elif not self.ended():
            slurm("scancel", self.job)

    def wait(self) -> None:
        """Wait until its nodes are free."""
        wait_until(self.ended, 120, every_s=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A tool that runs the training; `start(scene, minutes, spare)` returns the job's id."""

    name: str
    start: Callable[[Scene, int, int], str]

    def submit(self, scene: Scene, *, minutes: int = 60, spare: int = 0) -> Job:
        """Submit with a time limit; `spare` nodes in addition, if the tool supports them."""
        return Job(scene=scene, job=self.start(scene, minutes, spare), contestant=self.name)


def _hpckit(scene: Scene, minutes: int, spare: int) -> str:
    scene.launch(
        *("cluster=sandbox", "resources.nodes=2", f"resources.spare_nodes={spare}"),
        "resources.exclusive=true",
        *(f"resources.timeout_min={minutes}", f"checkpoint.interval_steps={scene.save_every}"),
    )
    return str(scene.status()["job"])


def _batch(scene: Scene, minutes: int, command: str, directive: str = "") -> str:
    script = scene.folder / "job.sh"
    command = command.format(python=sys.executable)
    script.write_text(_BATCH.format(minutes=minutes, command=command, directive=directive))
    words = [str(SANDBOX_BIN / "sbatch"), "--parsable", str(script)]
    environ = on_path(*([_LIGHTNING_FOLDER] if "lightning" in command else []))
    return run(words, cwd=scene.folder, env=environ).stdout.strip()


def _torchrun(scene: Scene, minutes: int, _spare: int) -> str:
    return _batch(scene, minutes, _TORCHRUN.replace("{python}", sys.executable))


def _lightning(scene: Scene, minutes: int, _spare: int) -> str:
    if not (_LIGHTNING_FOLDER / "lightning").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
        run([*pip, "--target", str(_LIGHTNING_FOLDER), *LIGHTNING])
    return _batch(scene, minutes, "{python} with_lightning.py", "--signal=SIGUSR1@60")


def _submitit(scene: Scene, minutes: int, _spare: int) -> str:
    parameters = {"nodes": 2, "ntasks_per_node": 1, "time": minutes, "exclusive": True}
    path = f"{SANDBOX_BIN}{os.pathsep}{os.environ['PATH']}"
    words = [sys.executable, "with_submitit.py", json.dumps(parameters)]
    environ = {**on_path(scene.folder), "PATH": path}
    return run(words, cwd=scene.folder, env=environ).stdout.split()[-1]


HPCKIT = Contestant(name="hpckit", start=_hpckit)
RIVALS = (
    Contestant(name="torchrun", start=_torchrun),
    Contestant(name="submitit", start=_submitit),
    Contestant(name="Lightning", start=_lightning),
)
