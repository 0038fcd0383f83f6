"""`hpckit.Executor` on real runs on this machine: what a job promises, and what a fault costs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpckit
from hpckit.errors import ConfigError, ForeignError, RunFailedError, UsageError
from hpckit.executor.watcher import WATCHER
from hpckit.record.store import read_json

pytestmark = pytest.mark.training

WORK = """
import os, sys, time
from pathlib import Path
import hpckit


class TooMuch(Exception):
    def __init__(self, limit):
        super().__init__(f"more than {limit}")
        self.limit = limit


def add(left, right=0):
    print("adding", left, flush=True)
    return left + right


def fail(limit):
    raise TooMuch(limit)


def train(total, mark):
    run, state, done = hpckit.attach(), State(), []
    run.state(mine=state)
    for step in run.steps(total):
        state.seen.append(step)
        done.append(step)
        if step == 2:
            time.sleep(0.5)
            kill_once(mark)
    return state.seen, done


class State:
    seen: list

    def __init__(self):
        self.seen = []

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])


def kill_once(mark):
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), 9)
    return "came back"


def tell_rank():
    import submitit
    environment = submitit.JobEnvironment()
    print("hello from", environment.global_rank, flush=True)
    return environment.global_rank, environment.num_tasks


def show_words(secret, note):
    return Path(f"/proc/{os.getpid()}/cmdline").read_text()


def end_process(*ranks):
    if not ranks or int(os.environ["HPCKIT_RANK"]) in ranks:
        os._exit(0)


def leave_once(mark):
    if not Path(mark).exists():
        Path(mark).touch()
        sys.exit(75)
    return "came back"


def import_attach():
    return hpckit.attach.__name__  # without a call of it


class Bad:
    def __reduce__(self):
        return divmod, (1, 0)


def return_bad():
    return Bad()


class Count(hpckit.Checkpointable):
    reached = 0

    def __call__(self, total, mark):
        Path(mark).write_text(str(os.getpid()))
        if self.reached:
            return self.reached
        for self.reached in range(1, total):
            time.sleep(0.1)
"""


ELSEWHERE = """
import hpckit, pickle, sys
print(pickle.load(sys.stdin.buffer).result(30))
hpckit.Executor(sys.argv[1] + "/elsewhere", cluster="local", cwd=sys.argv[1]).submit(len, "hello")
"""
"""A process that ends right after a submission, which is made nevertheless."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a user's project with a module that this process imports."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "calls.py").write_text(WORK)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("calls", None)


@pytest.fixture(scope="module")
def calls(project: Path) -> Any:
    """Return the module."""
    assert project
    return importlib.import_module("calls")


def make_executor(project: Path, outputs: str = "out", **more: Any) -> hpckit.Executor:
    """Return an executor of the project on this machine."""
    overrides = ["cluster.max_parallel=9", *more.pop("overrides", ())]
    return hpckit.Executor(project / outputs, cluster="local", cwd=project, overrides=overrides, **more)


def wait_until(is_so: Callable[[], Any], what: str) -> None:
    """Wait for a fact."""
    until = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.05)


async def _await(job: hpckit.Job[Any]) -> Any:
    async with asyncio.timeout(60):
        return await asyncio.wrap_future(job)


@pytest.fixture(scope="module")
def jobs(project: Path, calls: Any) -> dict[str, hpckit.Job[Any]]:
    """Return jobs of one batch; one of them got a notice, one was cancelled, two were killed."""
    executor, secret = make_executor(project, overrides=["checkpoint.interval_steps=1"]), 7
    given: dict[str, hpckit.Job[Any]] = {}
    with executor.batch():
        given["named"] = executor.submit(calls.add, 1, right=2)
        given["closure"] = executor.submit(lambda: {secret})
        given["fails"] = executor.submit(calls.fail, 3)
        given["killed"] = executor.submit(calls.kill_once, str(project / "killed"))
        given["trains"] = executor.submit(calls.train, 5, str(project / "trained"))
        given["counts"] = executor.submit(calls.Count(), 600, str(project / "pid"))
        given["sleeps"] = executor.submit(time.sleep, 600)
        with pytest.raises(AttributeError, match="submitted at its end"):
            given["named"].result()
        with pytest.raises(RuntimeError, match="parameters cannot change"):
            executor.update_parameters(nodes=1)
        with pytest.raises(RuntimeError, match="Nesting"), executor.batch():
            pass
    wait_until(lambda: given["sleeps"].running() and (project / "pid").exists(), "all began")
    assert not given["sleeps"].done(force_check=True)
    assert given["sleeps"].cancel()
    time.sleep(1)
    os.kill(int((project / "pid").read_text()), signal.SIGTERM)
    executor.shutdown()
    return given


def test_contract_of_automation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The expression that programs rely on; it starts no process of its own that stays."""
    monkeypatch.chdir(tmp_path)
    assert hpckit.Executor(folder=tmp_path / "out", cluster="local").submit(pow, 2, 10).result() == 1024


def test_results_are_what_the_functions_returned(jobs: dict[str, hpckit.Job[Any]]) -> None:
    """Of an importable function without any pickle, of a closure by value; all in one launch."""
    named, closure = jobs["named"], jobs["closure"]
    assert (named.result(), named.results(), named.exception()) == (3, [3], None)
    assert closure.result() == {7}
    assert (named.state, named.done(), named.running()) == ("COMPLETED", True, False)
    assert named.stdout() == named.stderr() == "adding 1\n"
    assert len({job.run.folder for job in jobs.values()}) == 1
    assert read_json(named.paths.result)["value"] == 3
    assert sorted(path.name for path in named.paths.result.parent.iterdir()) == [named.paths.result.name]
    submitted = named.submission()
    assert (submitted.args, submitted.kwargs, submitted.result()) == ((1,), {"right": 2}, 3)
    assert jobs["closure"].submission().result() == {7}
    assert repr(named) == f"<Job {named.job_id}: COMPLETED>"
    assert named.task(0) is named
    with pytest.raises(ValueError, match="must be between 0 and 0"):
        named.task(1)


def test_failure_has_the_exception_and_its_traceback(jobs: dict[str, hpckit.Job[Any]]) -> None:
    """The cause is classified; the function's own exception is there where it unpickles. Others go on."""
    error = jobs["fails"].exception()
    assert isinstance(error, RunFailedError)
    assert (error.cause, error.state, error.run) == ("exception", "failed", jobs["fails"].job_id)
    assert "TooMuch: more than 3" in error.message
    (note,) = error.__notes__
    assert "in fail\n    raise TooMuch(limit)" in note
    assert "hpckit/executor" not in note
    # Its own constructor takes another argument than its text, so it does unpickle, as that.
    assert type(error.__cause__).__name__ == "TooMuch"
    with pytest.raises(RunFailedError):
        jobs["fails"].result()
    assert jobs["fails"].results(raise_=False) == [error]


def test_killed_calls_are_made_again(jobs: dict[str, hpckit.Job[Any]]) -> None:
    """From the start, or with `run.steps()` inside from the newest checkpoint."""
    assert jobs["killed"].result() == "came back"
    seen, done = jobs["trains"].result()
    assert seen == [0, 1, 2, 3, 4]
    assert done == seen[-len(done) :]
    assert len(done) < len(seen), "the second round has not begun anew"


def test_notice_lets_a_checkpointable_say_what_comes_next(jobs: dict[str, hpckit.Job[Any]]) -> None:
    """The next round calls the object as it was when the notice came."""
    assert 1 <= jobs["counts"].result() < 600


def test_cancelled_job_is_cancelled(jobs: dict[str, hpckit.Job[Any]]) -> None:
    """In the words of the standard library, and as the run's own state."""
    assert jobs["sleeps"].cancelled()
    assert jobs["sleeps"].state == "CANCELLED"
    assert jobs["sleeps"].cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        jobs["sleeps"].result()


def test_jobs_are_found_again(project: Path, jobs: dict[str, hpckit.Job[Any]]) -> None:
    """By a pickle or a reference, also in another process; runs that are none of an executor are refused."""
    again = pickle.loads(pickle.dumps(jobs["named"]))  # noqa: S301
    opened = make_executor(project).open(jobs["named"].run.folder.name)
    assert again.result(30) == opened[0].result(30) == 3
    with pytest.raises(concurrent.futures.CancelledError):
        opened[6].result(30)
    words = [sys.executable, "-c", ELSEWHERE, str(project)]
    done = subprocess.run(words, input=pickle.dumps(jobs["closure"]), capture_output=True, check=True)
    assert done.stdout == b"{7}\n"
    (left,) = make_executor(project, "elsewhere").open("len")
    assert left.result(60) == 5
    folder = jobs["closure"].paths.result.parent
    folder.chmod(0o777)
    with pytest.raises(ForeignError, match="others may have written it"):
        pickle.loads(pickle.dumps(jobs["closure"])).result(30)  # noqa: S301
    folder.chmod(0o700)


def test_tasks_and_loose_submits(project: Path, calls: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Each rank has its result; a loop of submits is one launch; threads and event loops may use jobs."""
    executor = make_executor(project, "loose", tasks_per_node=2, name="two")
    ranks = executor.submit(calls.tell_rank)
    executor.update_parameters(tasks_per_node=1, name=None, stderr_to_stdout=True)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        loop = list(pool.map(lambda number: executor.submit(calls.add, number), range(3)))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(loop[0].result()))
    thread.start()
    assert asyncio.run(_await(loop[1])) == 1
    assert {job.result() for job in concurrent.futures.as_completed(loop, timeout=60)} == {0, 1, 2}
    thread.join()
    assert found == [0]
    assert loop[0].stderr() is None
    assert len({job.run.folder for job in loop}) == 1
    assert ranks.results() == [(0, 2), (1, 2)]
    assert (ranks.result(), ranks.num_tasks) == ((0, 2), 2)
    task = pickle.loads(pickle.dumps(ranks.task(1)))  # noqa: S301
    assert (task.result(), task.stdout(), task.state) == ((1, 2), "hello from 1\n", "COMPLETED")
    assert ranks.run.folder.name.startswith("two-")
    assert list(executor.map(calls.add, [1, 1], [3, 3], timeout=60)) == [4, 4]
    assert caplog.messages == [], "the same call several times is meant so"
    executor.progress()
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(pow, 2, 2)
    assert WATCHER.update() == 0


def test_shutdown_cancels_what_waits_and_what_runs(project: Path) -> None:
    """A call that was not launched yet never is; runs are cancelled together."""
    executor = make_executor(project, "cancelled")
    launched = executor.submit(time.sleep, 600)
    assert launched.job_id
    waiting = executor.submit(pow, 2, 2)
    executor.shutdown(cancel_futures=True)
    assert (waiting.cancelled(), launched.cancelled()) == (True, True)
    assert waiting.state == "CANCELLED"
    assert len([*(project / "cancelled").glob("[!.]*")]) == 1


def test_what_prevents_a_launch_is_raised_by_its_jobs(project: Path) -> None:
    """At once by whatever needs the run; an exception in a batch drops its calls."""
    executor = make_executor(project, "never", overrides=["resources.nodes=0"])
    job = executor.submit(pow, 2, 2)
    for ask in (job.result, lambda: job.job_id, job.stdout):
        with pytest.raises(ConfigError, match=r"resources\.nodes"):
            ask()
    assert job.state == "FAILED"
    with pytest.raises(ZeroDivisionError), executor.batch():  # noqa: PT012
        job = executor.submit(pow, 2, 2)
        _ = 1 / 0
    with pytest.raises(UsageError, match="dropped"):
        job.result()
    with pytest.raises(UsageError, match="None cannot be called"):
        executor.submit(None)  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="nothing was submitted"), executor.batch():
        pass
    with pytest.raises(UsageError, match="'debug'"):
        hpckit.Executor(folder=project, cluster="debug")
    with pytest.raises(UsageError, match="max_pickle_size_gb is 1e-06"):
        make_executor(project, max_pickle_size_gb=1e-6).submit(len, os.urandom(5000))


def test_failing_batch_drops_its_own_calls_alone(project: Path) -> None:
    """Not those from before it, nor those of other threads; they can be asked for within it, too."""
    executor = make_executor(project, "own")
    found: list[hpckit.Job[Any]] = [executor.submit(pow, 2, 3)]
    thread = threading.Thread(target=lambda: found.append(executor.submit(pow, 2, 4)))
    with pytest.raises(KeyError), executor.batch():  # noqa: PT012
        dropped = executor.submit(pow, 2, 5)
        thread.start()
        thread.join()
        assert found[0].job_id
        raise KeyError
    assert [job.result(60) for job in found] == [8, 16]
    with pytest.raises(UsageError, match="dropped"):
        dropped.result()
    with executor.batch():
        last = executor.submit(pow, 2, 6)
        executor.shutdown(wait=False)
    assert last.result(60) == 64


def test_callbacks_may_wait_for_other_jobs(project: Path) -> None:
    """They run in a thread of their own: no end waits for them, and they may use jobs."""
    executor, over = make_executor(project, "callbacks"), threading.Event()
    results: list[Any] = []

    def call_back(job: concurrent.futures.Future[int]) -> None:
        results.append(executor.submit(pow, 2, job.result()).result(60))
        over.set()

    first = executor.submit(pow, 2, 3)
    first.add_done_callback(call_back)
    assert over.wait(120)
    assert results == [256]
    assert executor.submit(lambda: first).result(60).result(60) == 8, "a function may return a job"


def test_forked_processes_wait_for_jobs_and_submit_others(project: Path) -> None:
    """No lock or thread of the parent is missed; what the parent alone can launch is an error there."""
    executor = make_executor(project, "forked")
    opened = executor.submit(time.sleep, 3)
    assert opened.job_id
    with executor.batch():
        waits = executor.submit(pow, 2, 3)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                failed = "before the call was submitted" in str(waits.exception(20))
                ended = opened.result(60) is None
                os._exit(41 if failed and ended and executor.submit(pow, 2, 4).result(60) == 16 else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 41
    assert waits.result(60) == 8


def test_arguments_stand_neither_in_processes_nor_in_settings(project: Path, calls: Any) -> None:
    """They may be secrets: only files of the user alone have them."""
    executor = make_executor(project, "private")
    job = executor.submit(calls.show_words, "hunter-2", note="hunter-3")
    assert "hunter" not in job.result(60)
    assert "hunter" not in " ".join(job.run.overrides)
    holders = [
        path for path in (project / "private").rglob("*") if path.is_file() and b"hunter" in path.read_bytes()
    ]
    assert {path.stat().st_mode & 0o777 for path in holders} == {0o600}
    copy = pickle.loads(pickle.dumps(executor))  # noqa: S301
    assert (copy.folder, copy.cwd, copy.parameters) == (executor.folder, executor.cwd, executor.parameters)


def test_job_without_a_readable_result_says_so(project: Path, calls: Any) -> None:
    """By the documented error, at once where no file system is slow; a process that just ended has failed."""
    executor = make_executor(project, "lost ${y}")
    unfinished = "ended with exit code 0 before it had finished"
    ends, returns, imports = executor.submit_array([calls.end_process, calls.return_bad, calls.import_attach])
    leaves = executor.submit(calls.leave_once, str(project / "left"))
    with pytest.raises(RunFailedError, match=unfinished):
        ends.result(60)
    with pytest.raises(RunFailedError, match="completed, but its result cannot be read") as caught:
        returns.result(60)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert (imports.result(60), ends.state, returns.state) == ("attach", "FAILED", "COMPLETED")
    assert leaves.result(60) == "came back"
    executor.update_parameters(tasks_per_node=2)
    later = executor.submit(calls.end_process, 1)
    for raises in (later.result, later.results, later.task(1).result):
        with pytest.raises(RunFailedError, match=f"rank 1 {unfinished}"):
            raises()
