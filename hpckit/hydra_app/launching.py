"""From the jobs of a sweep to the runs of a launch, and back to what Hydra's sweepers read.

It composes each job as Hydra's own launchers do, freezes it, and hands all to `hpckit.launch`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from shutil import rmtree
from traceback import walk_stack
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, filter_overrides, setup_globals
from hydra.errors import CompactHydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hpckit.api.handles import Launch, build_run_failed_error
from hpckit.api.invocation import build_python_context
from hpckit.api.launching import launch as start_launch
from hpckit.api.pickling import pickle_for_run
from hpckit.config.request import ComposeRequest, list_conf_folders, shipped_conf_folder
from hpckit.context import current_folder, default_output_dir, random_launch_token
from hpckit.errors import HpckitError, UsageError
from hpckit.hydra_app.freezing import freeze_config
from hpckit.hydra_app.jobs import Application, name_function, read_result, write_jobs
from hpckit.hydra_app.parameters import JOB, name_as_hydra_does, name_columns, read_parameters
from hpckit.model.command import parse_invocation
from hpckit.model.states import RunState
from hpckit.record.launches import load_launch
from hpckit.record.snapshot.outside import list_imported_modules_left_out
from hpckit.record.store import read_json_object, write_json
from hpckit.report.failures import list_failure_hints
from hpckit.runtime.environ import copy_environment

_LOG = logging.getLogger("hpckit")
_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_RECORD = "hpckit.json"
_LEFT_OUT = """not in the frozen code, so runs take it as it is then, or lack it: %s
  start in a folder that has all of it, make that a git repository, or git add -f what git ignores"""


def launch_jobs(launcher: Any, jobs: Mapping[int, Sequence[str]]) -> list[JobReturn]:
    """Start a run for each job, by number; return what became of it, or ids if the sweeper does not wait.

    `launcher` is that of `hydra_plugins`, which has what Hydra's `setup` gave it. Raises
    CompactHydraException, which Hydra shows without a traceback, if nothing was started.
    """
    with _show_messages_as_hydra_does():
        parameters = read_parameters(launcher.parameters, copy_environment())
        for word in parameters.ignored:
            _LOG.warning("hydra.launcher.%s has no meaning for hpckit", word)
        wait = _decide_whether_to_wait(parameters.wait, launcher.config)
        sweep_dir = Path(str(launcher.config.hydra.sweep.dir)).absolute()
        sweep_dir.mkdir(parents=True, exist_ok=True)
        if (mode := launcher.config.hydra.sweep.get("mode")) is not None:
            sweep_dir.chmod(int(str(mode), 8))
        _LOG.info("Launching %d jobs by hpckit, sweep output dir: %s", len(jobs), sweep_dir)
        configs = {}
        setup_globals()
        for number, overrides in jobs.items():
            _LOG.info("\t#%d : %s", number, " ".join(filter_overrides(overrides)))
            configs[number] = _compose_job(launcher, overrides, number, sweep_dir)
        application, function = _describe_application(launcher.task_function)
        folder = sweep_dir / ".hpckit" / random_launch_token()
        columns = name_columns(jobs, configs)
        points = [{f"++{key}": value for key, value in own.items()} for own in columns.values()]
        digest = write_jobs(folder, application, configs, columns, function)
        try:
            launch = start_launch(
                *parameters.words,
                {"output_dir": default_output_dir(build_python_context())},
                *(() if points[1:] else points),
                points=points if points[1:] else None,
                command=["python", "-P", "-m", "hpckit.hydra_app.node", str(folder), digest, f"${{{JOB}}}"],
                cwd=_find_project(application),
                config_dir=_find_config_dir(parameters.groups),
                config_name="hpckit",
                rerun=True,
                **parameters.options,
            )
        except BaseException:
            rmtree(folder, ignore_errors=True)
            raise
        known = read_json_object(sweep_dir / _RECORD).get("launches") or []  # a sweeper may start several
        one = {"id": launch.id, "folder": str(launch.folder), "jobs": list(jobs)}
        write_json(sweep_dir / _RECORD, {"launches": [*known, one]})
        if left_out := list_imported_modules_left_out(load_launch(launch.folder).code):
            _LOG.warning(_LEFT_OUT, ", ".join(f"{name} ({file})" for name, file in left_out.items()))
    _LOG.info("submitted %s: hpckit status %s", launch.id, launch.id)
    try:
        if wait:
            launch.wait()
    except KeyboardInterrupt:
        _LOG.warning("hpckit cancel %s stops them", launch.id)
        sys.exit(130)  # what a shell says of Ctrl-C, without a traceback through Hydra
    return _build_returns(launch, configs, folder, waited=wait)


@contextmanager
def _show_messages_as_hydra_does() -> Iterator[None]:
    """Have errors shown without a traceback, and all messages with the keys of `hydra.launcher`."""

    def rename(record: logging.LogRecord) -> bool:
        record.msg, record.args = name_as_hydra_does(record.getMessage()), ()
        return True

    _LOG.addFilter(rename)
    try:
        yield
    except HpckitError as error:
        hint = f"\n  {error.hint}" if error.hint else ""
        raise CompactHydraException(name_as_hydra_does(f"hpckit: {error.message}{hint}")) from error
    finally:
        _LOG.removeFilter(rename)


def _decide_whether_to_wait(wait: bool | None, config: DictConfig) -> bool:  # noqa: FBT001  # it is the subject
    sweeper = str(config.hydra.sweeper.get("_target_"))
    if wait is False and sweeper != _BASIC:
        raise CompactHydraException(
            f"hydra.launcher.wait=false: {sweeper.rpartition('.')[2]} chooses values by what earlier jobs "
            "returned, so it has to wait\n  for a search without a waiting process: hpckit launch -m "
            "sweep.sampler=optuna …, in which runs ask for values themselves"
        )
    in_batches = config.hydra.sweeper.get("max_batch_size") is not None  # so many jobs at once
    return in_batches or sweeper != _BASIC if wait is None else wait


def _compose_job(launcher: Any, overrides: Sequence[str], number: int, sweep_dir: Path) -> DictConfig:
    """Return the frozen configuration of a job; `hydra.job.id` stays open, as only its run knows it."""
    hydra_config: Any = HydraConfig.instance()
    before, loader = hydra_config.cfg, launcher.hydra_context.config_loader
    config: DictConfig = loader.load_sweep_config(launcher.config, list(overrides))
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
    module = getattr(getattr(main, "__spec__", None), "name", "__main__")
    cwd, file = current_folder(), Path(getattr(main, "__file__", None) or "")
    by_hydra_main = any(frame.f_globals.get("__name__") == "hydra.main" for frame, _ in walk_stack(None))
    script, path = None, tuple(sys.path)
    if not by_hydra_main or not file.is_file():  # in a notebook, in a test; from `python -`, a pipe
        module = None
    elif module == "__main__":
        module, script, path = None, str(file.parent.resolve() / file.name), (str(file.resolve().parent),)
    else:
        path = (str(cwd), str(file.resolve().parents[module.count(".")]))
    started = parse_invocation(sys.orig_argv)  # the program may have changed sys.argv since
    names = (module, module.removesuffix(".__main__")) if module else (file.name, file.parent.name)
    is_own = (started.module if module else Path(started.script or "").name) in names
    application = Application(
        script=script,
        module=module,
        arguments=started.arguments if is_own else tuple(sys.argv[1:]),  # else by another, as pdb
        cwd=str(cwd),
        function=name_function(function),
        python_path=path,
    )
    return application, None if script or module else _pickle_function(function)


def _pickle_function(function: Any) -> bytes:
    _LOG.info("the program cannot be started again on a node: its function is pickled, as it is now")
    with suppress(UsageError):  # what else Hydra holds may not be picklable
        return pickle_for_run("the function", (function, Singleton.get_state()))
    return pickle_for_run("the function", (function, None))


def _find_project(application: Application) -> Path:
    """Return the folder whose project is frozen: here, if the program belongs to it, else the program's."""
    cwd, folder = Path(application.cwd), Path(application.python_path[-1])
    can_be_entered = application.script or application.module
    is_here = folder.is_relative_to(cwd) or folder.is_relative_to(os.path.realpath(sys.prefix))
    return folder if can_be_entered and not is_here else cwd


def _find_config_dir(groups: Sequence[str]) -> Path | None:
    """Return hpckit's own folder, where no group of the application is; None if options are the user's."""
    own = list_conf_folders(ComposeRequest(environ=copy_environment(), cwd=current_folder()))[0]
    return None if any((own / f"{option}.yaml").is_file() for option in groups) else shipped_conf_folder()


def _build_returns(
    launch: Launch, configs: Mapping[int, DictConfig], folder: Path, *, waited: bool
) -> list[JobReturn]:
    returns = []
    for (number, config), row in zip(configs.items(), launch.status().rows, strict=True):
        own, of_hydra = deepcopy(config), OmegaConf.masked_copy(config, "hydra")
        with read_write(own), open_dict(own), read_write(of_hydra.hydra):
            del own["hydra"]
            of_hydra.hydra.job.id = row.job or row.run
        found = JobReturn(
            overrides=OmegaConf.to_container(config.hydra.overrides.task),  # type: ignore[arg-type]
            cfg=own,
            hydra_cfg=of_hydra,
            working_dir=OmegaConf.select(config, "hydra.runtime.output_dir", throw_on_missing=False),
            task_name=config.hydra.job.name,
            status=JobStatus.COMPLETED,
        )
        if not waited:
            found.return_value = {"launch": launch.id, "run": row.run, "job": row.job}
        elif row.state is RunState.completed:
            left = read_result(folder, number)
            found.return_value, found.working_dir = left or (None, found.working_dir)
        else:
            error = build_run_failed_error(row)
            hints = name_as_hydra_does("".join(list_failure_hints(row)))
            error.add_note(
                f"{hints}{error.hint}; `hpckit rerun {launch.id} --failed` starts "
                f"what failed with today's code, `hpckit resume {launch.id} --failed` with the frozen code"
            )
            found.status, found.return_value = JobStatus.FAILED, error
        returns.append(found)
    return returns
