"""What is promised where squeue and sacct are a site's scripts that answer in another form."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hpckit.errors import SchedulerAwayError
from hpckit.model.run import Observation
from hpckit.model.states import BaseState, RunState
from hpckit.slurm.cached_query import AllowedAge, observe_jobs_with_cache
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.parse import parse_sacct, parse_squeue
from hpckit.slurm.query import (
    ask_ids_of_queued_jobs,
    ask_living_jobs_by_name,
    count_queued_jobs,
    find_jobs_by_name,
    observe_jobs,
    observe_queued_job,
)

DATA = Path(__file__).parents[1] / "data"
RELEASES = sorted(path.parent.name for path in DATA.glob("*/squeue.json"))
NOW = datetime(2026, 1, 2, tzinfo=UTC)
TABLE = "  JOB | USER | STATE   | WHERE | SINCE | WHY | \n  {} | me | RUNNING | n1 | 10:02 | - | \n"

Asking = Callable[["Site", list[str]], Mapping[str, Observation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """squeue and sacct as scripts: what they print for text and for --json, and their calls."""

    folder: Path

    def says(self, program: str, text: str, as_json: str | None = None) -> None:
        """Let a program print this; without `as_json` it knows no --json."""
        (self.folder / f"{program}.text").write_text(text)
        refuse = f"echo \"{program}: unrecognized option '--json'\" >&2; exit 1"
        answer = refuse if as_json is None else f"cat {self.folder}/{program}.json"
        (self.folder / f"{program}.json").write_text(as_json or "")
        path = self.folder / "bin" / program
        path.write_text(
            f'#!/bin/sh\necho "{program} $*" >> {self.folder}/calls\n'
            f'case "$*" in\n*--json*) {answer} ;;\n*) cat {self.folder}/{program}.text ;;\nesac\n'
        )
        path.chmod(0o755)

    @property
    def commands(self) -> SlurmCommands:
        """The scripts, and a cache."""
        environ = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}
        return SlurmCommands(bin_dir=str(self.folder / "bin"), environ=environ)

    @property
    def calls(self) -> list[list[str]]:
        """Return the words of each call."""
        path = self.folder / "calls"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site whose squeue and sacct know nothing."""
    (tmp_path / "bin").mkdir()
    found = Site(folder=tmp_path)
    found.says("squeue", "")
    found.says("sacct", "")
    return found


def ask_live(site: Site, jobs: list[str]) -> Mapping[str, Observation]:
    """Ask as those who decide do."""
    return observe_jobs(jobs, site.commands, NOW)


def ask_shared(site: Site, jobs: list[str]) -> Mapping[str, Observation]:
    """Ask as those who only show it do."""
    heard = observe_jobs_with_cache(jobs, site.commands, lambda: NOW, AllowedAge(least=timedelta(minutes=1)))
    assert heard is not None
    return heard[0]


ASKED = pytest.mark.parametrize("ask", [ask_live, ask_shared], ids=["live", "shared"])


def recorded(release: str, name: str) -> str:
    """Return what a release printed."""
    return (DATA / release / name).read_text()


@ASKED
@pytest.mark.parametrize("release", RELEASES)
def test_json_instead_of_text_is_read_without_another_question(ask: Asking, release: str, site: Site) -> None:
    """A script that always prints JSON costs no more than Slurm's own, and gives the same."""
    expected = {one.job: one for one in parse_squeue(recorded(release, "squeue.txt"), NOW)}
    site.says("squeue", recorded(release, "squeue.json"))
    assert ask(site, list(expected)) == expected
    assert [words[0] for words in site.calls] == ["squeue"]


@ASKED
@pytest.mark.parametrize("release", RELEASES)
def test_table_of_the_sites_own_is_asked_for_once_more_as_json(ask: Asking, release: str, site: Site) -> None:
    """The very same question to squeue, but for --json in place of the fields."""
    expected = {one.job: one for one in parse_squeue(recorded(release, "squeue.txt"), NOW)}
    site.says("squeue", TABLE.format("1"), recorded(release, "squeue.json"))
    assert ask(site, list(expected)) == expected
    check_asked_twice(site.calls)


@ASKED
@pytest.mark.parametrize("release", RELEASES)
def test_accounting_in_a_table_of_the_sites_own_is_asked_for_as_json(
    ask: Asking, release: str, site: Site
) -> None:
    """Of sacct the same."""
    expected = {one.job: one for one in parse_sacct(recorded(release, "sacct.txt"), NOW)}
    site.says("sacct", TABLE.format("1"), recorded(release, "sacct.json"))
    found = ask(site, list(expected))
    bases = [{job: one.state.base for job, one in said.items()} for said in (expected, found)]
    assert bases[0] == bases[1]
    killed = json.loads(recorded(release, "jobs.json"))["killed"]
    assert found[killed] == expected[killed]
    check_asked_twice(site.calls[1:])


def check_asked_twice(calls: list[list[str]]) -> None:
    """Check that one question was asked, for fields and then for JSON."""
    text, as_json = calls
    assert text[-1].lower().startswith("--format=")
    assert as_json == [*text[:-1], "--json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7|RUNNING|n1|0|0|None|",
        "7+0|RUNNING|n1|0|0|None|\n7+1|PENDING||0|0|None|",
        "squeue of our site\n7|RUNNING|n1|0|0|None|",
        "7_[1-9...]|PENDING||0|0|Priority|",
        "7|RUNNING|n1|0|0|None|\n8|SOMETHING_NEW|n1|0|0|None|",
    ],
)
def test_text_that_can_be_read_is_asked_for_once(text: str, site: Site) -> None:
    """No jobs, parts of a heterogeneous job, a new state beside others: one call, as ever."""
    site.says("squeue", text, '{"jobs": []}')
    ask_ids_of_queued_jobs(site.commands)
    assert len(site.calls) == 1


@ASKED
@pytest.mark.parametrize(
    ("as_json", "words"),
    [
        (None, "JOB | USER"),
        (TABLE.format("7"), "JOB | USER"),
        ('{"jobs": [{"job_id": 7', "{"),
        ('{"jobs": [], "errors": [{"error": "Unspecified error"}]}', "Unspecified error"),
    ],
)
def test_listing_that_nobody_can_read_is_not_an_empty_one(
    ask: Asking, as_json: str | None, words: str, site: Site
) -> None:
    """It is told as an error that quotes it: a job that cannot be seen may be running."""
    for program in ("squeue", "sacct"):
        site.says(program, TABLE.format("7"), as_json)
    with pytest.raises(SchedulerAwayError, match=r"squeue listed no readable jobs.*sacct") as caught:
        ask(site, ["7"])
    assert words in caught.value.message
    assert "cluster.bin_dir" in caught.value.hint
    assert len(site.calls) == 4


def test_json_of_all_users_jobs_is_narrowed_to_those_asked_for(site: Site) -> None:
    """With --json, squeue of 22.05 heeds no --me, --name or --jobs, and lists ended jobs too."""
    me, job = os.getuid(), {"array_job_id": 0, "array_task_id": None}
    jobs = [
        {**job, "job_id": 7, "name": "mine", "user_id": me, "job_state": "RUNNING"},
        {**job, "job_id": 8, "name": "mine", "user_id": me, "job_state": "COMPLETED"},
        {**job, "job_id": 9, "name": "other", "user_id": me + 1, "job_state": "RUNNING"},
        {"job_id": 10, "array_job_id": 10, "array_task_string": "0-4", "user_id": me}
        | {"name": "array", "job_state": "PENDING"},
    ]
    site.says("squeue", json.dumps({"jobs": jobs}))
    assert find_jobs_by_name("mine", site.commands) == ("7", "8")
    assert find_jobs_by_name("mi", site.commands) == ()
    assert count_queued_jobs(site.commands) == 6
    assert ask_ids_of_queued_jobs(site.commands) >= {"7", "10"}
    assert "8" not in ask_ids_of_queued_jobs(site.commands)
    array = {f"10_{element}" for element in range(5)}
    assert ask_living_jobs_by_name(site.commands) == {"mine": {"7"}, "array": array}
    one = observe_queued_job("8", site.commands, NOW)
    assert one is not None
    assert one.state.base is BaseState.completed


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "own-table"])
def test_jobs_are_seen_through_a_sites_scripts(form: str, fake_slurm: Any, tmp_path: Path) -> None:
    """From their start to their end, by id and by name, and when squeue has forgotten them."""
    commands = SlurmCommands(bin_dir=str(fake_slurm.bin_dir), environ=fake_slurm.environ)
    words = ("--parsable", "--output=/dev/null", "--job-name=through", "--array=0-3%2")
    script = tmp_path / "job"
    script.write_text('#!/bin/sh\n[ "$SLURM_ARRAY_TASK_ID" -lt 1 ] && exit 3\nexec sleep 300\n')
    fake_slurm.fail(form)
    job = fake_slurm.slurm("sbatch", *words, str(script)).strip()
    elements = [f"{job}_{index}" for index in range(4)]
    while not observe_jobs(elements[:1], commands, NOW)[f"{job}_0"].state.ended:
        pass
    found = observe_jobs(elements, commands, NOW)
    assert (found[f"{job}_0"].state.run_state, found[f"{job}_0"].exit_code) == (RunState.failed, 3)
    assert found[f"{job}_3"].state.run_state is RunState.pending
    assert find_jobs_by_name("through", commands) == (job,)
    assert ask_ids_of_queued_jobs(commands) == {job}
    assert ask_living_jobs_by_name(commands) == {"through": set(elements[1:])}
    assert count_queued_jobs(commands) == 3
    fake_slurm.slurm("scancel", job)
    fake_slurm.fail("forget")
    assert observe_jobs(elements[:1], commands, NOW)[f"{job}_0"].exit_code == 3
