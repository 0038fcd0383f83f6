"""From the jobs of a sweep to the runs of a launch, and back to what Hydra's sweepers read.

It composes each job as Hydra's own launchers do, freezes it, and hands all to `hpckit.launch`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from shutil import rmtree
from types import FrameType
from typing import Any, Protocol

import cloudpickle
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, filter_overrides, setup_globals
from hydra.errors import CompactHydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hpckit.api.handles import Launch, build_run_failed_error
from hpckit.api.invocation import build_python_context
from hpckit.api.launching import launch as start_launch
from hpckit.config.points import encode_hydra_value
from hpckit.config.request import ComposeRequest, list_conf_folders, shipped_conf_folder
from hpckit.context import current_folder, default_output_dir, random_launch_token
from hpckit.errors import HpckitError
from hpckit.hydra_app.freezing import freeze_config
from hpckit.hydra_app.jobs import Application, read_result, write_jobs
from hpckit.hydra_app.parameters import JOB, Parameters, name_as_hydra_does, name_columns, read_parameters
from hpckit.model.states import RunState
from hpckit.record.launches import load_launch
from hpckit.record.store import read_json_object, write_json
from hpckit.report.selection import parse_overrides
from hpckit.runtime.environ import copy_environment
from hpckit.values import dataclass

_LOG = logging.getLogger("hpckit")
_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_NODE = "hpckit.hydra_app.node"
_RECORD = "hpckit.json"


class Launcher(Protocol):
    """What Hydra's plugin holds of an application: see `hydra_plugins/hpckit_launcher`."""

    parameters: dict[str, Any]
    hydra_context: HydraContext
    task_function: TaskFunction
    config: DictConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What a job returns to a sweeper that does not wait: ids of its launch and run, and Slurm's."""

    launch: str
    run: str
    job: str | None


def launch_jobs(
    launcher: Launcher, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
) -> list[JobReturn]:
    """Start a run for each job, and return what became of it.

    Raises CompactHydraException, which Hydra shows without a traceback, if nothing was started.
    """
    with _show_errors_without_traceback():
        parameters = read_parameters(launcher.parameters, copy_environment())
        for word in parameters.ignored:
            _LOG.warning("hydra.launcher.%s has no meaning for hpckit", word)
        wait = _decide_whether_to_wait(parameters.wait, launcher.config)
        sweep_dir = _make_sweep_dir(launcher.config)
        jobs = dict(enumerate(job_overrides, initial_job_idx))
        _LOG.info("Launching %d jobs by hpckit, sweep output dir: %s", len(jobs), sweep_dir)
        configs = {}
        setup_globals()
        for number, overrides in jobs.items():
            _LOG.info("\t#%d : %s", number, " ".join(filter_overrides(overrides)))
            configs[number] = _compose_job(launcher, overrides, number, sweep_dir)
        application, function = _describe_application(launcher.task_function)
        folder = sweep_dir / ".hpckit" / random_launch_token()
        named = name_columns(jobs, configs)
        columns = [{f"++{JOB}": number, **own} for number, own in named.items()]
        words = {
            number: {key.lstrip("+"): encode_hydra_value(value) for key, value in own.items()}
            for number, own in named.items()
        }
        digest = write_jobs(folder, application, configs, words, function)
        several = len(columns) > 1
        try:
            launch = start_launch(
                *parameters.words,
                {"output_dir": default_output_dir(build_python_context())},
                *(() if several else columns),
                points=columns if several else None,
                command=["python", "-P", "-m", _NODE, str(folder), digest, f"${{{JOB}}}"],
                cwd=_find_project(application),
                config_dir=_find_config_dir(parameters),
                config_name="hpckit",
                rerun=True,
                auto_resume=parameters.auto_resume,
                check=parameters.check,
            )
        except BaseException:
            rmtree(folder, ignore_errors=True)
            raise
        _record_launch(sweep_dir, launch, jobs)
    _LOG.info("submitted %s: hpckit status %s", launch.id, launch.id)
    if wait:
        _wait(launch)
    return _build_returns(launch, configs, folder, waited=wait)


@contextmanager
def _show_errors_without_traceback() -> Any:
    try:
        yield
    except HpckitError as error:
        hint = f"\n  {error.hint}" if error.hint else ""
        raise CompactHydraException(name_as_hydra_does(f"hpckit: {error.message}{hint}")) from error


def _decide_whether_to_wait(wait: bool | None, config: DictConfig) -> bool:  # noqa: FBT001  # it is the subject
    sweeper = str(config.hydra.sweeper.get("_target_"))
    if wait is False and sweeper != _BASIC:
        raise CompactHydraException(
            f"hydra.launcher.wait=false: {sweeper.rpartition('.')[2]} chooses values by what earlier jobs "
            "returned, so it has to wait\n  for a search without a waiting process: hpckit launch -m "
            "sweep.sampler=optuna …, in which runs ask for values themselves"
        )
    return sweeper != _BASIC if wait is None else wait


def _make_sweep_dir(config: DictConfig) -> Path:
    folder = Path(str(config.hydra.sweep.dir)).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    mode = config.hydra.sweep.get("mode")
    if mode is not None:
        folder.chmod(int(str(mode), 8))
    return folder


def _compose_job(launcher: Launcher, overrides: Sequence[str], number: int, sweep_dir: Path) -> DictConfig:
    """Return the frozen configuration of a job; `hydra.job.id` stays open, as only its run knows it."""
    config = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, list(overrides))
    hydra_config: Any = HydraConfig.instance()
    before = hydra_config.cfg
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.job.num = number
        config.hydra.job.id = "???"
        config.hydra.sweep.dir = str(sweep_dir)
        hydra_config.cfg = config  # for ${hydra:…}
        try:
            with suppress(Exception):  # a folder named by the job's id
                config.hydra.runtime.output_dir = str(sweep_dir / str(config.hydra.sweep.subdir))
            freeze_config(config)
        finally:
            hydra_config.cfg = before
    return config


def _describe_application(function: Any) -> tuple[Application, bytes | None]:
    """Return how the program can be entered again; if it cannot, also its function, pickled."""
    main: Any = sys.modules["__main__"]
    module = getattr(getattr(main, "__spec__", None), "name", None)
    module = None if module == "__main__" else module
    script = None if module else getattr(main, "__file__", None)
    if not _is_called_by_hydra_main():
        script = module = None
    if script and not Path(script).is_file():  # `python -`, a pipe
        script = None
    application = Application(
        script=script and str(Path(script).absolute()),
        module=module,
        arguments=tuple(sys.argv[1:]),
        cwd=str(current_folder()),
        function=getattr(function, "__qualname__", ""),
        python_path=tuple(sys.path),
    )
    return application, None if application.can_be_entered else _pickle_function(function)


def _is_called_by_hydra_main() -> bool:
    """Whether `hydra.main` of a program called this; in a notebook or test it may be other code."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # the stack is the only sign
    while frame is not None:
        if frame.f_code.co_name == "decorated_main" and frame.f_globals.get("__name__") == "hydra.main":
            return True
        frame = frame.f_back
    return False


def _pickle_function(function: Any) -> bytes:
    _LOG.info("the program cannot be started again on a node: its function is pickled, as it is now")
    try:
        return cloudpickle.dumps((function, Singleton.get_state()))  # type: ignore[no-any-return]
    except Exception:  # noqa: BLE001  # what else Hydra holds may not be picklable
        return cloudpickle.dumps((function, None))  # type: ignore[no-any-return]


def _find_project(application: Application) -> Path:
    """Return the folder whose project is frozen: here, if the script belongs to it, else the script's."""
    cwd, script = Path(application.cwd), application.script
    if script is None or Path(script).is_relative_to(cwd) or Path(script).is_relative_to(sys.prefix):
        return cwd
    folder = Path(script).parent
    top = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    return cwd if cwd.is_relative_to(top) else folder


def _find_config_dir(parameters: Parameters) -> Path | None:
    """Return hpckit's own folder, unless the user has files of the chosen options; None looks for his.

    An application's groups must not be in the way of the columns that its overrides get.
    """
    request = ComposeRequest(environ=copy_environment(), cwd=current_folder())
    own = list_conf_folders(request)[0]
    has_file = any((own / f"{option}.yaml").is_file() for option in parameters.options)
    return None if has_file else shipped_conf_folder()


def _record_launch(sweep_dir: Path, launch: Launch, jobs: Mapping[int, Any]) -> None:
    """Add the launch to SWEEP_DIR/hpckit.json; a sweeper may start several."""
    record = sweep_dir / _RECORD
    known = read_json_object(record).get("launches") or []
    one = {"id": launch.id, "folder": str(launch.folder), "jobs": list(jobs)}
    write_json(record, {"launches": [*known, one]})


def _wait(launch: Launch) -> None:
    try:
        launch.wait()
    except KeyboardInterrupt:
        _LOG.warning("hpckit cancel %s stops them", launch.id)
        raise


def _build_returns(
    launch: Launch, configs: Mapping[int, DictConfig], folder: Path, *, waited: bool
) -> list[JobReturn]:
    record = load_launch(launch.folder)
    places = {int(parse_overrides(record.overrides(index))[JOB]): index for index in range(len(record.runs))}
    rows = {row.index: row for row in launch.status().rows}
    returns = []
    for number, config in configs.items():
        row = rows[places[number]]
        found = _describe_job(config, row.job or row.run)
        if waited and row.state is not RunState.completed:
            error = build_run_failed_error(row)
            error.add_note(f"{error.hint}; `hpckit resume {launch.id} --failed` starts again what failed")
            found.status, found.return_value = JobStatus.FAILED, error
        else:
            found.status = JobStatus.COMPLETED
            submitted = Submitted(launch=launch.id, run=row.run, job=row.job)
            left = read_result(folder, number) or (None, found.working_dir)
            found.return_value, found.working_dir = left if waited else (submitted, found.working_dir)
        returns.append(found)
    return returns


def _describe_job(config: DictConfig, job: str) -> JobReturn:
    own, of_hydra = deepcopy(config), OmegaConf.masked_copy(config, "hydra")
    with read_write(own), open_dict(own):
        del own["hydra"]
    with read_write(of_hydra.hydra):
        of_hydra.hydra.job.id = job
    return JobReturn(
        overrides=OmegaConf.to_container(config.hydra.overrides.task),  # type: ignore[arg-type]
        cfg=own,
        hydra_cfg=of_hydra,
        working_dir=OmegaConf.select(config, "hydra.runtime.output_dir", throw_on_missing=False),
        task_name=config.hydra.job.name,
    )
