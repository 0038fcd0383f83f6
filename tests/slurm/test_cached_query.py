"""What one question for all of a user's processes promises: few of them, and no stale answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import SchedulerAwayError
from hpckit.model.run import Observation
from hpckit.model.states import BaseState
from hpckit.slurm.answer_cache import LONGEST, Answers, find_answer_folder
from hpckit.slurm.cached_query import AllowedAge, invalidate_cached_answers, observe_jobs_with_cache
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.query import combine_queue_and_accounting

LEAST = timedelta(seconds=10)
SECOND = timedelta(seconds=1)

PROGRAM = """#!/bin/sh
echo "{name} $*" >> {folder}/calls
[ -e {folder}/{name}.fails ] && {{ cat {folder}/{name}.fails >&2; exit 1; }}
sleep 0.{pause}
cat {folder}/{name}.says
"""


@dataclass(slots=True, kw_only=True)
class Cluster:
    """squeue and sacct that say what they are told to, count their calls, and a clock."""

    folder: Path
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def commands(self) -> SlurmCommands:
        """The programs, as found by a user with a cache."""
        environ = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}
        return SlurmCommands(bin_dir=str(self.folder / "bin"), environ=environ)

    def say(self, program: str, *lines: str) -> None:
        """Let a program print these lines."""
        (self.folder / f"{program}.says").write_text("".join(f"{line}\n" for line in lines))

    def ask(self, *jobs: str, **wish: Any) -> dict[str, Observation]:
        """Ask as somebody who only wants to show it."""
        heard = observe_jobs_with_cache(
            jobs, self.commands, lambda: self.now, AllowedAge(least=LEAST, **wish)
        )
        assert heard is not None
        return dict(heard[0])

    def state(self, job: str, **wish: Any) -> str:
        """Return what is said of one job."""
        return self.ask(job, **wish)[job].state.text

    def fail(self, program: str, words: str) -> None:
        """Let a program fail."""
        (self.folder / f"{program}.fails").write_text(words)

    @property
    def calls(self) -> Counter[str]:
        """How often each program was called."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(line.split()[0] for line in lines)

    @property
    def kept(self) -> list[Path]:
        """The files in the cache that hold answers."""
        return sorted((self.folder / "cache").rglob("*.json"))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Return a cluster with one job that runs and one that is long over."""
    (tmp_path / "bin").mkdir()
    for name in ("squeue", "sacct"):
        program = tmp_path / "bin" / name
        program.write_text(PROGRAM.format(name=name, folder=tmp_path, pause=0))
        program.chmod(0o755)
    found = Cluster(folder=tmp_path)
    found.say("squeue", "7|RUNNING|n1|0|0|None|")
    found.say("sacct", "3|COMPLETED|n1|0:0")
    return found


def test_answer_is_shared_until_it_is_too_old(cluster: Cluster) -> None:
    """Within the least age squeue is asked once; after it, once more; with `now`, at once."""
    assert cluster.state("7") == "RUNNING"
    cluster.say("squeue", "7|COMPLETED|n1|0|0|None|")
    cluster.now += 9 * SECOND
    assert cluster.state("7") == "RUNNING"
    cluster.now += LONGEST  # whatever a loaded machine took to answer
    assert cluster.state("7") == "COMPLETED"
    assert cluster.calls["squeue"] == 2
    cluster.say("squeue", "7|FAILED|n1|0|0|None|")
    cluster.now += SECOND
    assert cluster.state("7", now=True) == "FAILED"
    assert cluster.calls["squeue"] == 3


def test_answer_counts_from_when_it_was_asked(cluster: Cluster) -> None:
    """Whoever reads it is told when Slurm was asked, not when the file was read."""
    began = cluster.now
    cluster.ask("7")
    cluster.now += 5 * SECOND
    assert abs(cluster.ask("7")["7"].seen_at - began) < SECOND


def test_own_submissions_are_seen_at_once(cluster: Cluster) -> None:
    """What the user submits or cancels, here or elsewhere, makes earlier answers void."""
    cluster.ask("7")
    cluster.say("squeue", "7|RUNNING|n1|0|0|None|", "8|PENDING||0|0|Priority|")
    cluster.now = datetime.now(UTC)
    invalidate_cached_answers(cluster.commands)
    cluster.now = datetime.now(UTC)
    assert cluster.state("8") == "PENDING"
    cluster.now += SECOND
    assert cluster.state("8", not_before=cluster.now - SECOND / 2) == "PENDING"
    assert cluster.calls["squeue"] == 3


@pytest.mark.slow
def test_many_processes_ask_once(cluster: Cluster, tmp_path: Path) -> None:
    """Of twenty that want to know at once, one asks and all are answered."""
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(PROGRAM.format(name="squeue", folder=tmp_path, pause=5))
    script = (
        "import sys\n"
        "from datetime import UTC, datetime, timedelta\n"
        "from hpckit.slurm.commands import SlurmCommands\n"
        "from hpckit.slurm.cached_query import AllowedAge, observe_jobs_with_cache\n"
        "import os\n"
        "commands = SlurmCommands(bin_dir=sys.argv[1], environ=os.environ)\n"
        "wish = AllowedAge(least=timedelta(minutes=10))\n"
        "heard = observe_jobs_with_cache(['7'], commands, lambda: datetime.now(UTC), wish)\n"
        "print(heard[0]['7'].state.text)\n"
    )
    words = [sys.executable, "-c", script, str(squeue.parent)]
    environ = dict(cluster.commands.environ)
    asked = [subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(20)]
    assert {one.communicate(timeout=200)[0].strip() for one in asked} == {"RUNNING"}
    assert cluster.calls == {"squeue": 1}


def test_slow_controller_is_asked_more_rarely(cluster: Cluster) -> None:
    """An answer that took its time holds twenty times as long, five minutes at most."""
    slow = Answers().with_new_answers({"all": ""}, cluster.now, took=3 * SECOND)
    assert slow.max_answer_age(LEAST) == 60 * SECOND
    assert Answers().with_new_answers({}, cluster.now, took=60 * SECOND).max_answer_age(LEAST) == LONGEST


def test_absent_controller_is_left_alone_ever_longer(cluster: Cluster) -> None:
    """After a failure the next question waits twice as long each time, five minutes at most."""
    kept, pauses = Answers(), []
    for _ in range(6):
        error = SchedulerAwayError("Slurm is away")
        kept = kept.with_failed_call(error, cluster.now, timedelta())
        with pytest.raises(SchedulerAwayError, match="Slurm is away") as caught:
            kept.refuse_early_retry(LEAST, cluster.now)
        pauses.append(int(caught.value.message.split()[-2]))
        kept.refuse_early_retry(LEAST, cluster.now + pauses[-1] * SECOND)
    assert pauses == [20, 40, 80, 160, 300, 300]


def test_failure_is_told_as_one_and_fresh_asks_all_the_same(cluster: Cluster) -> None:
    """While Slurm is left alone the error says so; `--fresh` tries it anew."""
    cluster.fail("squeue", "Unable to contact slurm controller (connect failure)")
    cluster.fail("sacct", "Problem talking to the database: Connection refused")
    with pytest.raises(SchedulerAwayError):
        cluster.ask("7")
    cluster.now += SECOND
    with pytest.raises(SchedulerAwayError, match="next try in"):
        cluster.ask("7")
    assert cluster.calls["squeue"] == 1
    (cluster.folder / "squeue.fails").unlink()
    cluster.now += SECOND
    assert cluster.state("7", now=True) == "RUNNING"


def test_ended_jobs_are_accounted_for_once(cluster: Cluster) -> None:
    """The accounting is asked about jobs that squeue forgot, once about those that ended."""
    for _ in range(5):
        assert cluster.state("3") == "COMPLETED"
        cluster.now += timedelta(minutes=6)
    assert cluster.calls["sacct"] == 1
    cluster.say("sacct", "4|RUNNING|n1|0:0")
    for _ in range(3):
        assert cluster.state("4") == "RUNNING"
        cluster.now += timedelta(minutes=6)
    assert cluster.calls["sacct"] == 4


def test_cluster_without_accounting_answers_from_its_queue(cluster: Cluster) -> None:
    """Where sacct is refused, and then left alone, squeue's word stands; others are unknown."""
    cluster.fail("sacct", "Slurm accounting storage is disabled")
    for _ in range(3):
        assert list(cluster.ask("7", "3")) == ["7"]
        cluster.now += SECOND
    assert cluster.calls == {"squeue": 1, "sacct": 1}


def test_damaged_or_foreign_cache_is_not_believed(cluster: Cluster) -> None:
    """Whatever is in the file, the answer is right, and the file whole again."""
    cluster.ask("7")
    (path,) = cluster.kept
    whole = json.loads(path.read_text())
    for text in ("", "{", "[]", "null", '{"v": 1}', '{"v": 9}', '{"v":1,"answers":{"all":3}}'):
        path.write_text(text)
        assert cluster.state("7") == "RUNNING"
        assert json.loads(path.read_text()).keys() == whole.keys()
    assert cluster.calls["squeue"] == 8


def test_cache_is_the_users_alone(cluster: Cluster) -> None:
    """The folder is 0700, the files 0600; a folder that others may enter is not used."""
    cluster.ask("7")
    folder = cluster.kept[0].parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    folder.chmod(0o755)
    environ, bin_dir = cluster.commands.environ, cluster.commands.bin_dir
    assert find_answer_folder(environ, bin_dir, make=True) is None
    wish = AllowedAge(least=LEAST)
    assert observe_jobs_with_cache(["7"], cluster.commands, lambda: cluster.now, wish) is None


def test_answers_are_those_of_one_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """Another cluster.bin_dir, SLURM_CONF or host has its own answers."""
    environ = dict(cluster.commands.environ)
    given = [
        find_answer_folder(environ, str(tmp_path / "bin"), make=False),
        find_answer_folder({**environ, "SLURM_CONF": "/x"}, str(tmp_path / "bin"), make=True),
        find_answer_folder(environ, str(tmp_path / "other"), make=True),
    ]
    assert given[0] is None
    assert len({one.folder for one in given if one is not None}) == 2
    (tmp_path / "new").mkdir()
    conf, program = tmp_path / "slurm.conf", tmp_path / "new" / "squeue"
    for changed in (conf, program):
        again: set[Path] = set()
        for text in ("first", "second"):  # a sandbox that was made anew has the names of the one before
            for file in (conf, program):
                file.touch(mode=0o755)
            changed.unlink()
            changed.write_text(text)
            changed.chmod(0o755)
            os.utime(changed, (len(again), len(again)))
            asked = {**environ, "SLURM_CONF": str(conf)} if changed is conf else environ
            found = find_answer_folder(asked, str(tmp_path / "new"), make=True)
            assert found is not None
            again.add(found.folder)
        assert len(again) == 2
    assert find_answer_folder({"PATH": "/bin"}, None, make=True) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A source whose ranges are cut, as where SLURM_BITSTR_LEN does not reach."""

    now: datetime

    def queue(self, jobs: object) -> list[Observation]:
        """Say that some wait, and not which."""
        from hpckit.slurm.parse import parse_squeue  # noqa: PLC0415

        del jobs
        return list(parse_squeue("7_[1-5,7...%2]|PENDING||0|0|Resources|\n", self.now))

    def accounts(self, jobs: object) -> list[Observation]:
        """Say what has ended."""
        from hpckit.slurm.parse import parse_sacct  # noqa: PLC0415

        del jobs
        return list(parse_sacct("7_0|COMPLETED|n1|0:0\n", self.now))


def test_elements_cut_off_a_range_are_not_taken_for_lost(cluster: Cluster) -> None:
    """What a cut range does not name waits like the rest, unless it has a line of its own."""
    cut, jobs = Cut(now=cluster.now), ["7_0", "7_3", "7_70", "8"]
    found = combine_queue_and_accounting(cut.queue, cut.accounts, jobs, cluster.now)
    states = {job: one.state.base for job, one in found.items()}
    waits = BaseState.pending
    assert states == {"7_0": BaseState.completed, "7_3": waits, "7_70": waits}
