"""Asking a real Slurm for a new attempt: once, by the right one, and without the bad nodes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from asked import asking
from integration.conftest import Sandbox

from hpckit.model.cluster.allocation import RequeueResult
from hpckit.model.cluster.nodes import expand_hostlist
from hpckit.model.cluster.preemption import PreemptMode
from hpckit.model.failure import Cause
from hpckit.model.run import Observation
from hpckit.model.states import BaseState, RequeueOutcome
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.job_limits import ask_job_limits, ask_why_job_ends
from hpckit.slurm.query import ask_excluded_nodes, observe_queued_job
from hpckit.slurm.requeue import JobAttempt, requeue_job, requeue_or_cancel

pytestmark = pytest.mark.slurm

TESTS = Path(__file__).parents[1]
INSIDE = """
import json, os, signal, sys, time
from dataclasses import asdict
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from asked import asking
from hpckit.slurm.cancel import cancel_jobs
from hpckit.slurm.commands import SlurmCommands
from hpckit.slurm.requeue import JobAttempt, requeue_job

signal.signal(signal.SIGTERM, lambda *_: None)
restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
node, record = os.environ["SLURMD_NODENAME"], Path(sys.argv[2])
if restarts == 0:
    attempt = JobAttempt(
        job=os.environ["SLURM_JOB_ID"],
        restart_count=0,
        asked=asking(nodes=1),
        owns_run=lambda: True,
    )
    commands = SlurmCommands(bin_dir=sys.argv[1], environ=os.environ)
    outcome = asdict(requeue_job(commands, attempt, exclude=[node]))
    record.with_suffix(".0").write_text(json.dumps([node, outcome]))
    time.sleep(60)
record.with_suffix(".1").write_text(json.dumps([node, restarts]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The sandbox's queue, and the jobs a test has put there."""

    sandbox: Sandbox
    commands: SlurmCommands
    jobs: list[str] = field(default_factory=list)

    def submit(self, *words: str, run: str = "sleep 300") -> str:
        """Submit a small job and return its id."""
        wrap = ["--output=/dev/null", "--mem-per-cpu=50", *words, f"--wrap={run}"]
        job = self.sandbox.slurm("sbatch", "--parsable", *wrap).strip()
        self.jobs.append(job)
        return job

    def see(self, job: str) -> Observation:
        """Ask what a job does."""
        seen = observe_queued_job(job, self.commands, datetime.now(UTC))
        assert seen is not None
        return seen

    def wait(self, job: str, until: Callable[[Observation], bool], what: str) -> Observation:
        """Ask until it is so; who waits in vain is shown what Slurm says of the job."""
        try:
            self.sandbox.wait_until(lambda: until(self.see(job)), f"job {job} {what}")
        except pytest.fail.Exception as error:
            said = self.sandbox.slurm("scontrol", "show", "job", job)
            pytest.fail(f"{error}\n{said}\n{self.sandbox.slurm('sinfo', '-N', '-l')}")
        return self.see(job)

    def runs(self, job: str, restarts: int = 0) -> Observation:
        """Wait until this incarnation of a job runs."""
        return self.wait(
            job,
            lambda one: one.restarts == restarts and one.state.text == "RUNNING",
            f"runs for the time {restarts}",
        )

    def requeue(self, job: str, *exclude: str, owned: bool = True) -> RequeueResult:
        """Ask for a new attempt, as the first attempt of this job."""
        attempt = JobAttempt(job=job, restart_count=0, asked=asking(nodes=1), owns_run=lambda: owned)
        return requeue_job(self.commands, attempt, exclude=exclude, patience=timedelta(minutes=2))


@pytest.fixture
def queue(sandbox: Sandbox) -> Iterator[Queue]:
    """Hand out the queue; cancel what a test leaves there."""
    commands = SlurmCommands(bin_dir=str(sandbox.bin_dir), environ={"PATH": "/usr/bin:/bin"})
    queue = Queue(sandbox=sandbox, commands=commands)
    yield queue
    cancel_jobs(queue.jobs, commands)


def test_requeue_starts_a_job_anew_once(queue: Queue) -> None:
    """However often one event is told, by whomever, the job restarts once."""
    job = queue.submit("--requeue")
    queue.runs(job)
    with ThreadPoolExecutor() as pool:
        outcomes = list(pool.map(queue.requeue, [job] * 3))
    assert {outcome.outcome for outcome in outcomes} == {RequeueOutcome.requeued}
    queue.runs(job, restarts=1)
    assert queue.requeue(job).message == "requeued already: RUNNING, restart 1"
    assert queue.runs(job, restarts=1).restarts == 1


def test_requeue_outlasts_an_outage_of_the_controller_and_happens_once(queue: Queue) -> None:
    """A controller that comes back finds one wish, not as many as there were tries."""
    job = queue.submit("--requeue")
    queue.runs(job)
    queue.sandbox.act("stop-controller")
    with ThreadPoolExecutor() as pool:
        try:
            asked = pool.submit(queue.requeue, job)
            with pytest.raises(TimeoutError):
                asked.result(timeout=2)
        finally:
            queue.sandbox.act("start-controller")
        assert asked.result(timeout=120).outcome is RequeueOutcome.requeued
    queue.runs(job, restarts=1)


def test_requeue_by_a_fenced_attempt_does_nothing(queue: Queue) -> None:
    """An attempt that does not own its run any more leaves the job alone."""
    job = queue.submit("--requeue")
    queue.runs(job)
    assert queue.requeue(job, owned=False).outcome is RequeueOutcome.fenced
    seen = queue.see(job)
    assert (seen.state.base, seen.restarts) == (BaseState.running, 0)


def test_requeue_of_an_element_leaves_its_array_alone(queue: Queue) -> None:
    """An element is named as such: also the first, whose job id is the array's."""
    main = queue.submit("--requeue", "--array=0-2")
    for index in range(3):
        queue.runs(f"{main}_{index}")
    assert queue.requeue(f"{main}_0", "n1").outcome is RequeueOutcome.requeued
    again = queue.runs(f"{main}_0", restarts=1)
    assert "n1" not in again.nodes
    others = [queue.see(f"{main}_{index}") for index in (1, 2)]
    assert [(other.state.text, other.restarts) for other in others] == [("RUNNING", 0)] * 2
    assert ask_excluded_nodes(f"{main}_1", queue.commands) == ()


def test_requeue_excludes_its_own_node_before_it_is_ended(queue: Queue, tmp_path: Path) -> None:
    """The attempt that asks is ended by its wish, and still says in time what to leave out."""
    program = tmp_path / "inside.py"
    program.write_text(INSIDE)
    words = f"exec {sys.executable} {program} {queue.sandbox.bin_dir} {tmp_path / 'record'}"
    words += f" {TESTS} {TESTS.parent}"
    job = queue.submit("--requeue", run=words)
    queue.wait(job, lambda one: one.state.ended, "has ended")
    node, outcome = json.loads((tmp_path / "record.0").read_text())
    assert outcome["outcome"] == "requeued"
    assert outcome["excluded"] == [node]
    other, restarts = json.loads((tmp_path / "record.1").read_text())
    assert restarts == 1
    assert other != node


def test_requeue_keeps_what_was_excluded_before(queue: Queue) -> None:
    """Nodes stay left out in all later attempts, those of the submission too."""
    job = queue.submit("--requeue", "--exclude=n4")
    queue.runs(job)
    assert queue.requeue(job, "n1").excluded == ("n4", "n1")
    queue.runs(job, restarts=1)
    attempt = JobAttempt(job=job, restart_count=1, asked=asking(nodes=1), owns_run=lambda: True)
    assert requeue_job(queue.commands, attempt).outcome is RequeueOutcome.requeued
    queue.runs(job, restarts=2)
    assert set(ask_excluded_nodes(job, queue.commands)) == {"n1", "n4"}


def test_requeue_leaves_a_job_the_nodes_it_needs(queue: Queue) -> None:
    """With all nodes named, as many stay as the job asks for: it is not held for ever."""
    job = queue.submit("--requeue")
    queue.runs(job)
    outcome = queue.requeue(job, *queue.sandbox.nodes)
    assert outcome.excluded == queue.sandbox.nodes[:-1]
    assert queue.runs(job, restarts=1).nodes == queue.sandbox.nodes[-1]


def test_requeue_where_it_is_not_allowed_is_refused(queue: Queue) -> None:
    """A job submitted with --no-requeue cannot be started anew; an orphaned one is cancelled."""
    job = queue.submit("--no-requeue")
    queue.runs(job)
    outcome = queue.requeue(job)
    assert outcome.outcome is RequeueOutcome.refused
    assert "disabled" in outcome.message
    attempt = JobAttempt(job=job, restart_count=0, asked=asking(nodes=1), owns_run=lambda: True)
    assert "was cancelled" in requeue_or_cancel(queue.commands, attempt).message
    ended = queue.wait(job, lambda one: one.state.ended, "has ended")
    assert ended.state.base is BaseState.cancelled


def test_job_with_a_dead_node_is_queued_again_before_slurm_misses_it(queue: Queue) -> None:
    """The dead node is let go first, so the next attempt does not wait for SlurmdTimeout.

    That is 12 s here: on a machine that does other things, Slurm may be first, but not each time.
    """
    assert any(_is_back_before_slurm_misses_a_node(queue) for _ in range(3))


def _is_back_before_slurm_misses_a_node(queue: Queue) -> bool:
    # As the supervisor, it leaves no srun behind. One that waits for the dead node's task kills
    # step 0 again KillWait + 2 s later: that of the next attempt, which has begun by then (22.05).
    # Ended at once, it would not hear of the other task's end, and the step tries to tell for 2 s.
    step = "srun --nodes=2 --ntasks=2 --no-kill sleep 300"
    run = f"trap 'sleep 0.3; kill -KILL $!; exit' TERM; {step} & wait"
    job = queue.submit("--requeue", "--no-kill", "--nodes=2", run=run)
    _, dead = expand_hostlist(queue.runs(job).nodes)
    queue.sandbox.act("kill-node", dead)
    try:
        attempt = JobAttempt(
            job=job, restart_count=0, asked=asking(nodes=2), owns_run=lambda: True, lost=(dead,)
        )
        outcome = requeue_job(queue.commands, attempt, exclude=[dead])
        assert (outcome.outcome, outcome.excluded) == (RequeueOutcome.requeued, (dead,))
        again = queue.runs(job, restarts=1)
        was_first = not queue.sandbox.state_of_node(dead).startswith("down")
    finally:
        queue.sandbox.act("revive-node", dead)
    nodes = expand_hostlist(again.nodes)
    assert len(nodes) == 2
    assert dead not in nodes
    cancel_jobs([job], queue.commands)
    return was_first


def test_job_whose_batch_host_died_is_started_anew_by_another_node(queue: Queue) -> None:
    """Slurm keeps a --no-kill job without its batch script; who asks gets it back, elsewhere."""
    job = queue.submit(
        "--requeue", "--no-kill", "--nodes=2", run="srun --nodes=2 --ntasks=2 --no-kill sleep 300"
    )
    host, other = expand_hostlist(queue.runs(job).nodes)
    queue.sandbox.act("kill-node", host)
    try:
        left = queue.wait(job, lambda one: one.nodes == other, f"has lost {host}")
        assert (left.state.text, left.restarts) == ("RUNNING", 0)
        attempt = JobAttempt(job=job, restart_count=0, asked=asking(nodes=2), owns_run=lambda: True)
        outcome = requeue_or_cancel(queue.commands, attempt, exclude=[host])
        assert (outcome.outcome, outcome.excluded) == (RequeueOutcome.requeued, (host,))
        nodes = expand_hostlist(queue.runs(job, restarts=1).nodes)
    finally:
        queue.sandbox.act("revive-node", host)
    assert len(nodes) == 2
    assert host not in nodes


@pytest.mark.parametrize("run", ["exec sleep 300", "trap '' TERM; sleep 300 & wait; sleep 300"])
def test_cancelled_job_is_not_brought_back(queue: Queue, run: str) -> None:
    """A user's scancel stays the final event, also while processes of the job are left."""
    job = queue.submit("--requeue", run=run)
    queue.runs(job)
    queue.sandbox.slurm("scancel", job)
    assert queue.requeue(job).outcome is RequeueOutcome.refused
    assert ask_why_job_ends(queue.commands, job, 0).cancelled
    ended = queue.wait(job, lambda one: one.state.ended, "has ended")
    assert ended.state.base is BaseState.cancelled


def test_job_that_is_gone_is_refused(queue: Queue) -> None:
    """Slurm does not know it: there is nothing to start anew."""
    assert queue.requeue("99999999").outcome is RequeueOutcome.refused


def test_limits_of_a_job_are_slurms(queue: Queue) -> None:
    """The end is its start and its time limit; KillWait and grace are the sandbox's."""
    before = time.monotonic()
    job = queue.submit("--time=7")
    queue.runs(job)
    limits = ask_job_limits(queue.commands, job, {})
    running = time.monotonic()
    assert limits.end_s is not None
    # Slurm tells moments in whole seconds.
    assert before - 1 <= limits.end_s - timedelta(minutes=7).total_seconds() <= running + 1
    assert limits.kill_wait == timedelta(seconds=5)
    assert limits.grace == timedelta(seconds=queue.sandbox.options["grace"])
    assert limits.preempt_mode is PreemptMode.requeue


def test_preemption_is_told_from_what_comes_after_it(queue: Queue) -> None:
    """Also during the grace; the next attempt does not count as preempted."""
    job = queue.submit("--requeue", "--exclusive", "--nodelist=n4", run="trap '' TERM; sleep 300")
    queue.runs(job)
    assert ask_why_job_ends(queue.commands, job, 0).runs_on
    urgent = queue.submit("--partition=urgent", "--exclusive", "--nodelist=n4", run="sleep 1")
    queue.sandbox.wait_until(
        lambda: ask_why_job_ends(queue.commands, job, 0).cause is Cause.preempted, f"{job} is preempted"
    )
    queue.wait(job, lambda one: one.restarts == 1, "is requeued")
    assert ask_why_job_ends(queue.commands, job, 0).cause is Cause.preempted
    assert queue.requeue(job).message.startswith("requeued already")
    queue.wait(urgent, lambda one: one.state.ended, "has ended")
    queue.runs(job, restarts=1)
    assert ask_why_job_ends(queue.commands, job, 1).runs_on
    queue.sandbox.slurm("scancel", job)
    assert ask_why_job_ends(queue.commands, job, 1).cancelled
