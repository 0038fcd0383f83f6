"""Promises of the classes and signatures: on real failures, and on texts as they were seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import thorough

from hpckit.model.failure import Cause, RankExit
from hpckit.planning.recovery.classify import (
    add_exception_from_log,
    classify_rank_exit,
    compute_failure_signature,
)

OOM = "cgroup /slurm/job_7 counted 1 OOM kill"


def raised(name: str, message: str = "", traceback: str | None = None, oom: str | None = None) -> RankExit:
    """Return the record of a rank whose code raised."""
    return RankExit(rank=0, node="n1", code=1, exception=name, message=message, traceback=traceback, oom=oom)


def died(signal: str | None = None, code: int | None = None, oom: str | None = None) -> RankExit:
    """Return the record of a rank that left no exception."""
    return RankExit(rank=3, node="n2", code=code, signal=signal, oom=oom)


GLOO = "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/"
ENDING = "This is typically caused by a remote worker crashing. Check the logs of the remote worker"

FULL = Cause.disk_full

SAID = [
    # torch 2.13 on gloo, rank 1 killed in, and before, an all_reduce; rank 1 asleep
    ("RuntimeError", f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:1934. {ENDING}", 0),
    ("RuntimeError", f"{GLOO}pair.cc:537] Read error [10.0.0.1]:3: Connection reset by peer.", 0),
    ("RuntimeError", f"{GLOO}unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation", 0),
    ("DistNetworkError", "Failed to recv, got 0 bytes. Connection was likely closed.", 0),
    ("DistNetworkError", "Broken pipe", 0),
    ("DistStoreError", "wait timeout after 1000ms, keys: /nope", 0),
    (
        "DistBackendError",
        (
            "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:51, remote process exited "
            "or there was a network error, NCCL version 2.27.5\nncclRemoteError: A call failed "
            "possibly due to a network error or a remote process exiting prematurely."
        ),
        0,
    ),
    (
        "DistBackendError",
        (
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
            "OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600029 milliseconds"
        ),
        0,
    ),
    ("RuntimeError", "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 5000 ms", 0),
    # these are a rank's own
    (
        "DistBackendError",
        (
            "NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.27.5\n"
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
            "Duplicate GPU detected"
        ),
        Cause.exception,
    ),
    (
        "RuntimeError",
        f"[enforce fail at {GLOO}pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
        Cause.exception,
    ),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer", Cause.exception),
    ("BrokenPipeError", "[Errno 32] Broken pipe", Cause.exception),
    # the device's memory
    (
        "OutOfMemoryError",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB",
        Cause.cuda_oom,
    ),
    ("RuntimeError", "CUDA out of memory. Tried to allocate 20 MiB", Cause.cuda_oom),
    ("AcceleratorError", "CUDA error: out of memory\nCUDA kernel errors might", Cause.cuda_oom),
    (
        "DistBackendError",
        (
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
            "Cuda failure 2 'out of memory'"
        ),
        Cause.cuda_oom,
    ),
    ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", Cause.crash),
    ("AcceleratorError", "CUDA error: device-side assert triggered", Cause.exception),
    # ours
    ("NonFiniteLossError", "the loss was nan 10 times in a row, last at step 71", Cause.nan),
    ("RendezvousError", "rank 3 is missing", Cause.rendezvous),
    # torch.save on a full disk, torch 2.13
    ("RuntimeError", "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534", FULL),
    ("OSError", "[Errno 122] Disk quota exceeded: '/scratch/x'", FULL),
    ("_ArrayMemoryError", "Unable to allocate 7.11 PiB for an array", Cause.host_oom),
]


@pytest.mark.parametrize(("name", "message", "cause"), SAID)
def test_exception_is_classified_by_what_it_says(name: str, message: str, cause: object) -> None:
    """Texts of torch, gloo, NCCL and the system, each with the class that a reader would name."""
    assert classify_rank_exit(raised(name, message)) is (cause or Cause.communication)


ENDS = [
    (died("SIGKILL"), Cause.signal, "signal-SIGKILL"),
    (died("SIGTERM"), Cause.signal, "signal-SIGTERM"),
    (died("SIGSEGV"), Cause.crash, "crash-SIGSEGV"),
    (died("SIGKILL", oom=OOM), Cause.host_oom, "host_oom"),
    (died("SIGSEGV", oom=OOM), Cause.crash, "crash-SIGSEGV"),
    (died(code=137, oom=OOM), Cause.host_oom, "host_oom"),
    (died(code=137), Cause.exit_code, "exit_code-137"),
    (died(code=3, oom=OOM), Cause.exit_code, "exit_code-3"),
]


@pytest.mark.parametrize(("record", "cause", "told"), ENDS)
def test_end_without_exception_is_classified(record: RankExit, cause: Cause, told: str) -> None:
    """A signal from outside, a crash, an exit code; out of memory only for who was killed."""
    assert classify_rank_exit(record) is cause
    assert compute_failure_signature(record) == told


def test_exception_is_what_it_was_raised_from() -> None:
    """A wrapper that says nothing does not hide the broken connection; a handler's own bug does."""
    lost = f"Traceback (most recent call last):\n  File 'a'\nRuntimeError: {SAID[0][1]}\n"
    own = "\nTraceback (most recent call last):\n  File 'b'\nTrainingError: step failed\n"
    direct = "\nThe above exception was the direct cause of the following exception:\n"
    handling = "\nDuring handling of the above exception, another exception occurred:\n"
    wrapped = raised("TrainingError", "step failed", lost + direct + own)
    assert classify_rank_exit(wrapped) is Cause.communication
    assert classify_rank_exit(raised("KeyError", "'x'", lost + handling + own)) is Cause.exception


RUNNER = """
import json, os, runpy, sys, traceback
try:
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
except BaseException as error:
    told = traceback.TracebackException.from_exception(error)
    said = {"exception": type(error).__name__, "message": str(told),
            "traceback": "".join(told.format())}
    sys.stdout.write("RECORD" + json.dumps(said) + chr(10))
    sys.stdout.flush()
    os._exit(1)
"""


class Bench:
    """Runs small scripts for real, as a rank would be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, code: str, *arguments: str, place: str = "code") -> RankExit:
        """Run a script that raises, in a folder of its own; returns its record."""
        return self.read(self.start(code, *arguments, place=place), arguments)

    def start(self, code: str, *arguments: str, place: str = "code") -> subprocess.Popen[str]:
        """Start a script."""
        (self.folder / place).mkdir(exist_ok=True)
        script = self.folder / place / "train.py"
        script.write_text(code)
        command = [sys.executable, "-c", RUNNER, str(script), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def read(self, process: subprocess.Popen[str], arguments: tuple[str, ...] = ()) -> RankExit:
        """Wait for a script's end; returns its record."""
        output, _ = process.communicate(timeout=120)
        said = json.loads(output.rpartition("RECORD")[2])
        rank = int(arguments[0]) if arguments else 0
        return RankExit(rank=rank, node=f"n{rank}", code=process.returncode, **said)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a place to run scripts in."""
    return Bench(tmp_path)


BUG = """
import sys
rank, step = int(sys.argv[1]), int(sys.argv[2])
def loss_of(batch):
    raise ValueError(f"rank {rank} of node n{rank}: bad sample {step * 7919} at "
                     f"{hex(id(batch))} in {__file__}: shape [{rank + 2}, {step}], loss {1 / step}")
def train():
    for batch in [object()]:
        loss_of(batch)
train()
"""


def test_same_bug_on_another_rank_has_the_same_signature(bench: Bench) -> None:
    """Ranks, steps, addresses, paths, shapes and an edit above differ; the failure does not."""
    first = bench.run(BUG, "0", "12")
    second = bench.run("\n\n# edited\n" + BUG, "3", "45017", place="elsewhere-7")
    assert first.message != second.message
    assert compute_failure_signature(first) == compute_failure_signature(second)
    assert classify_rank_exit(first) is Cause.exception


def test_other_bugs_have_other_signatures(bench: Bench) -> None:
    """Another type, another message, another function: another failure."""
    records = [
        bench.run(BUG, "0", "12"),
        bench.run(BUG.replace("ValueError", "RuntimeError"), "0", "12"),
        bench.run(BUG.replace("bad sample", "no sample"), "0", "12"),
        bench.run(BUG.replace("loss_of", "metric_of"), "0", "12"),
        bench.run("{}['vocab']"),
        bench.run("{}['labels']"),
        bench.run("open('/no/such/file')"),
        bench.run("open('/proc/1/mem/x')"),
    ]
    assert len({compute_failure_signature(record) for record in records}) == len(records)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("bytearray(10**15)", Cause.host_oom),
        ("with open('/dev/full', 'w') as file: file.write('x')", Cause.disk_full),
        ("import os\nraise OSError(122, os.strerror(122))", Cause.disk_full),
        ("1 / 0", Cause.exception),
    ],
)
def test_python_s_own_failures_are_classified(bench: Bench, code: str, cause: Cause) -> None:
    """What Python really says when memory or disk run out is understood."""
    assert classify_rank_exit(bench.run(code)) is cause


LIBRARY = """
import sys
sys.path.insert(0, sys.argv[1])
import deep
def train():
    deep.one()
train()
"""


def test_frames_of_libraries_do_not_tell_failures_apart(bench: Bench, tmp_path: Path) -> None:
    """The user's frames say where; how deep a library raised, on another version, does not."""
    told = []
    for name, body in (("a", "raise ValueError('x')"), ("b", "two()")):
        folder = tmp_path / name / "site-packages"
        folder.mkdir(parents=True)
        text = f"def two():\n    raise ValueError('x')\ndef one():\n    {body}\n"
        (folder / "deep.py").write_text(text)
        process = bench.start(LIBRARY, str(folder))
        told.append(compute_failure_signature(bench.read(process)))
    assert told[0] == told[1]


TORCH = """
import os, signal, sys, torch
{}
"""
WORKER = """
from torch.utils.data import DataLoader, Dataset
class Samples(Dataset):
    def __len__(self): return 9
    def __getitem__(self, index): os.kill(os.getpid(), signal.SIGKILL)
for sample in DataLoader(Samples(), num_workers=1): pass
"""


@pytest.mark.training
def test_torch_s_own_failures_are_classified(bench: Bench) -> None:
    """What torch really says of memory, of a full disk and of a killed worker is understood."""
    assert classify_rank_exit(bench.run(TORCH.format("torch.empty(10**15)"))) is Cause.host_oom
    full = bench.run(TORCH.format("torch.save(torch.zeros(10**6), '/dev/full')"))
    assert classify_rank_exit(full) is Cause.disk_full
    worker = bench.run(TORCH.format(WORKER))
    assert classify_rank_exit(worker) is Cause.signal
    assert classify_rank_exit(raised(worker.exception or "", worker.message or "", oom=OOM)) is Cause.host_oom


PEERS = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
rank, store, where = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3,
                        timeout=timedelta(seconds=30))
ones = torch.ones(10)
dist.all_reduce(ones)
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
for step in range(100):
    dist.all_reduce(ones) if where == "reduce" else dist.barrier()
"""


@pytest.mark.training
@pytest.mark.parametrize("where", ["reduce", pytest.param("barrier", marks=thorough)])
def test_survivors_of_a_killed_rank_fail_of_communication(bench: Bench, tmp_path: Path, where: str) -> None:
    """What both peers of a rank killed on gloo really raise is one and the same failure."""
    arguments = [(str(rank), str(tmp_path / "store"), where) for rank in range(3)]
    processes = [bench.start(PEERS, *argument) for argument in arguments]
    survivors = [bench.read(processes[rank], arguments[rank]) for rank in (0, 1)]
    processes[2].communicate()
    assert [classify_rank_exit(survivor) for survivor in survivors] == [Cause.communication] * 2
    assert len({compute_failure_signature(survivor) for survivor in survivors}) == 1


def test_command_s_traceback_is_read_from_its_log(tmp_path: Path) -> None:
    """A command that is Python leaves no record; its log ends in the same words."""
    script = tmp_path / "train.py"
    script.write_text(
        "def save():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n"
        "        raise RuntimeError('epoch 3') from error\nprint('loss 1')\nsave()\n"
    )
    command = [sys.executable, "-u", str(script)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    record = add_exception_from_log(died(code=done.returncode), done.stdout)
    assert (record.exception, record.message) == ("RuntimeError", "epoch 3")
    assert record.traceback is not None
    assert record.traceback.startswith("Traceback")
    assert "ZeroDivisionError" in record.traceback
    assert compute_failure_signature(record).startswith("exception-")


BROKEN = """loss 1
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
pydantic.ValidationError: 2 validation errors for Config
optimizer.lr: has to be positive
  got -3

steps
  is missing
"""


@pytest.mark.parametrize(
    "after",
    [
        "",
        "\n",
        "wandb: View run at https://example.org\n",
        "[W1127 12:00:00.1 Group.cpp:12] Warning: destroy_process_group() was not called\n",
        "sys:1: ResourceWarning: unclosed file\n",
        "2026-01-01 12:00:00 connection closed by peer\n",
        "INFO:root:gloo connection closed by peer\n",
        "Exception ignored in: <function f>\nTraceback (most recent call last):\n  ...\n",
    ],
)
def test_message_of_several_lines_is_kept_whole(after: str) -> None:
    """The line that says what is wrong is often not the first; what others print is no message."""
    record = add_exception_from_log(died(code=1), BROKEN + after)
    whole = BROKEN.partition("ValidationError: ")[2].rstrip()
    assert (record.exception, record.message) == ("ValidationError", whole)
    assert record.traceback == BROKEN.partition("loss 1\n")[2]
    assert classify_rank_exit(record) is Cause.exception


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Killed. ", Cause.signal),
        ("DataLoader worker (pid(s) 7, 8) exited unexpectedly", Cause.signal),
        ("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible", Cause.crash),
        ("DataLoader worker (pid 7) is killed by signal: Segmentation fault. ", Cause.crash),
        ("Caught ValueError in DataLoader worker process 0.", Cause.exception),
    ],
)
def test_worker_that_something_killed_is_no_error_of_the_user(said: str, cause: Cause) -> None:
    """It is tried again as a rank is that was killed; an exception in a worker is not."""
    assert classify_rank_exit(raised("RuntimeError", said)) is cause


LOADER = """Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1, in {function}
    data = self._data_queue.get(timeout=timeout)
{name}
"""


@pytest.mark.parametrize(
    ("name", "function", "cause"),
    [
        ("ConnectionResetError", "_try_get_data", Cause.signal),
        ("EOFError", "_try_get_data", Cause.signal),
        ("EOFError", "_next_data", Cause.exception),
        ("ValueError", "_try_get_data", Cause.exception),
    ],
)
def test_pipe_of_a_worker_that_was_killed_is_no_error_of_the_user(
    name: str, function: str, cause: Cause
) -> None:
    """Now and then torch notices the torn pipe before it notices the worker's end."""
    told = LOADER.format(function=function, name=name)
    assert classify_rank_exit(raised(name, "", told)) is cause
    assert classify_rank_exit(raised(name, "", told, oom=OOM)) is (
        Cause.host_oom if cause is Cause.signal else cause
    )


WATCHDOG = """step 4
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with \
exception: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, Op
Exception raised from ncclCommWatchdog at ../ProcessGroupNCCL.cpp:1895 (most recent call first):
"""


def test_watchdog_s_abort_is_communication() -> None:
    """NCCL's watchdog ends a rank by SIGABRT; what it printed tells it from a crash."""
    assert classify_rank_exit(died("SIGABRT")) is Cause.crash
    assert classify_rank_exit(add_exception_from_log(died("SIGABRT"), WATCHDOG)) is Cause.communication


def test_log_does_not_overrule_what_is_known() -> None:
    """A record of the rank's own, another exit, or a traceback of long ago stay what they are."""
    log = "Traceback (most recent call last):\n  File 'x'\nValueError: handled\n"
    assert add_exception_from_log(died(code=1), log).exception == "ValueError"
    for record, text in ((raised("KeyError", "'x'"), log), (died("SIGKILL"), log)):
        assert add_exception_from_log(record, text) == record
    for code, text in ((3, log), (1, log + "more\n" * 200), (1, "no traceback\n")):
        assert add_exception_from_log(died(code=code), text).exception is None


def test_traceback_behind_torch_s_prefix_is_the_exception() -> None:
    """With a process group, torch prefixes every line; exception, message and place are found."""
    told = """step 3
[rank0]: Traceback (most recent call last):
[rank0]:   File "/code/train.py", line 7, in <module>
[rank0]:     main()
[rank0]:   File "/code/train.py", line 3, in main
[rank0]:     raise ValueError("no data")
[rank0]: ValueError: no data
[rank0]:[W1122 00:00:00 ProcessGroupGloo.cpp:1] Warning: destroy_process_group() was not called
"""
    record = add_exception_from_log(died(code=1), told)
    assert (record.exception, record.message) == ("ValueError", "no data")
    plain = add_exception_from_log(died(code=1), told.replace("[rank0]: ", "").replace("[rank0]:[", "["))
    assert record.traceback == plain.traceback
    assert compute_failure_signature(record) == compute_failure_signature(plain)


def test_last_lines_of_another_program_are_its_message() -> None:
    """A program that leaves no traceback is told by what it printed last, at most five lines."""
    assert add_exception_from_log(died(code=3), "step 1\n\noops\n").message == "step 1\noops"
    assert (
        add_exception_from_log(died(code=3), "".join(f"{i}\n" for i in range(9))).message == "4\n5\n6\n7\n8"
    )
    long = "".join(f"{i} " + "x" * 90 + "\n" for i in range(9))
    assert add_exception_from_log(died(code=3), long).message == long[-280:].strip()
    assert add_exception_from_log(died(code=3), "").message is None


def test_programs_that_failed_for_different_reasons_have_other_signatures() -> None:
    """An exit code of 1 says nothing; what was printed last does, without its numbers."""

    def signature(log: str, code: int = 1) -> str:
        return compute_failure_signature(add_exception_from_log(died(code=code), log))

    causes = ["config file missing: a.yaml", "Error in solve : singular matrix", "GPU is off", ""]
    assert len({signature(f"step 7\n{cause}") for cause in causes}) == len(causes)
    assert signature("step 1\nstep 2\noops 7") == signature("step 12\noops 8")
    assert signature("oops") != signature("oops", code=3)
    assert signature("oops").startswith("exit_code-1-")
    assert signature("") == "exit_code-1"


GROUP = """
import asyncio
def load(): raise {inner}
async def train():
    async with asyncio.TaskGroup() as group: group.create_task(asyncio.to_thread(load))
asyncio.run(train())
"""


def test_exception_group_of_a_command_is_read_from_its_log(tmp_path: Path) -> None:
    """A task group's exceptions are one exception, told apart by what is in it."""
    found = []
    for inner in ("ValueError('no data')", "KeyError('x')", "MemoryError()"):
        (tmp_path / "train.py").write_text(GROUP.format(inner=inner))
        command = [sys.executable, str(tmp_path / "train.py")]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        found.append(add_exception_from_log(died(code=done.returncode), f"step 1\n{done.stderr}bye\n"))
    assert {record.exception for record in found} == {"ExceptionGroup"}
    assert "(1 sub-exception)" in (found[0].message or "")
    assert (found[0].traceback or "").splitlines()[-2].endswith("| ValueError: no data")
    assert [classify_rank_exit(record) for record in found] == [
        Cause.exception,
        Cause.exception,
        Cause.host_oom,
    ]
    assert len({compute_failure_signature(record) for record in found}) == len(found)


def test_traceback_before_what_is_printed_at_exit_is_the_exception() -> None:
    """Handlers of `atexit` may print a summary of some sixty lines."""
    record = add_exception_from_log(died(code=1), BROKEN + "closed a file\n" * 60)
    assert record.exception == "ValidationError"
