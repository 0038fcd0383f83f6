"""What is learnt of a cluster from what a real one printed, and from one that does not answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.model.cluster.site import SubmitLimits
from hpckit.planning.checks.limits import Chosen
from hpckit.planning.checks.limits import find_submit_limits as applying
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.site_query import Heard, ask_cluster_facts_for_user, ask_submit_limits, start_site_queries

DATA = Path(__file__).parents[1] / "data"
RELEASES = sorted(path.parent.name for path in DATA.glob("*/qos.txt"))

SCONTROL = """#!/bin/sh
echo "scontrol $*" >> {log}
case "$*" in
  *config) sed 's/^AccountingStorageEnforce .*/AccountingStorageEnforce = {enforced}/' \
{data}/config.txt ;;
  *partition) cat {data}/partitions.txt ;;
esac
"""
SINFO = """#!/bin/sh
echo "sinfo $*" >> {log}
cat {data}/sinfo.txt
"""
SACCTMGR = """#!/bin/sh
echo "sacctmgr $*" >> {log}
case "$*" in
  *" user "*) cat {data}/user.txt ;;
  *" associations "*) cat {data}/accounts.txt ;;
  *" qos "*) cat {data}/qos.txt ;;
esac
"""


@pytest.fixture(params=RELEASES)
def recorded(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Return a function that gives commands which print what a real Slurm printed."""
    data = DATA / request.param

    def _recorded(
        *, enforced: str = "associations,limits,qos", without: str = "", broken: str = ""
    ) -> SlurmCommands:
        for name, text in (("scontrol", SCONTROL), ("sinfo", SINFO), ("sacctmgr", SACCTMGR)):
            program = tmp_path / name
            if name == without:
                program.unlink(missing_ok=True)
                continue
            script = text.format(log=tmp_path / "asked", data=data, enforced=enforced)
            if name == broken:
                script = "#!/bin/sh\necho 'error: Connection refused' >&2\nexit 1\n"
            program.write_text(script)
            program.chmod(0o755)
        return SlurmCommands(
            bin_dir=str(tmp_path), environ={"PATH": "/usr/bin:/bin"}, timeout=timedelta(seconds=20)
        )

    return _recorded


def test_limits_of_controller_and_of_the_default_association_are_found(recorded: Any) -> None:
    """The indices, the jobs of all, and the limit of the default QOS are what Slurm has."""
    found = ask_submit_limits(recorded(), None, None, None, "daemon")
    assert found == SubmitLimits(array_index=10001, array_tasks=None, queued=150, jobs=20000)


@pytest.mark.parametrize(
    ("account", "partition", "qos", "queued"),
    [
        ("recorded_team", "batch", None, 150),  # its default QOS, recorded_short, for one user
        ("recorded_team", "batch", "normal", 40),  # the account's, passed on to the user
        ("recorded_team", "urgent", "normal", 7),  # the association of this partition
        ("recorded_team", "batch,urgent", "normal", 7),  # either may take the job
        ("recorded_team", "batch", "recorded_over", 70),
        ("recorded_other", "batch", None, None),  # no limit anywhere
        ("nobody_knows", "batch", None, None),
    ],
)
def test_the_limit_that_slurm_would_apply_is_taken(
    recorded: Any, account: str, partition: str, qos: str | None, queued: int | None
) -> None:
    """QOS come before the association, and the association has its account's limits."""
    assert ask_submit_limits(recorded(), account, partition, qos, "daemon").queued == queued


def test_limits_that_are_not_enforced_are_none(recorded: Any) -> None:
    """Where AccountingStorageEnforce lacks `limits`, those written down stop nobody."""
    commands = recorded(enforced="associations")
    assert ask_submit_limits(commands, None, None, None, "daemon").queued is None


@pytest.mark.parametrize("kind", ["without", "broken"])
def test_a_missing_accounting_leaves_the_controllers_limits(recorded: Any, kind: str) -> None:
    """Without an answer of the database the rest is known all the same."""
    found = ask_submit_limits(recorded(**{kind: "sacctmgr"}), None, None, None, "daemon")
    assert (found.array_index, found.queued) == (10001, None)


def test_a_cluster_that_does_not_answer_has_no_known_limit(recorded: Any) -> None:
    """A controller that is away is asked once, and stops nobody."""
    assert ask_submit_limits(recorded(broken="scontrol"), None, None, None, "daemon") == SubmitLimits()


def test_the_fake_without_accounting_is_understood(fake_slurm: Any) -> None:
    """A cluster without accounting has no limits on users."""
    commands = SlurmCommands(bin_dir=str(fake_slurm.bin_dir), environ=fake_slurm.environ)
    assert ask_submit_limits(commands, None, None, None, "me").queued is None


def test_a_site_is_learnt_in_six_questions(recorded: Any, tmp_path: Path) -> None:
    """Three questions to slurmctld and three to the database, each once."""
    site = ask_cluster_facts_for_user(recorded(), "daemon")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked].count("sacctmgr") == 3
    assert len(asked) == 6
    assert site.unknown == ()


def test_what_was_heard_is_not_asked_again(recorded: Any, tmp_path: Path) -> None:
    """A launch that needs the limits first, and all the rest later, asks each question once."""
    heard: Heard = {}
    commands = recorded()
    start_site_queries(commands, heard)
    first = ask_submit_limits(commands, None, None, None, "daemon", heard)
    site = ask_cluster_facts_for_user(commands, "daemon", heard=heard)
    assert len((tmp_path / "asked").read_text().splitlines()) == 6
    assert applying(site, Chosen.lower_case_account_and_qos(None, None, None)) == first


def test_partitions_and_nodes_are_what_slurm_says(recorded: Any) -> None:
    """Time limit, number of nodes, state and the GPUs of each node are read."""
    site = ask_cluster_facts_for_user(recorded(), "daemon")
    assert site.partitions is not None
    assert site.nodes is not None
    batch = site.partitions["batch"]
    assert (batch.default, batch.nodes, batch.state) == (True, 4, "UP")
    assert batch.max_time == timedelta(days=7)
    assert (site.nodes[0].cpus, site.nodes[0].gres) == (16, {"gpu": 4})


def test_what_could_not_be_asked_is_said_once(recorded: Any) -> None:
    """A program that is away is named, and no further question waits for it."""
    site = ask_cluster_facts_for_user(recorded(broken="sacctmgr"), "daemon")
    assert len(site.unknown) == 1
    assert "Connection refused" in site.unknown[0]
    assert site.associations is None


def test_account_groups_hold_for_accounts_below(recorded: Any) -> None:
    """A limit of a parent account on all its users together counts, where no QOS has one."""
    site = ask_cluster_facts_for_user(recorded(), "daemon")
    own = tuple(replace(association, max_submit=None) for association in site.associations or ())
    chosen = Chosen(account="recorded_team", partition="batch", qos="normal")
    assert applying(replace(site, associations=own), chosen).queued == 500
