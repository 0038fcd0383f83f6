"""Record what a real Slurm prints of itself and its limits: `python tests/data/record_limits.py`.

Needs the sandbox, its commands on PATH and an administrator of its accounting. Writes
tests/data/<release>/{config,partitions,sinfo,kinds,user,accounts,qos}.txt, with accounts, QOS and a user
`daemon` that it makes for this and removes again. Nothing else is changed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hpckit.features.site.facts import KINDS
from hpckit.slurm.site_query import ACCOUNTS, CONFIG, NODES, PARTITIONS, QOS, build_user_associations_query

USER = "daemon"
MADE = (
    "account recorded_lab parent=root GrpSubmitJobs=500",
    "account recorded_team parent=recorded_lab MaxSubmitJobs=40 MaxWall=02:00:00",
    "account recorded_other parent=root",
    "qos recorded_short MaxSubmitJobsPerUser=150 MaxWall=00:30:00 GrpSubmitJobs=1000",
    "qos recorded_over flags=OverPartQOS,DenyOnLimit MaxSubmitJobsPerAccount=70",
    f"user {USER} account=recorded_team qos=normal,recorded_short DefaultQOS=recorded_short",
    f"user {USER} account=recorded_other",
    f"user {USER} account=recorded_team partition=urgent MaxSubmitJobs=7",
)
REMOVED = (
    f"user {USER}",
    "account recorded_team",
    "account recorded_other",
    "account recorded_lab",
    "qos recorded_short",
    "qos recorded_over",
)


def slurm(*words: str) -> str:
    """Run one of Slurm's programs."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout


def main() -> int:
    """Make what is recorded, record, and remove it."""
    release = ".".join(slurm("sbatch", "--version").split()[-1].split(".")[:2])
    folder = Path(__file__).parent / release
    folder.mkdir(exist_ok=True)
    asked = {
        "config": CONFIG,
        "partitions": PARTITIONS,
        "sinfo": NODES,
        "kinds": KINDS,
        "user": build_user_associations_query(USER),
        "accounts": ACCOUNTS,
        "qos": QOS,
    }
    try:
        for words in MADE:
            slurm("sacctmgr", "-i", "add", *words.split())
        for name, question in asked.items():
            (folder / f"{name}.txt").write_text(slurm(*question))
    finally:
        for words in REMOVED:
            slurm("sacctmgr", "-i", "delete", *words.split())
    return 0


if __name__ == "__main__":
    sys.exit(main())
