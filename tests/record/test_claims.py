"""Promises of hpckit.record.claims: of many who want a run, one gets it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hpckit.record.claims import (
    ClaimHolder,
    claim_run,
    list_claimed_runs,
    list_runs_left_claimed,
    release_run_claim,
)

HOLDER = ClaimHolder(job="7_0", restart_count=0, host="n1", pid=1, started="1")


def test_claim_is_one_holder_s_however_many_want_it(tmp_path: Path) -> None:
    """Each of the runs is taken exactly once by eight jobs that want all of them."""
    holders = [replace(HOLDER, job=f"7_{number}") for number in range(8)]

    def grab(holder: ClaimHolder) -> list[int]:
        return [run for run in range(40) if claim_run(tmp_path / "claims" / "0", run, holder)]

    with ThreadPoolExecutor(8) as pool:
        taken = [run for runs in pool.map(grab, holders) for run in runs]
    assert sorted(taken) == list(range(40))
    assert list_claimed_runs(tmp_path / "claims" / "0") == frozenset(range(40))


def test_claim_that_is_given_back_can_be_taken_again(tmp_path: Path) -> None:
    """Giving back twice does no harm, and leaves no other file behind."""
    assert list_claimed_runs(tmp_path / "none") == frozenset()
    assert claim_run(tmp_path, 3, HOLDER)
    release_run_claim(tmp_path, 3)
    release_run_claim(tmp_path, 3)
    assert claim_run(tmp_path, 3, replace(HOLDER, job="7_1"))
    assert [path.name for path in tmp_path.iterdir()] == ["00003"]


def test_claims_of_an_earlier_start_are_the_job_s_own(tmp_path: Path) -> None:
    """A job that Slurm starts again finds what it had, and nothing of others or of itself."""
    claim_run(tmp_path, 1, HOLDER)
    claim_run(tmp_path, 2, replace(HOLDER, job="7_1"))
    claim_run(tmp_path, 3, replace(HOLDER, restart_count=1))
    (tmp_path / "00009").write_text("torn")
    assert list(list_runs_left_claimed(tmp_path, replace(HOLDER, restart_count=1))) == [1]
    assert list(list_runs_left_claimed(tmp_path, HOLDER)) == []
