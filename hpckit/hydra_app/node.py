"""One rank of a job: `python -P -m hpckit.hydra_app.node FOLDER DIGEST NUMBER`.

Enters the application again, as it was started, with `hydra.main` replaced: what that decorates gets
the frozen configuration from Hydra's own `run_job`. It composes nothing, and decides nothing about ends.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import (
    create_automatic_config_search_path,
    detect_calling_file_or_module_from_task_function,
)
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hpckit.errors import HpckitError, RunError
from hpckit.hydra_app.jobs import FrozenJob, read_job, write_result
from hpckit.model.metrics import metric_value_to_number
from hpckit.model.plain import MASK
from hpckit.record.launches import load_launch
from hpckit.record.store import append_json_lines
from hpckit.report.selection import parse_overrides
from hpckit.runtime.environ import copy_environment, rank_info
from hpckit.values import dataclass

METRIC = "return_value"
"""The metric with the number that the application's function returned."""

_LOG = logging.getLogger(__name__)
_DECORATE = hydra.main
_MODULE = sys.modules["hydra.main"]
"""The module, which has the name of the function in the package."""


@dataclass(slots=True, kw_only=True)
class JobOnNode:
    """A job in this process, which is one rank of its run. `done` once its function has been called."""

    job: FrozenJob
    environ: Mapping[str, str]
    rank: int
    done: bool = False

    def enter_application(self) -> None:
        """Run the script or module of the application to its end; raises whatever it raises."""
        application = self.job.application
        os.chdir(application.cwd)
        script, folder = self._find_frozen_script()
        sys.argv = [str(script or application.module), *application.arguments]
        sys.path.insert(0, str(folder))
        hydra.main = _MODULE.main = self.main  # type: ignore[attr-defined]
        if script is None:
            runpy.run_module(str(application.module), run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(script), run_name="__main__")
        if not self.done:
            raise RunError(
                f"{sys.argv[0]} did not call {application.function} when it was started again for this run",
                hint="call what hydra.main decorates under the same conditions as at the launch",
            )

    def _find_frozen_script(self) -> tuple[Path | None, Path]:
        """Return the script, and the folder that Python imports from first, in the frozen code if there."""
        code = load_launch(Path(self.environ["HPCKIT_LAUNCH_DIR"])).code
        script = self.job.application.script
        place = Path(self.job.application.cwd if script is None else script)
        if place.is_relative_to(code.project):
            frozen = Path(code.root, place.relative_to(code.project))
            place = frozen if frozen.exists() else place
        return (None, place) if script is None else (place, place.parent)

    def main(self, *words: Any, **named: Any) -> Callable[..., Any]:
        """Stand in for `hydra.main`, whose decorated function is called with the frozen configuration."""
        prepare = _DECORATE(*words, **named)  # sets Hydra's version_base
        config_path = words[0] if words else named.get("config_path")

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            prepare(function)

            @functools.wraps(function)
            def decorated(config: DictConfig | None = None) -> Any:
                if config is not None:
                    return function(config)
                if function.__qualname__ == self.job.application.function and not self.done:
                    self.call_function(function, config_path if isinstance(config_path, str) else None)
                return None

            return decorated

        return decorate

    def call_function(self, function: Callable[..., Any], config_path: str | None) -> None:
        """Call the application's function as a job of Hydra's; exits with 1 if it raises."""
        self.done = True
        Plugins.instance()  # imports some of Hydra's modules again, with the classes that configurations have
        config = self._prepare_config(pickle.loads(self.job.config))  # noqa: S301  # checked by its digest
        if not GlobalHydra.instance().is_initialized():
            file, module = detect_calling_file_or_module_from_task_function(function)
            path = create_automatic_config_search_path(file, module, config_path)
            Hydra.create_main_hydra2(task_name=config.hydra.job.name, config_search_path=path)
        result = run_job(
            hydra_context=HydraContext(
                config_loader=GlobalHydra.instance().config_loader(),
                callbacks=Callbacks(None if self.rank else config),
            ),
            task_function=function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        self._leave_result(result)

    def call_pickled_function(self) -> None:
        """Call the function of an application that cannot be entered again."""
        application = self.job.application
        os.chdir(application.cwd)
        sys.path += [folder for folder in application.python_path if folder not in sys.path]
        setup_globals()
        function, state = cloudpickle.loads(self.job.function or b"")
        if state is not None:
            Singleton.set_state(state)
        self.call_function(function, None)

    def _prepare_config(self, config: DictConfig) -> DictConfig:
        """Return the configuration as this rank has it: only rank 0 writes `.hydra` and NAME.log."""
        with read_write(config), open_dict(config):
            config.hydra.job.id = _describe_job(self.environ)
            if self.rank:
                config.hydra.output_subdir = None
                for handler in (OmegaConf.select(config, "hydra.job_logging.handlers") or {}).values():
                    if "filename" in handler:
                        file = Path(handler.filename)
                        handler.filename = str(file.with_name(f"{file.stem}.{self.rank}{file.suffix}"))
        return config

    def _leave_result(self, result: JobReturn) -> None:
        if result.status is not JobStatus.COMPLETED:
            error = result._return_value  # noqa: SLF001  # reading return_value raises it
            sys.stderr.write(f"Error executing job with overrides: {result.overrides}\n")
            # Without the frames of Hydra's run_job.
            traceback.print_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
            sys.exit(1)
        if self.rank:
            return
        value = result.return_value
        number = metric_value_to_number(value)
        if number is not None:
            append_json_lines(Path(self.environ["HPCKIT_ATTEMPT_DIR"]) / "metrics.jsonl", {METRIC: number})
        try:
            write_result(self.job, value, str(result.working_dir))
        except Exception as error:  # noqa: BLE001  # pickling runs the user's code, and this run did its work
            _LOG.warning("what the function returned cannot be pickled, the sweep gets None: %s", error)
            write_result(self.job, None, str(result.working_dir))


def _refuse_other_words(job: FrozenJob, environ: Mapping[str, str]) -> None:
    """Raise RunError if the run was recorded with other values than its job has, as a rerun may be."""
    launch = load_launch(Path(environ["HPCKIT_LAUNCH_DIR"]))
    given = parse_overrides(launch.overrides(int(environ["HPCKIT_RUN_INDEX"])))
    for key, text in job.words.items():
        if given.get(key, text) not in (text, MASK):
            raise RunError(
                f"{key}={given[key]} does not reach a job of a sweep, which was frozen with {key}={text}",
                hint="start the application itself again, with the other value",
            )


def _describe_job(environ: Mapping[str, str]) -> str:
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    run = f"{Path(environ['HPCKIT_LAUNCH_DIR']).name}.{environ['HPCKIT_RUN_INDEX']}"
    return environ.get("SLURM_JOB_ID") or run


def main(folder: str, digest: str, number: str) -> None:
    """Run one rank of a job; ends as the application ends."""
    environ = copy_environment()
    try:
        job = read_job(Path(folder), digest, int(number))
        _refuse_other_words(job, environ)
    except HpckitError as error:
        sys.exit(f"hpckit: error: {error.message}\n  {error.hint}")
    rank = JobOnNode(job=job, environ=environ, rank=rank_info(environ).rank)
    if job.application.can_be_entered:
        rank.enter_application()
    else:
        rank.call_pickled_function()


if __name__ == "__main__":
    main(*sys.argv[1:])
