"""What the launches of `scripts/gpu-check` run."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import gpt_training
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

from hpckit import Run
from hpckit.experiments import charlm
from hpckit.model.environment.torch_version import OLDEST_TORCH
from hpckit.record.layout import NCCL_TRACE
from hpckit.runtime.parallel import build

_SIZE = 8192
_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_STOPPED_AT = 40
_SLEEPS_AT = 3
_CYCLES_S = 2e9
"""Of a GPU's clock, at most, in a second."""
_FAKE_LOAD = 0.9


def _allow_older_torch(config: Any) -> None:
    """Lay out also with a torch that hpckit refuses for it: nothing here is restored."""
    if config.older_torch:
        build.OLDEST_FOR_LAYOUTS = OLDEST_TORCH  # type: ignore[attr-defined]


def burn(seconds: float, device: torch.device) -> tuple[float, float]:
    """Load a GPU with products of matrices; return when that began and ended, by the clock.

    Without a GPU the fake one is told that it is loaded.
    """
    if device.type != "cuda":
        return _pretend(seconds)
    left, right = (torch.randn(_SIZE, _SIZE, device=device, dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.synchronize()
    began = time.time()
    while time.time() - began < seconds:
        for _ in range(20):
            torch.mm(left, right)
        torch.cuda.synchronize()
    return began, time.time()


def _pretend(seconds: float) -> tuple[float, float]:
    state = os.environ.get("HPCKIT_FAKE_NVML")
    began = time.time()
    if state:
        file = Path(state)
        lines = file.read_text(encoding="utf-8").splitlines()
        values = dict(line.split(" = ", 1) for line in lines)
        at = began - float(values["began"])
        earlier = values.get("g0.load", "0:0")
        ramp = f"{at:.3f}:0 {at + 0.01:.3f}:{_FAKE_LOAD} {at + seconds:.3f}:{_FAKE_LOAD}"
        values["g0.load"] = f"{earlier} {ramp} {at + seconds + 0.01:.3f}:0"
        part = file.with_suffix(".part")
        text = "".join(f"{key} = {value}\n" for key, value in values.items())
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    time.sleep(seconds)
    return began, time.time()


def load(config: Any, run: Run) -> None:
    """Load the GPU for some seconds, and log when."""
    for _ in run.steps(1):
        began, ended = burn(config.seconds, run.device)
        run.log(load_began=began, load_ended=ended)


def short(config: Any, run: Run) -> None:
    """Do nothing: what counts happens before the first step."""
    del config
    for _ in run.steps(1):
        run.log(done=1)


def train_gpt(config: Any, run: Run) -> None:
    """Train as `scripts/bench gpu` does."""
    _allow_older_torch(config)
    gpt_training.train(config, run)


def train_charlm(config: Any, run: Run) -> None:
    """Train charlm as it is shipped, and log its memory."""
    _allow_older_torch(config)
    gpt_training.train_charlm(config, run)


def lay_out(config: Any, run: Run) -> None:
    """Train a transformer that every layout takes; log its loss, memory and compiled graphs."""
    _allow_older_torch(config)
    text, _ = charlm.read_corpus(training_bytes=2**18, heldout_bytes=1)
    model = run.parallelize(
        lambda: charlm.Transformer(width=config.width, layers=2, heads=config.heads, context=config.context),
        charlm.build_layout_plan(config.heads),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, times = [], []
    with _attention(config.attention):
        for step in run.steps(config.steps):
            began = time.perf_counter()
            starts = charlm.draw_batch_starts(len(text) - config.context, config.rows, 7, step)
            rows = charlm.cut_sequences(text, starts, config.context).to(run.device)
            optimizer.zero_grad()
            losses.append(float(run.train_step(model, rows[:, :-1], rows[:, 1:])))
            run.clip_grad_norm_(model, 1.0)
            optimizer.step()
            times.append(time.perf_counter() - began)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]  # noqa: SLF001
    run.log(first_loss=losses[0], loss=losses[-1], step_s=min(times), graphs=graphs)
    if run.device.type == "cuda":
        run.log(peak_bytes=torch.cuda.max_memory_allocated())


@contextlib.contextmanager
def _attention(kind: str) -> Iterator[None]:
    if kind == "any":
        yield
        return
    with sdpa_kernel(_KERNELS[kind]):
        yield


def exhaust(config: Any, run: Run) -> None:
    """Take memory of the GPU until there is none."""
    kept = []
    for _ in run.steps(10_000):
        kept.append(  # noqa: PERF401  # a step each
            torch.ones(config.piece_bytes, dtype=torch.uint8, device=run.device)
        )


def stop_a_rank(config: Any, run: Run) -> None:
    """Add over two ranks, by NCCL or gloo, until rank 1 stops itself.

    Both use one GPU, so that hpckit's own group is gloo's. NCCL's is made beside it.
    """
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    group = _nccl_group(config) if config.backend == "nccl" else None
    tensor = torch.ones(1024, device=device)
    for step in run.steps(100_000):
        if step == _STOPPED_AT and run.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(tensor, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize()
        tensor.fill_(1)
        time.sleep(0.02)


def wait_alone(config: Any, run: Run) -> None:
    """Have a collective of NCCL wait longer than it may, behind a kernel that sleeps."""
    group = dist.new_group(backend="nccl", timeout=timedelta(seconds=config.timeout_s))
    tensor = torch.ones(1024, device=run.device)
    for step in run.steps(10):
        if step == _SLEEPS_AT:
            torch.cuda._sleep(int(2 * config.timeout_s * _CYCLES_S))  # type: ignore[no-untyped-call]  # noqa: SLF001  # torch's own tests use it
        dist.all_reduce(tensor, group=group)
        torch.cuda.synchronize()


def _nccl_group(config: Any) -> Any:
    """Return a group of NCCL whose watchdog leaves its trace where hpckit looks for it."""
    folder = Path(os.environ["HPCKIT_RUN_DIR"]) / "attempts" / "001" / "rounds" / "000"
    os.environ |= {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / NCCL_TRACE),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "NCCL_DEBUG": "WARN",
    }
    torch.cuda.set_device(0)
    return dist.new_group(backend="nccl", timeout=timedelta(seconds=config.timeout_s))
