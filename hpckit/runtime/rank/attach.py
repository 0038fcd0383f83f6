"""Make a process a rank with a `Run`: from its agent's folders, or on its own with `attach()`.

`attach()` is for scripts that hpckit did not call by name.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import HashStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined]

from hpckit.errors import NonFiniteLossError, RendezvousError
from hpckit.model.cluster.gpus_asked import requested_gpus_per_node
from hpckit.model.environment.torch_version import check_torch_version
from hpckit.model.failure import ExitReason, ExitStatement, RankExit
from hpckit.model.goodput import SaveCost
from hpckit.model.launch import DeviceKind, LaunchConfig
from hpckit.model.parallel.layout import Layout
from hpckit.model.plain import from_plain
from hpckit.model.rank import RankInfo, RankSource
from hpckit.model.search import Pruner
from hpckit.planning.fallback import find_layout_for_ranks
from hpckit.planning.layout import plan_run_layout
from hpckit.record.launches import checkpoint_folder, load_launch, load_run_settings
from hpckit.record.layout import AttemptPaths
from hpckit.runtime import stacks
from hpckit.runtime.channel.listen import LOOPBACK
from hpckit.runtime.channel.rank_pipe import AgentLink, open_agent_link
from hpckit.runtime.clock import now
from hpckit.runtime.environ import (
    copy_environment,
    find_job_and_restarts,
    rank_info,
    set_environment_variables,
)
from hpckit.runtime.left_behind import NSYS_VARIABLE
from hpckit.runtime.rank import process_group, recorder
from hpckit.runtime.rank.child_signals import shield_children_from_signals
from hpckit.runtime.rank.config import Config
from hpckit.runtime.rank.cuda_memory import CudaMemory, watch_cuda_memory
from hpckit.runtime.rank.exit_status import ExitStatus, find_failing_code, note_exit_calls
from hpckit.runtime.rank.fault_injector import make_fault_injector
from hpckit.runtime.rank.live_run import LoggedMetrics
from hpckit.runtime.rank.run import Run
from hpckit.runtime.rank.step_profiler import StepProfiler
from hpckit.runtime.stages import RunStage
from hpckit.runtime.threads import await_checkpoint_writers
from hpckit.values import replace

_BEGIN_S, _LOOK_S = 10.0, 0.05
"""How long a thread has to begin its loop once the main thread has ended; how often to look."""
_WRITER_S = 10.0
"""For a checkpoint thread whose peers are gone: the group's collectives fail almost at once."""


def make_run(environ: Mapping[str, str], info: RankInfo, device: torch.device, link: AgentLink | None) -> Run:
    """Build the Run of a rank that an agent started, from its frozen folder."""
    check_torch_version(torch.__version__)
    launch = load_launch(Path(environ["HPCKIT_LAUNCH_DIR"]))
    index = int(environ["HPCKIT_RUN_INDEX"])
    settings, config = load_run_settings(launch, index)
    paths = launch.paths.run(index)
    # Whether an adaptive sweep may end the run early, by its metric.
    judged = launch.searched and settings.sweep.pruner is not Pruner.none
    # So that torch.load reads back what torch.save wrote without weights_only=False.
    torch.serialization.add_safe_globals([Config])
    return Run(
        info=info,
        config=Config(config),
        device=device,
        folder=paths.folder,
        attempt_folder=Path(environ["HPCKIT_ATTEMPT_DIR"]),
        checkpoint_dir=checkpoint_folder(launch, index, settings),
        code_folder=Path(launch.code.working_dir),
        project_folder=Path(launch.code.project),
        logger=make_rank_logger(info),
        attempt=int(Path(environ["HPCKIT_ATTEMPT_DIR"]).name),
        round=int(environ["HPCKIT_ROUND"]),
        seed=settings.seed,
        layout=find_layout_for_ranks(settings, info.world_size),
        parallel=settings.parallel,
        full_layout=plan_run_layout(settings),
        save_cost=from_plain(SaveCost, json.loads(cost)) if (cost := environ["HPCKIT_SAVE_COST"]) else None,
        notice_grace=timedelta(seconds=settings.runtime.notice_grace_s),
        nan_patience=settings.recovery.nan_patience,
        checkpoint=replace(settings.checkpoint, mtbf_hours=float(environ["HPCKIT_MTBF_HOURS"])),
        _stage=RunStage(launch=launch, index=index) if launch.stages else None,
        _link=link,
        _measures_steps=settings.observe.measure_steps and settings.observe.interval_s > 0,
        _metrics=LoggedMetrics(reported=settings.sweep.metric if judged else None),
        _injector=make_fault_injector(settings.chaos, paths.chaos_marks, info.rank),
        _profiler=_make_profiler(environ, info, settings),
    )


def _make_profiler(environ: Mapping[str, str], info: RankInfo, settings: LaunchConfig) -> StepProfiler:
    round_ = int(environ["HPCKIT_ROUND"])
    return StepProfiler(
        rank=info.rank,
        round=round_,
        paths=AttemptPaths(Path(environ["HPCKIT_ATTEMPT_DIR"])).round(round_),
        planned=settings.observe.profile,
        nsys=environ.get(NSYS_VARIABLE),
    )


def make_rank_logger(info: RankInfo) -> logging.Logger:
    """Return the logger `hpckit.rank`, which writes lines with time and rank to standard error."""
    logger = logging.getLogger("hpckit.rank")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"%(asctime)s rank={info.rank} %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger


def attach(*, timeout_s: float = 120.0, checkpoint_dir: str | Path | None = None) -> Run:
    """Return the Run of this process, for scripts that hpckit did not call by name.

    Works under `hpckit launch experiment=command`, under torchrun, under plain srun and alone. Initialises
    the process group unless that is already done. Without hpckit's folders, `run.folder` is the working
    directory, and state is saved and restored only if `checkpoint_dir` names a folder for it. Under hpckit
    the run has its own checkpoint folder, and `checkpoint_dir` is ignored.

    Raises RankInfoError and RendezvousError, and UsageError for a torch that is too old.
    """
    check_torch_version(torch.__version__)
    shield_children_from_signals()
    environ = copy_environment()
    info = rank_info(environ)
    if info.source is RankSource.agent:
        run = _attach_to_agent(environ, info)
        memory = watch_cuda_memory(run)
    else:
        memory = None
        kept = None if checkpoint_dir is None else Path(checkpoint_dir).absolute()
        run = _attach_without_agent(environ, info, timeout_s, kept)
    process_group.hold_default_group()
    run.promise_end_report()
    note_exit_calls()
    atexit.register(_report_code_and_leave_group, run, os.getpid())
    leaving = ExitStatus()
    # Runs before atexit: a save needs thread pools, which are closed by then (CPython 3.9 on).
    threading._register_atexit(_report_script_end, run, memory, leaving, os.getpid())  # type: ignore[attr-defined]  # noqa: SLF001  # there is no public name
    return run


def _report_script_end(run: Run, memory: CudaMemory | None, leaving: ExitStatus, pid: int) -> None:
    """Report the end of the script unless it failed; does nothing in a child that it forked.

    The step in which it failed is not done, so it must not be saved as if it were.
    """
    if os.getpid() == pid:
        _wait_for_step_loop(run)
    code = find_failing_code()
    if os.getpid() != pid:
        # In the child, torch would wait for threads that only the parent has.
        leaving.code = code or 0
        return
    raised = getattr(sys, "last_value", None)
    if run._loop is not None and run._loop.failed is not None:  # noqa: SLF001
        code, raised = code or 1, run._loop.failed  # noqa: SLF001
        leaving.code = code  # Python would end with 0
    if code is not None:
        if raised is not None and memory is not None:
            _record_failure_details(run, memory, raised)
        if not await_checkpoint_writers(_WRITER_S):
            leaving.code = code
        return
    try:
        run.finish()
    except NonFiniteLossError:
        traceback.print_exc()  # from which the agent takes the cause
        leaving.code = 1
    except Exception:  # noqa: BLE001  # nothing above would show it
        traceback.print_exc()
        run.report_unsaved_end()


def _wait_for_step_loop(run: Run) -> None:
    """Wait for a thread of the script that loops over steps, or may be about to.

    Python itself waits for its threads, too, but after this.
    """
    deadline = time.monotonic() + _BEGIN_S
    while run.registered and run._loop is None and time.monotonic() < deadline:  # noqa: SLF001  # its own
        if all(thread.daemon or thread is threading.current_thread() for thread in threading.enumerate()):
            return
        time.sleep(_LOOK_S)
    loop = run._loop  # noqa: SLF001
    if loop is not None and loop.thread is not threading.current_thread():
        loop.thread.join()


def _record_failure_details(run: Run, memory: CudaMemory, raised: BaseException) -> None:
    words = memory.record_out_of_memory(raised)
    if words:
        sys.stderr.write(f"hpckit: {words}\n")
    record = RankExit(
        rank=run.rank,
        node=run.info.node,
        code=1,
        reason=ExitReason.raised,
        step=run.step,
        exception=type(raised).__name__,
        message=str(raised),
        at=now(),
    )
    recorder.write_failed_collectives(memory.paths, run.info, record)


def _report_code_and_leave_group(run: Run, pid: int) -> None:
    link = run._link  # noqa: SLF001  # its own
    if link is not None and os.getpid() == pid:
        # From now on torch may abort: what gloo's threads drop needs an interpreter.
        said = run._farewell or ExitStatement(reason=ExitReason.exited)  # noqa: SLF001
        link.note_exit_statement(replace(said, code=find_failing_code() or 0))
    process_group.leave_process_group(run.registered)


def _attach_without_agent(
    environ: Mapping[str, str], info: RankInfo, timeout_s: float, kept: Path | None
) -> Run:
    device = process_group.choose_device(DeviceKind.auto, info)
    if not dist.is_initialized():
        timeout = timedelta(seconds=timeout_s)
        process_group.initialise_process_group(info, device, _open_store(environ, info, timeout), timeout)
    here, logger = Path.cwd(), make_rank_logger(info)
    if kept is not None and info.rank == 0:
        logger.info("state continues from what is in %s; to start fresh, name another folder", kept)
    return Run(
        info=info,
        config=Config({}),
        device=device,
        folder=here,
        attempt_folder=here,
        checkpoint_dir=kept or here / "checkpoints",
        code_folder=here,
        project_folder=here,
        logger=logger,
        layout=Layout(replicate=info.world_size),
        _keeps_state=kept is not None,
    )


def _attach_to_agent(environ: Mapping[str, str], info: RankInfo) -> Run:
    link = open_agent_link(environ)
    run = make_run(environ, info, torch.device("cpu"), link)
    runtime = run.config.runtime
    kind = DeviceKind(runtime.device)
    run.device = process_group.choose_device(kind, info, asked=requested_gpus_per_node(run.config.resources))
    if not dist.is_initialized():
        timeout = timedelta(seconds=runtime.rendezvous_timeout_s)
        store = _open_store(environ, info, timeout)
        process_group.initialise_process_group(info, run.device, store, timeout)
    recorder.answer_agent_questions(environ, info)
    stacks.enable_rank_stack_dumps(environ)
    return run


def _open_store(environ: Mapping[str, str], info: RankInfo, timeout: timedelta) -> Store:
    if info.master_addr is not None and info.master_port is not None:
        try:
            if info.source is RankSource.agent:
                return process_group.open_store_from_environment(info, timeout)
            store: Store = next(rendezvous("env://", timeout=timeout))[0]
        except (RuntimeError, OSError, ValueError) as error:
            raise RendezvousError(
                f"rank {info.rank} found no store at {info.master_addr}:{info.master_port}: {error}"
            ) from None
        return store
    if info.source is RankSource.single:
        return HashStore()
    job, restarts = find_job_and_restarts(environ)
    name = f".hpckit-rendezvous-{job}-{environ.get('SLURM_STEP_ID', '0')}-{restarts}.json"
    file = Path(environ.get("HPCKIT_RENDEZVOUS_DIR", str(Path.cwd()))) / name
    host = LOOPBACK if info.num_nodes == 1 else socket.gethostname()
    return process_group.open_store(info, process_group.FileRendezvous(file, host), timeout)


def export_store_address(info: RankInfo, store: Store) -> None:
    """Set MASTER_ADDR and MASTER_PORT to those of the store, for libraries that read them."""
    if isinstance(store, TCPStore):
        set_environment_variables(
            {"MASTER_ADDR": info.master_addr or store.host, "MASTER_PORT": str(store.port)}
        )
