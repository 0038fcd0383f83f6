"""Checks models in their layouts: one process for each run, which builds its model on meta.

It decides nothing about models, and imports no torch: a process of the run's Python does that. The
user's function runs in it, up to its first training step, in a folder that is removed afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess  # noqa: TID251  # the model is built by the Python of the run
import tempfile
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import IO

from hpckit.context import Context
from hpckit.model.counted import format_count, format_ranges
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding
from hpckit.model.parallel.layout import Layout
from hpckit.model.parallel.model_check import CheckedModel, ModelAnswer, ModelQuestion
from hpckit.model.plain import from_plain, to_plain
from hpckit.model.plan import LaunchPlan, RunSpec
from hpckit.model.rank import RankInfo, RankSource
from hpckit.planning.fallback import list_fallback_layouts
from hpckit.planning.layout import plan_run_layout
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.working import link_code_into_folder
from hpckit.runtime.environ import rank_variables, remove_rank_variables
from hpckit.values import dataclass, field

MODELS = 8
"""The models of at most this many runs of a launch are checked: each takes seconds."""
_FALLBACKS = 3
"""And each of them in this many layouts of `parallel.fallback` at most."""
PATIENCE = timedelta(seconds=60)
_MODULE = "hpckit.runtime.model_check.process"
_LEAVE_OUT = "--no-model leaves this check out"


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """How a model is checked: a number of nodes, and the layout that a run has on them."""

    nodes: int
    layout: Layout
    fallback: bool = False

    @property
    def config_key(self) -> str:
        """The key of the configuration that chooses this layout."""
        return "parallel.fallback" if self.fallback else "parallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChecks:
    """Checks the models of a launch; afterwards `models` and `unchecked` hold what was learnt.

    `unmade` is why a model could not be laid out.

    With `whole_copies` also those of runs of which every rank has the whole model; without
    `fallback` only in the runs' own layouts. `most` models are checked; each may take `patience`.
    """

    plan: LaunchPlan
    snapshot: CodeSnapshot
    context: Context
    whole_copies: bool = False
    fallback: bool = True
    most: int = field(default_factory=lambda: MODELS)
    patience: timedelta = field(default_factory=lambda: PATIENCE)
    models: list[CheckedModel] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    unmade: list[str] = field(default_factory=list)

    def findings(self) -> Iterator[Finding]:
        """Check the model of each run that is laid out; yield what does not fit."""
        wanted = self._list_runs_to_check()
        for run in wanted[: self.most]:
            yield from self._check_run_layouts(run)
        if left := wanted[self.most :]:
            self.unchecked.append(
                f"the {'model' if len(left) == 1 else 'models'} of "
                f"{format_count(len(left), 'more run')}, "
                f"{format_ranges(run.index for run in left)}: those of {self.most} are checked at "
                "most"
            )

    def _list_runs_to_check(self) -> list[RunSpec]:
        """Return the runs of functions with a layout, the first one of each layout first."""
        runs = [
            run
            for run in self.plan.runs
            if run.settings.entry_point is not None
            and not self.plan.containers  # this machine's torch is another one
            and (self.whole_copies or not plan_run_layout(run.settings).is_data_parallel)
        ]
        first = {_layout_and_entry_point(run): run.index for run in reversed(runs)}
        return sorted(runs, key=lambda run: first[_layout_and_entry_point(run)] != run.index)

    def _check_run_layouts(self, run: RunSpec) -> Iterator[Finding]:
        own = _World(nodes=run.settings.resources.nodes, layout=plan_run_layout(run.settings))
        found = list(self._check_one_layout(run, own))
        yield from found
        if found or not self.fallback:
            return
        others = [
            _World(nodes=nodes, layout=layout, fallback=True)
            for nodes, layout in list_fallback_layouts(run.settings).items()
        ]
        for other in others[:_FALLBACKS]:
            yield from self._check_one_layout(run, other)
        if left := others[_FALLBACKS:]:
            self.unchecked.append(
                f"the model of run {run.index} on {format_ranges(layout.nodes for layout in left)} "
                f"nodes: it is checked in {_FALLBACKS} layouts of parallel.fallback at most"
            )

    def _check_one_layout(self, run: RunSpec, world: _World) -> Iterator[Finding]:
        answer = self._check_in_temp_folder(run, world)
        layout, entry_point = str(world.layout), run.settings.entry_point
        of = f"run {run.index}: " if len(self.plan.runs) > 1 else ""
        if world.fallback:
            of += f"on {format_count(world.nodes, 'node')} (parallel.fallback): "
        for problem in answer.problems:
            yield build_error_finding(world.config_key, layout, f"{of}{problem.message}", problem.hint)
        if answer.model_unchecked:
            self.unmade.append(answer.model_unchecked)
            yield build_warning_finding(
                "entry_point",
                entry_point,
                f"{of}the model could not be checked in its layout: {answer.model_unchecked}",
                _LEAVE_OUT,
            )
        if answer.batch_unchecked:
            yield build_warning_finding(
                "entry_point",
                entry_point,
                f"{of}the model fits its layout, but no batch was checked: {answer.batch_unchecked}",
                "batches are checked at the first run.train_step",
            )
        if answer.forward_unchecked:
            yield build_warning_finding(
                "entry_point",
                entry_point,
                f"{of}the model fits its layout, but its forward was not checked: it does not run "
                f"on torch's meta device, {answer.forward_unchecked}",
                "the first training step runs it",
            )
        if answer.stages:
            checked = CheckedModel(
                run=run.index,
                layout=layout,
                nodes=world.nodes,
                parameters=answer.parameters,
                stages=answer.stages,
                trains=not answer.batch_unchecked,
                adam=answer.adam,
                offloads=run.settings.parallel.offload,
                fallback=world.fallback,
            )
            self.models.append(checked)

    def _check_in_temp_folder(self, run: RunSpec, world: _World) -> ModelAnswer:
        with tempfile.TemporaryDirectory(prefix="hpckit-check-", ignore_cleanup_errors=True) as at:
            folder = Path(at)
            question = ModelQuestion(
                config=run.config,
                stage=run.stage,
                code=str(self._code_folder),
                project=str(self.snapshot.project),
                folder=str(folder / "run"),
            )
            (folder / "run").mkdir()
            try:
                link_code_into_folder(self.snapshot.root, self._code_folder, folder / "work")
                return self._run_check_process(run, world, question, folder)
            except OSError as problem:
                return ModelAnswer(model_unchecked=str(problem))

    @property
    def _code_folder(self) -> Path:
        return self.snapshot.root / self.snapshot.working_dir

    def _run_check_process(
        self, run: RunSpec, world: _World, question: ModelQuestion, folder: Path
    ) -> ModelAnswer:
        with (
            (folder / "question").open("w+") as asked,
            (folder / "answer").open("w+") as said,
            (folder / "log").open("w+", errors="replace") as log,
        ):
            json.dump(to_plain(question), asked)
            asked.seek(0)
            process = subprocess.Popen(
                [self.plan.python, "-P", "-m", _MODULE],
                stdin=asked,
                stdout=said,
                stderr=log,
                cwd=folder / "work" / self.snapshot.working_dir,
                env=self._build_rank_0_environment(run, world),
                start_new_session=True,
            )
            try:
                code = process.wait(self.patience.total_seconds())
            except subprocess.TimeoutExpired:
                limit_s = self.patience.total_seconds()
                why = f"its code did not reach a training step within {limit_s:.0f} s"
                return ModelAnswer(model_unchecked=why)
            finally:
                with contextlib.suppress(ProcessLookupError):  # and what it has started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return (
                _read_model_answer(said)
                if code == 0
                else ModelAnswer(model_unchecked=self._explain_missing_answer(code, log))
            )

    def _explain_missing_answer(self, code: int, log: IO[str]) -> str:
        log.seek(0)
        last = next((line for line in reversed(log.read().splitlines()) if line.strip()), "")
        if last.startswith("ModuleNotFoundError: No module named 'torch'"):
            return f"that needs PyTorch, and {self.plan.python} does not have it"
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {how}{f': {last}' if last else ''}"

    def _build_rank_0_environment(self, run: RunSpec, world: _World) -> Mapping[str, str]:
        """Return the environment of rank 0, which writes no compiled modules into the project."""
        merged = {
            "PYTHONHASHSEED": "0",
            **remove_rank_variables(self.context.environ),
            **self.plan.cluster.env,
            **run.secrets.cluster,
            **run.settings.env,
            **run.secrets.env,
        }
        paths = [str(self.snapshot.root / folder) for folder in self.snapshot.python_path]
        search = [*paths, *filter(None, [merged.get("PYTHONPATH")])]
        return {
            **merged,
            **rank_variables(_build_first_rank_info(run, world)),
            "HPCKIT_PROJECT": str(self.snapshot.project),
            "PYTHONPATH": os.pathsep.join(search),
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def _layout_and_entry_point(run: RunSpec) -> tuple[str, str | None]:
    return str(plan_run_layout(run.settings)), run.settings.entry_point


def _build_first_rank_info(run: RunSpec, world: _World) -> RankInfo:
    ranks = run.settings.resources.tasks_per_node
    return RankInfo(
        rank=0,
        world_size=world.nodes * ranks,
        local_rank=0,
        local_world_size=ranks,
        node_rank=0,
        num_nodes=world.nodes,
        source=RankSource.agent,
    )


def _read_model_answer(said: IO[str]) -> ModelAnswer:
    said.seek(0)
    try:
        return from_plain(ModelAnswer, json.load(said))
    except (TypeError, ValueError):
        return ModelAnswer(model_unchecked="its process ended without an answer")
