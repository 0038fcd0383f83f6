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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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

from hpckit.config.points import encode_hydra_value
from hpckit.errors import HpckitError, RunError
from hpckit.hydra_app.jobs import FrozenJob, name_function, read_job
from hpckit.model.failure import ExitReason
from hpckit.model.metrics import metric_value_to_number
from hpckit.model.plain import MASK
from hpckit.record.launches import Launch, load_launch
from hpckit.record.store import append_json_lines, write_chunks
from hpckit.report.selection import parse_overrides
from hpckit.runtime.environ import copy_environment, find_job_and_restarts, rank_info
from hpckit.runtime.rank.called_function import note_exit_reason, note_exit_status
from hpckit.values import dataclass

_LOG = logging.getLogger(__name__)
_DECORATE = hydra.main
_MODULE = sys.modules["hydra.main"]  # has the name of the function in the package


@dataclass(slots=True, kw_only=True)
class JobOnNode:
    """A job in this process, which is one rank of its run.

    `program` is its `__main__` once its function is called, and `end` how that ended: what follows
    `main()` in the program belongs to the whole sweep, and has no say in it.
    """

    job: FrozenJob
    launch: Launch
    environ: Mapping[str, str]
    rank: int
    program: Any = None
    end: BaseException | None = None

    def enter_application(self) -> None:
        """Run the script or module of the application until its function has ended; raises how it ended."""
        application, code = self.job.application, self.launch.code
        script = application.script and code.find_frozen(application.script)
        sys.argv = [str(script or application.module), *application.arguments]
        sys.path[:0] = dict.fromkeys(map(code.find_frozen, application.python_path))
        hydra.main = _MODULE.main = self.main  # type: ignore[attr-defined]
        try:
            if script is None:
                runpy.run_module(str(application.module), run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
        except BaseException:
            if self.end is None:
                raise
        if self.end is None:
            raise RunError(
                f"{sys.argv[0]} did not call {application.function} when it was started again for this run",
                hint="call what hydra.main decorates under the same conditions as at the launch",
            )
        sys.modules["__main__"] = self.program  # runpy put back its own, and functions at exit look there
        raise self.end

    def main(self, *words: Any, **named: Any) -> Callable[..., Any]:
        """Stand in for `hydra.main`, whose decorated function is called with the frozen configuration."""
        _DECORATE(*words, **named)  # sets Hydra's version_base
        config_path = words[0] if words else named.get("config_path")

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def decorated(config: DictConfig | None = None) -> Any:
                if config is not None:
                    return function(config)
                if name_function(function) == self.job.application.function and not self.program:
                    self.call_function(function, config_path if isinstance(config_path, str) else None)
                return None

            return decorated

        return decorate

    def call_function(self, function: Callable[..., Any], config_path: str | None) -> None:
        """Call the application's function as a job of Hydra's, and exit: with 1 if it raises."""
        self.program = sys.modules["__main__"]
        try:
            sys.exit(self._leave_result(self._run_job(function, config_path)))
        except BaseException as end:
            self.end = end
            if isinstance(end, SystemExit):
                note_exit_status(self.environ, end.code)
            raise

    def _run_job(self, function: Callable[..., Any], config_path: str | None) -> JobReturn:
        Plugins.instance()  # imports some of Hydra's modules again, with the classes that configurations have
        config = pickle.loads(self.job.config)  # noqa: S301  # checked by its digest
        with read_write(config), open_dict(config):
            run = f"{self.launch.id}.{self.environ['HPCKIT_RUN_INDEX']}"
            config.hydra.job.id = find_job_and_restarts(self.environ)[0] or run
            if self.rank:  # only rank 0 writes `.hydra` and NAME.log
                config.hydra.output_subdir = None
                for handler in (OmegaConf.select(config, "hydra.job_logging.handlers") or {}).values():
                    if "filename" in handler:
                        file = Path(handler.filename)
                        handler.filename = str(file.with_name(f"{file.stem}.{self.rank}{file.suffix}"))
        if not GlobalHydra.instance().is_initialized():
            source, module = detect_calling_file_or_module_from_task_function(function)
            source = source or (None if module else self.program.__file__)  # of an object
            path = create_automatic_config_search_path(source, module, config_path)
            Hydra.create_main_hydra2(task_name=config.hydra.job.name, config_search_path=path)
        return run_job(
            hydra_context=HydraContext(
                config_loader=GlobalHydra.instance().config_loader(),
                callbacks=Callbacks(None if self.rank else config),
            ),
            task_function=function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )

    def call_pickled_function(self, pickled: bytes) -> None:
        """Call the function of an application that cannot be entered again."""
        sys.path += [folder for folder in self.job.application.python_path if folder not in sys.path]
        setup_globals()
        function, state = pickle.loads(pickled)  # noqa: S301  # checked by its digest
        if state is not None:
            Singleton.set_state(state)
        self.call_function(function, None)

    def _leave_result(self, result: JobReturn) -> int:
        """Leave what the function returned, of rank 0, and return the code to exit with."""
        if result.status is not JobStatus.COMPLETED:
            error = result._return_value  # noqa: SLF001  # reading return_value raises it
            sys.stderr.write(f"Error executing job with overrides: {result.overrides}\n")
            # Without the frames of Hydra's run_job.
            traceback.print_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
            return 1
        if self.rank:
            return 0
        value, folder = result.return_value, str(result.working_dir)
        if (number := metric_value_to_number(value)) is not None:
            metrics = Path(self.environ["HPCKIT_ATTEMPT_DIR"]) / "metrics.jsonl"
            append_json_lines(metrics, {"return_value": number})
        try:
            content = pickle.dumps((value, folder))
        except Exception as error:  # noqa: BLE001  # pickling runs the user's code, and this run did its work
            _LOG.warning("what the function returned cannot be pickled, the sweep gets None: %s", error)
            content = pickle.dumps((None, folder))
        write_chunks(self.job.result, (content,))
        return 0


def _refuse_other_words(job: FrozenJob, overrides: Sequence[str]) -> None:
    """Raise RunError if the run was recorded with other values than its job has, as a rerun may be."""
    given = parse_overrides(overrides)
    for key, value in job.words.items():
        text = encode_hydra_value(value)
        if given.get(key, text) not in (text, MASK):
            raise RunError(
                f"{key}={given[key]} does not reach a job of a sweep, which was frozen with {key}={text}",
                hint="start the application itself again, with the other value",
            )


def main(folder: str, digest: str, number: str) -> None:
    """Run one rank of a job; ends as the application ends."""
    environ = copy_environment()
    try:
        job = read_job(Path(folder), digest, int(number))
        launch = load_launch(Path(environ["HPCKIT_LAUNCH_DIR"]))
        _refuse_other_words(job, launch.overrides(int(environ["HPCKIT_RUN_INDEX"])))
    except HpckitError as error:
        sys.exit(f"hpckit: error: {error.message}\n  {error.hint}")
    rank = JobOnNode(job=job, launch=launch, environ=environ, rank=rank_info(environ).rank)
    os.chdir(job.application.cwd)
    note_exit_reason(environ, ExitReason.exited)
    rank.enter_application() if job.function is None else rank.call_pickled_function(job.function)


if __name__ == "__main__":
    main(*sys.argv[1:])
