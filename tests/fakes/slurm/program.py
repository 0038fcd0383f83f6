#!/usr/bin/env -S python3 -ES
"""A fake Slurm: one program under the names of Slurm's own, for tests without a cluster.

Put tests/fakes/bin in front of PATH and set FAKE_SLURM_DIR to an empty folder. sbatch really
runs the script, srun really starts the tasks, on this machine; nodes are only names. Nothing
contends for CPUs: a job starts at once, an array as far as its % limit lets it. `scontrol
shutdown` ends whatever still runs. It shows what hpckit asks of Slurm, not what Slurm does:
every promise tested on it is tested on a real Slurm too.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from fakes.slurm.batch import keeper, reaper, sbatch, scancel
from fakes.slurm.listing import sacct, scontrol, sinfo, squeue
from fakes.slurm.step import srun

PROGRAMS = {
    "sbatch": sbatch,
    "scancel": scancel,
    "scontrol": scontrol,
    "sinfo": sinfo,
    "squeue": squeue,
    "sacct": sacct,
    "srun": srun,
    "keeper": keeper,
    "reaper": reaper,
}


def main() -> int:
    """Run the program under whose name this was called."""
    name, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    if name == "program.py":
        name, arguments = arguments[0], arguments[1:]
    return PROGRAMS[name](arguments)


if __name__ == "__main__":
    sys.exit(main())
