"""What the user's code is handed: `Run`.

Responsible for identity, folders, steps and metrics of one rank; it must not start processes or
decide anything. `attach()` gives the same object to scripts that hpckit did not call.
"""

from __future__ import annotations

import atexit
import logging
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    Store,
    TCPStore,
    rendezvous,
)

from hpckit.errors import RendezvousError
from hpckit.model.launch import Checkpoint, DeviceKind, LaunchConfig
from hpckit.model.rank import RankInfo, RankSource
from hpckit.record.launches import latest_attempt, load_launch, load_settings
from hpckit.record.layout import AttemptPaths, LaunchPaths
from hpckit.record.store import append_line
from hpckit.runtime import process_group
from hpckit.runtime.boundary import Boundary, Position
from hpckit.runtime.environ import environment, export, job_key, rank_info
from hpckit.runtime.link import AgentLink, open_link
from hpckit.runtime.messages import StepBegun
from hpckit.runtime.settings import Settings

if TYPE_CHECKING:
    from hpckit.runtime.keeper import Keeper

_STEP_INTERVAL_S = 0.1
"""The agent is told of a new step at most this often; it needs liveness, not every number."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One rank's view of its run.

    `folder` is the run's, shared by all ranks and attempts; `attempt_folder` this attempt's;
    `code_folder` the frozen code; `project_folder` where the code was launched from. `step` is
    the step the loop is at, `samples` how many samples all ranks together had seen before it.
    """

    info: RankInfo
    config: Settings
    device: torch.device
    folder: Path
    attempt_folder: Path
    checkpoint_dir: Path
    code_folder: Path
    project_folder: Path
    logger: logging.Logger
    attempt: int = 0
    seed: int = 0
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    registered: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    samples: int = 0
    _link: AgentLink | None = None
    _told_at: float = 0.0

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self.info.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.info.world_size

    @property
    def local_rank(self) -> int:
        """Number of this rank on its node, from 0."""
        return self.info.local_rank

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that writes what is written once."""
        return self.info.rank == 0

    def state(self, **objects: Any) -> None:
        """Register what makes up the training state, by name: model, optimizer, scheduler, ….

        Every object needs `state_dict` and `load_state_dict`; raises TypeError for one without,
        and for a name registered twice.
        """
        for name, value in objects.items():
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise TypeError(
                    f"run.state({name}=…) got a {type(value).__name__} without state_dict and "
                    "load_state_dict; wrap it in a class that has both"
                )
            if name in self.registered:
                raise TypeError(f"run.state({name}=…) was already called with that name")
        self.registered |= objects

    def steps(self, total: int, *, start: int = 0, samples_per_step: int = 0) -> Iterator[int]:
        """Yield the numbers of the steps still to do, up to `total - 1`.

        Where `state()` registered something, the newest good checkpoint is loaded first and the
        steps go on from there, else from `start`. Between two steps lies a step boundary: there
        state is saved, and there all ranks leave together after a notice (SystemExit is raised
        out of the loop). `samples_per_step`, of all ranks together, keeps `run.samples` right.

        Raises RuntimeError on a second loop over registered state, and CheckpointError.
        """
        if self.registered and self.step is not None:
            raise RuntimeError(
                "run.steps() was already called, and run.state() holds state that it saves by "
                "step; loop over all steps of the run in one run.steps()"
            )
        boundary = Boundary(info=self.info, link=self._link)
        keeper = self._keeper() if self.registered else None
        at = Position(step=start)
        if keeper is not None:
            at = keeper.restore(at)
        with boundary.hearing():
            for step in range(at.step, total):
                done = step - at.step
                self.samples = at.samples + done * samples_per_step
                self._pass(boundary, keeper, Position(step=step, samples=self.samples))
                self._begin(step, last=step == total - 1)
                yield step
        self.samples = at.samples + max(total - at.step, 0) * samples_per_step
        if keeper is not None:
            keeper.save(Position(step=max(total, at.step), samples=self.samples), wait=True)
            keeper.close()

    def _pass(self, boundary: Boundary, keeper: Keeper | None, here: Position) -> None:
        """Pass a step boundary: save or leave, as all ranks agree."""
        wanted = keeper is not None and keeper.due(here.step)
        within = None if keeper is None else keeper.cadence.steps_left(here.step)
        agreed = boundary.agree(here.step, save=wanted, within=within)
        if keeper is not None and (agreed.save or agreed.leave):
            keeper.save(here, wait=agreed.leave)
        if agreed.leave:
            self.logger.info("left before step=%d: told to stop", here.step)
            raise SystemExit(0)

    def _keeper(self) -> Keeper:
        # Imported here: runs that keep no state need none of it.
        from hpckit.runtime.checkpoint.checkpointer import Settings as Kept  # noqa: PLC0415
        from hpckit.runtime.keeper import open_keeper  # noqa: PLC0415

        return open_keeper(
            self.checkpoint_dir,
            self.registered,
            self.checkpoint,
            kept=Kept(epoch=self.attempt, keep=self.checkpoint.keep, seed=self.seed),
            owns_run=self._owns_run,
            logger=self.logger,
        )

    def _owns_run(self) -> bool:
        """Whether no later attempt of the run has begun: a cut-off node may wake up again."""
        return self.attempt == 0 or latest_attempt(self.attempt_folder.parent) <= self.attempt

    def _begin(self, step: int, *, last: bool) -> None:
        first, self.step = self.step is None, step
        now = time.monotonic()
        due = now - self._told_at >= _STEP_INTERVAL_S
        if self._link is not None and (first or last or due):
            self._link.send(StepBegun(rank=self.rank, step=step))
            self._told_at = now

    def log(self, *, step: int | None = None, **metrics: Any) -> None:
        """Record metrics: numbers, strings, or tensors of one element. Rank 0 writes, others not.

        `step` defaults to the step that `steps()` is at. The last value under a name is the
        run's result under that name.
        """
        if not self.is_main:
            return
        values = {name: _plain_metric(name, value) for name, value in metrics.items()}
        if "at" in values:
            raise TypeError("run.log(at=…): `at` is the time of the line; choose another name")
        append_line(
            AttemptPaths(self.attempt_folder).metrics,
            {
                "step": self.step if step is None else _plain_metric("step", step),
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                **values,
            },
        )


def _plain_metric(name: str, value: Any) -> float | int | str | bool | None:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and (value != value or value in {float("inf"), -float("inf")}):  # noqa: PLR0124  # NaN
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"run.log({name}=…) got a {type(value).__name__}; allowed are numbers, strings and "
        "tensors of one element"
    )


def make_run(
    environ: Mapping[str, str], info: RankInfo, device: torch.device, link: AgentLink | None
) -> Run:
    """Build the Run of a rank that an agent started, from its frozen folder."""
    launch = load_launch(Path(environ["HPCKIT_LAUNCH_DIR"]))
    index = int(environ["HPCKIT_RUN_INDEX"])
    settings, config = load_settings(launch, index)
    paths = LaunchPaths(launch.folder).run(index)
    return Run(
        info=info,
        config=Settings(config),
        device=device,
        folder=paths.folder,
        attempt_folder=Path(environ["HPCKIT_ATTEMPT_DIR"]),
        checkpoint_dir=_checkpoint_dir(settings, paths.checkpoints, launch.id, index),
        code_folder=Path(launch.code.working_dir),
        project_folder=Path(launch.code.project),
        logger=make_logger(info),
        attempt=int(Path(environ["HPCKIT_ATTEMPT_DIR"]).name),
        seed=settings.seed,
        checkpoint=settings.checkpoint,
        _link=link,
    )


def _checkpoint_dir(settings: LaunchConfig, default: Path, launch: str, index: int) -> Path:
    if settings.checkpoint.dir is None:
        return default
    return Path(settings.checkpoint.dir).expanduser() / launch / f"{index:05d}"


def make_logger(info: RankInfo) -> logging.Logger:
    """Return the logger `hpckit.rank`, which writes lines with time and rank to standard error."""
    logger = logging.getLogger("hpckit.rank")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s rank={info.rank} %(levelname)s %(message)s")
        )
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger


def seed_everything(seed: int) -> None:
    """Seed random, numpy and torch (all devices), alike on every rank."""
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy as np  # noqa: PLC0415  # optional: torch works without it
    except ModuleNotFoundError:
        return
    np.random.seed(seed % 2**32)  # noqa: NPY002  # the generator user code draws from by default


def attach(*, timeout_s: float = 120.0) -> Run:
    """Return the Run of this process, for scripts that hpckit did not call by name.

    Works under `hpckit launch experiment=command`, under torchrun, under plain srun and alone. An
    already initialised process group is left as it is; else it is initialised. Without hpckit's
    folders, `run.folder` is the working directory.

    Raises RankInfoError and RendezvousError.
    """
    environ = environment()
    info = rank_info(environ)
    agent = info.source is RankSource.agent
    run = _attach_to_agent(environ, info) if agent else _attach_alone(environ, info, timeout_s)
    atexit.register(_detach, run)
    return run


def _detach(run: Run) -> None:
    run.registered.clear()
    process_group.close()


def _attach_alone(environ: Mapping[str, str], info: RankInfo, timeout_s: float) -> Run:
    device = process_group.choose_device(DeviceKind.auto, info, torch.cuda.device_count())
    if not dist.is_initialized():
        timeout = timedelta(seconds=timeout_s)
        process_group.initialise(info, device, _store(environ, info, timeout), timeout)
    here = Path.cwd()
    return Run(
        info=info,
        config=Settings({}),
        device=device,
        folder=here,
        attempt_folder=here,
        checkpoint_dir=here / "checkpoints",
        code_folder=here,
        project_folder=here,
        logger=make_logger(info),
    )


def _attach_to_agent(environ: Mapping[str, str], info: RankInfo) -> Run:
    link = open_link(environ)
    run = make_run(environ, info, torch.device("cpu"), link)
    runtime = run.config.runtime
    kind = DeviceKind(runtime.device)
    run.device = process_group.choose_device(kind, info, torch.cuda.device_count())
    if not dist.is_initialized():
        timeout = timedelta(seconds=runtime.rendezvous_timeout_s)
        store = _store(environ, info, timeout)
        process_group.initialise(info, run.device, store, timeout)
    return run


def _store(environ: Mapping[str, str], info: RankInfo, timeout: timedelta) -> Store:
    """Return a store by whatever this environment offers."""
    if info.master_addr is not None and info.master_port is not None:
        try:
            store: Store = next(rendezvous("env://", timeout=timeout))[0]
        except (RuntimeError, OSError, ValueError) as error:
            raise RendezvousError(
                f"rank {info.rank} found no store at {info.master_addr}:{info.master_port}: {error}"
            ) from None
        return store
    if info.source is RankSource.single:
        return HashStore()
    job, restarts = job_key(environ)
    name = f".hpckit-rendezvous-{job}-{environ.get('SLURM_STEP_ID', '0')}-{restarts}.json"
    file = Path(environ.get("HPCKIT_RENDEZVOUS_DIR", str(Path.cwd()))) / name
    return process_group.make_store(info, process_group.FileRendezvous(file), timeout)


def export_address(info: RankInfo, store: Store) -> None:
    """Set MASTER_ADDR and MASTER_PORT to the store's, for libraries that read them."""
    if isinstance(store, TCPStore):
        export({"MASTER_ADDR": info.master_addr or store.host, "MASTER_PORT": str(store.port)})
