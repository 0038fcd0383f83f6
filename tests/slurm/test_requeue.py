"""Asking for a new attempt: once for one event, whatever Slurm answers, and when it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asked import asking

from hpckit.model.cluster.allocation import RequeueResult
from hpckit.model.states import RequeueOutcome
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.requeue import JobAttempt, requeue_job, requeue_or_cancel

SHORT = timedelta(seconds=1)
AWAY = "Unable to contact slurm controller (connect failure)"
DISABLED = "Requested operation is presently disabled for job 7"

PROGRAM = r"""#!/bin/bash
# A slurmctld of one job: its columns are files, and each call is noted.
cd "$(dirname "$0")/state"
name=$(basename "$0")
echo "$name $*" >> calls
complain() { echo "$name: error: $1" >&2; exit 1; }
[ -e away ] && { read -r left < away; ((left > 1)) && echo $((left - 1)) > away || rm away
    complain "Unable to contact slurm controller (connect failure)"; }
case "$name $*" in
    squeue*--Format=JobArrayID*) cat job ;;
    squeue*--Format=ReqNodes*) cat terms ;;
    squeue*--format=%x*)
        [ -e untold ] && { rm untold; complain "Invalid user for SlurmUser"; }
        cat excluded ;;
    sinfo*) cat nodes ;;
    "scontrol show reservation"*) cat reservation ;;
    "scontrol requeue"*)
        [ -e refusal ] && complain "$(cat refusal)"
        echo "7|PENDING||1|0|BeginTime|" > job
        [ -e dies ] && { rm dies; kill -TERM $$; } ;;
    "scontrol update"*)
        [ -e dies_later ] && { rm dies_later; kill -TERM $$; }
        [ -e fixed ] && complain "Access/permission denied"
        [ -e started ] && complain "Job is no longer pending execution for job 7"
        for word; do case $word in ExcNodeList=*) echo "${word#*=}" > excluded ;; esac; done ;;
esac
exit 0
"""


def rows(*places: int, state: str = "idle", has: str = "8|16000|(null)", of: str = "") -> str:
    """Return what sinfo says of nodes: their CPUs, memory and GPUs, their state and features."""
    return "\n".join(f"n{place}|batch*|{has}|{state}|{of or '(null)'}" for place in places)


@dataclass(frozen=True, slots=True)
class OneJob:
    """A Slurm that knows one job, and what it was asked."""

    folder: Path

    @property
    def commands(self) -> SlurmCommands:
        """Its programs."""
        return SlurmCommands(bin_dir=str(self.folder), environ={"PATH": "/usr/bin:/bin"})

    def set(self, **files: str) -> None:
        """Write what it says: columns of the job, or how it fails."""
        for name, text in files.items():
            (self.folder / "state" / name).write_text(f"{text}\n")

    def asked(self, verb: str) -> list[str]:
        """Return the calls that did something."""
        calls = (self.folder / "state" / "calls").read_text().splitlines()
        return [call for call in calls if call.startswith(f"{verb} ") or f" {verb} " in call]

    def requeue(
        self,
        *exclude: str,
        owns_run: Callable[[], bool] = lambda: True,
        lost: tuple[str, ...] = (),
        **asked: Any,
    ) -> RequeueResult:
        """Ask for a new attempt of the job, as its first attempt."""
        attempt = JobAttempt(job="7", restart_count=0, asked=asking(**asked), owns_run=owns_run, lost=lost)
        return requeue_job(self.commands, attempt, exclude=exclude, patience=SHORT)


@pytest.fixture
def slurm(tmp_path: Path) -> OneJob:
    """Return a Slurm whose job 7 runs on n1, for the first time, and excludes n9."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "calls").touch()
    for name in ("squeue", "scontrol", "scancel", "sinfo"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    slurm = OneJob(tmp_path)
    slurm.set(
        job="7|RUNNING|n1|0|0|None|",
        terms="|batch|N/A|N/A||1|normal|",
        excluded="n9",
        nodes=rows(*range(1, 10)),
    )
    return slurm


def test_requeue_is_asked_once(slurm: OneJob) -> None:
    """A running job is requeued with one call."""
    assert slurm.requeue() == RequeueResult(outcome=RequeueOutcome.requeued, message="accepted")
    assert slurm.asked("requeue") == ["scontrol requeue 7"]


@pytest.mark.parametrize(
    "job",
    [
        "7|RUNNING|n1|1|0|None|",
        "7|COMPLETING|n1|1|0|None|",
        "7|PENDING||1|0|BeginTime|",
        "7|PENDING||0|0|Resources|",
    ],
)
def test_requeue_does_nothing_where_there_is_a_later_attempt(slurm: OneJob, job: str) -> None:
    """What somebody else has requeued, or Slurm itself, is not requeued a second time."""
    slurm.set(job=job)
    assert slurm.requeue().outcome is RequeueOutcome.requeued
    assert not slurm.asked("requeue")


def test_requeue_does_nothing_once_the_run_is_somebody_elses(slurm: OneJob) -> None:
    """A fenced attempt asks nothing of Slurm, and says so."""
    assert slurm.requeue("n1", owns_run=lambda: False).outcome is RequeueOutcome.fenced
    assert not slurm.asked("requeue")


def test_requeue_asks_for_the_fence_right_before_the_call(slurm: OneJob) -> None:
    """A fence that falls while Slurm is asked what the job does still holds the call back."""
    answers = iter([True, False])
    assert slurm.requeue(owns_run=lambda: next(answers)).outcome is RequeueOutcome.fenced
    assert slurm.asked("squeue")
    assert not slurm.asked("requeue")


@pytest.mark.parametrize("job", ["7|CANCELLED|n1|0|0|None|", "7|COMPLETING|n1|0|0|None|"])
def test_requeue_brings_no_cancelled_job_back(slurm: OneJob, job: str) -> None:
    """Slurm would start a cancelled job again when asked; it is not asked."""
    slurm.set(job=job)
    outcome = slurm.requeue()
    assert outcome.outcome is RequeueOutcome.refused
    assert "cancelled" in outcome.message
    assert not slurm.asked("requeue")


@pytest.mark.parametrize("reason", ["TimeLimit", "NodeDown"])
def test_requeue_is_asked_for_a_job_that_slurm_is_ending(slurm: OneJob, reason: str) -> None:
    """After the time limit there is KillWait to ask for a new attempt."""
    slurm.set(job=f"7|COMPLETING|n1|0|0|{reason}|")
    assert slurm.requeue().message == "accepted"


@pytest.mark.parametrize(
    "refusal",
    [
        DISABLED,
        "Invalid job id specified for job 7",
        "Only batch jobs are accepted or processed for job 7",
        "Access/permission denied for job 7",
    ],
)
def test_requeue_takes_a_lasting_refusal_for_an_answer(slurm: OneJob, refusal: str) -> None:
    """What Slurm will never do is asked once, and its own words are handed on."""
    slurm.set(refusal=refusal)
    outcome = slurm.requeue("n1")
    assert outcome.outcome is RequeueOutcome.refused
    assert refusal in outcome.message
    assert len(slurm.asked("requeue")) == 1
    assert not slurm.asked("update")


def test_requeue_of_a_forgotten_job_is_refused(slurm: OneJob) -> None:
    """A job that slurmctld does not know cannot be requeued."""
    slurm.set(job="")
    assert slurm.requeue().outcome is RequeueOutcome.refused
    assert not slurm.asked("requeue")


def test_requeue_outlasts_an_absence(slurm: OneJob) -> None:
    """While the controller is away it is asked again, and then requeues once."""
    slurm.set(away="1")
    assert slurm.requeue().outcome is RequeueOutcome.requeued
    assert slurm.asked("requeue") == ["scontrol requeue 7"]


@pytest.mark.parametrize(("lost", "left"), [(("n2",), "n[1,3]"), (("n2", "n3", "n7"), "n1")])
def test_requeue_lets_go_of_lost_nodes_first(slurm: OneJob, lost: tuple[str, ...], left: str) -> None:
    """A job that holds a dead node would not be queued again until Slurm misses it."""
    slurm.set(job="7|RUNNING|n[1-3]|0|0|None|")
    assert slurm.requeue(lost=lost).outcome is RequeueOutcome.requeued
    assert slurm.asked("scontrol") == [f"scontrol update JobId=7 NodeList={left}", "scontrol requeue 7"]


def test_requeue_goes_on_where_a_node_cannot_be_let_go(slurm: OneJob) -> None:
    """Slurm does not take the batch host out of a job; the job is requeued all the same."""
    slurm.set(job="7|RUNNING|n[1-3]|0|0|None|", started="")
    assert slurm.requeue(lost=("n1",)).message == "accepted"


def test_requeue_gives_up_when_the_patience_is_spent(slurm: OneJob) -> None:
    """A controller that stays away is said to be away, in Slurm's words."""
    slurm.set(away="99")
    outcome = slurm.requeue()
    assert outcome.outcome is RequeueOutcome.unreachable
    assert AWAY in outcome.message


def test_requeue_whose_answer_is_lost_is_not_repeated(slurm: OneJob) -> None:
    """Where scontrol is killed after it was heard, a look at the job says so."""
    slurm.set(dies="")
    outcome = slurm.requeue()
    assert outcome.outcome is RequeueOutcome.requeued
    assert "restart 1" in outcome.message
    assert len(slurm.asked("requeue")) == 1


def test_excluded_nodes_are_added_to_those_of_before(slurm: OneJob) -> None:
    """The next attempt leaves out the named nodes and those that were left out already."""
    outcome = slurm.requeue("n2", "n3", "n9")
    assert outcome.excluded == ("n9", "n2", "n3")
    assert outcome.warning == ""
    (update,) = slurm.asked("update")
    assert update == "scontrol update JobId=7 ExcNodeList=n[9,2-3]"


def test_one_call_is_left_once_the_requeue_is_asked_for(slurm: OneJob) -> None:
    """From then on KillWait counts down: a caller killed too early gets its bad node back."""
    slurm.requeue("n2", "n3")
    calls = (slurm.folder / "state" / "calls").read_text().splitlines()
    requeue = calls.index("scontrol requeue 7")
    assert calls[requeue + 1 :] == ["scontrol update JobId=7 ExcNodeList=n[9,2-3]"]
    assert requeue > 0


def test_what_slurm_does_not_tell_before_is_asked_for_after(slurm: OneJob) -> None:
    """The requeue does not wait for an answer that only its excluded nodes need."""
    slurm.set(untold="")
    assert slurm.requeue("n2").excluded == ("n9", "n2")
    calls = [call.split()[0] for call in slurm.asked("requeue") + slurm.asked("update")]
    assert calls == ["scontrol", "scontrol"]


def test_excluded_nodes_are_written_again_when_the_first_try_is_killed(slurm: OneJob) -> None:
    """The signal that ends this attempt also ends a program it has started: once more, then."""
    slurm.set(dies_later="")
    assert slurm.requeue("n2").excluded == ("n9", "n2")
    assert len(slurm.asked("update")) == 2


def test_nodes_that_cannot_be_excluded_any_more_are_a_warning(slurm: OneJob) -> None:
    """Once the next attempt has started, its nodes are as they are; it is requeued all the same."""
    slurm.set(started="")
    outcome = slurm.requeue("n2")
    assert outcome.outcome is RequeueOutcome.requeued
    assert outcome.excluded == ()
    assert "n2 not excluded" in outcome.warning
    assert "no longer pending" in outcome.warning


def test_attempt_that_is_fenced_after_its_request_was_granted_was_requeued(slurm: OneJob) -> None:
    """What happened is said; only the nodes to leave out are somebody else's matter now."""
    answers = iter([True, True, False])
    outcome = slurm.requeue("n2", owns_run=lambda: next(answers))
    assert outcome.outcome is RequeueOutcome.requeued
    assert "n2 not excluded" in outcome.warning
    assert not slurm.asked("update")


def test_required_node_is_not_excluded(slurm: OneJob) -> None:
    """A job that must have a node and may not have it would be held for ever."""
    slurm.set(terms="n[1-2]|batch|N/A|N/A||1|normal|")
    outcome = slurm.requeue("n2", "n3", nodes=2)
    assert outcome.excluded == ("n9", "n3")
    assert outcome.warning.startswith("n2 not excluded")


def test_as_many_nodes_are_left_as_the_job_asks_for(slurm: OneJob) -> None:
    """Of the nodes named, those at the end stay where the partition would be too small without."""
    slurm.set(nodes=rows(1, 2, 3, 4), excluded="")
    outcome = slurm.requeue("n2", "n3", "n4", nodes=3)
    assert outcome.excluded == ("n2",)
    assert outcome.warning.startswith("n[4,3] not excluded")


@pytest.mark.parametrize(
    ("up", "wanted", "asked", "excluded"),
    [
        ("2", ["n4"], 2, ()),  # n1 and n3 are left out by the user, n4 is lost
        ("24", ["n4"], 2, ()),
        ("25", ["n4"], 2, ("n4",)),
        ("2", ["n4"], 1, ("n4",)),
        ("4", ["n2", "n4"], 1, ("n2",)),  # both are needed: the one that is up
    ],
)
def test_lost_node_is_left_out_only_if_enough_others_remain(
    slurm: OneJob, up: str, wanted: list[str], asked: int, excluded: tuple[str, ...]
) -> None:
    """Slurm waits for a node that is down; a job that leaves out too many it never starts."""
    others = [place for place in range(1, 6) if str(place) not in f"13{up}"]
    nodes = rows(1, 3, *map(int, up)) + "\n" + rows(*others, state="down*")
    slurm.set(nodes=nodes, excluded="n[1,3]")
    outcome = slurm.requeue(*wanted, nodes=asked)
    assert outcome.added == excluded
    assert outcome.kept == tuple(node for node in wanted if node not in excluded)


def test_requeue_tells_the_nodes_that_it_added_from_those_of_before(slurm: OneJob) -> None:
    """What the user excludes is not said to have failed."""
    outcome = slurm.requeue("n2", "n9")
    assert (outcome.excluded, outcome.added) == (("n9", "n2"), ("n2",))


H100 = "8|16000|gpu:h100:4(S:0)"


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        ([rows(1, 2, of="h100,fast"), rows(3, 4)], {"constraint": "h100"}),
        ([rows(1, 2, of="h100,fast"), rows(3, 4, of="fast")], {"constraint": "h100&fast"}),
        ([rows(1, of="a"), rows(2, of="b"), rows(3)], {"constraint": "a|b"}),
        ([rows(1, 2, of="h100"), rows(3)], {"additional_parameters": (("C", "h100"),)}),
        ([rows(1, 2, 3, of="h100")], {"constraint": "[h100*1&a100*1]"}),
        ([rows(1, 2, has=H100), rows(3, 4)], {"gres": "gpu:h100:4"}),
        ([rows(1, 2, has=H100), rows(3, 4)], {"gpus_per_node": 4}),
        ([rows(1, 2), rows(3, 4, has="8|8000|(null)")], {"mem_gb": 12}),
        ([rows(1, 2), rows(3, 4, state="drained"), rows(5, state="down*")], {}),
        ([rows(1, 2), rows(3, 4, state="reserved"), rows(5, state="maint")], {}),
        ([rows(1, 2), rows(3, 4).replace("batch", "other")], {}),
    ],
)
def test_only_nodes_that_the_job_could_get_are_left(
    slurm: OneJob, nodes: list[str], asked: dict[str, Any]
) -> None:
    """A job whose bad node is one of the two that it can have keeps it, and is told so."""
    slurm.set(nodes="\n".join(nodes), excluded="")
    outcome = slurm.requeue("n1", nodes=2, **asked)
    assert (outcome.excluded, outcome.kept) == ((), ("n1",))
    assert "n1 not excluded: the job could not start without" in outcome.message_with_warning


def test_nodes_of_a_reservation_are_all_that_its_job_can_have(slurm: OneJob) -> None:
    """They are shown as reserved, and others are not for it."""
    slurm.set(
        terms="|batch|N/A|N/A|ours|1|normal|",
        nodes="\n".join([rows(1, 2, 3, state="reserved"), rows(4, 5)]),
        excluded="",
        reservation="ReservationName=ours\n   Nodes=n[1-3] NodeCnt=3",
    )
    assert slurm.requeue("n1", nodes=2).excluded == ("n1",)
    assert slurm.requeue("n2", "n3", nodes=3).kept == ("n3", "n2")


def test_exclusion_that_slurm_refuses_is_told(slurm: OneJob) -> None:
    """Where no user may change a job's nodes, the next attempt does not ask for another."""
    slurm.set(fixed="")
    outcome = slurm.requeue("n2")
    assert (outcome.excluded, outcome.kept) == ((), ("n2",))


def test_job_that_may_not_be_requeued_is_cancelled(slurm: OneJob) -> None:
    """A --no-kill job without its supervisor is ended where it cannot be started anew."""
    slurm.set(refusal=DISABLED)
    attempt = JobAttempt(job="7", restart_count=0, asked=asking(nodes=2), owns_run=lambda: True)
    outcome = requeue_or_cancel(slurm.commands, attempt, patience=SHORT)
    assert outcome.outcome is RequeueOutcome.refused
    assert outcome.message.endswith("the job was cancelled")
    assert slurm.asked("scancel") == ["scancel 7"]


def test_job_is_requeued_and_not_cancelled(slurm: OneJob) -> None:
    """Where Slurm requeues it, nothing is cancelled."""
    attempt = JobAttempt(job="7", restart_count=0, asked=asking(nodes=2), owns_run=lambda: True)
    assert requeue_or_cancel(slurm.commands, attempt).outcome is RequeueOutcome.requeued
    assert not slurm.asked("scancel")
