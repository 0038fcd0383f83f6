"""Checks whether what a launch names exists on this machine: its code, its program, its data.

Nothing is run or imported, and the cluster is not asked. Nodes may see other file systems than this
machine: for paths outside the project there are only warnings.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path

from hpckit.model.cluster.gpus_asked import count_cpus_per_rank
from hpckit.model.command import find_started_script, parse_invocation, split_command
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding
from hpckit.model.launch import ClusterKind, DeviceKind, LaunchConfig, WorkingFolder
from hpckit.model.plan import LaunchPlan
from hpckit.model.rank import THREADS
from hpckit.record import named_paths
from hpckit.record.snapshot import script_imports
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.snapshot.entry_point import (
    FoundModule,
    explain_uncallable_entry_point,
    find_module,
    may_define_name,
    suggest_similar_names,
)
from hpckit.record.snapshot.environment import (
    capture_python_environment,
    find_cpu_only_torch,
    find_program_in_environment,
    suggest_for_misspelled_program,
)
from hpckit.record.snapshot.frozen_files import OUTSIDE, FrozenFiles
from hpckit.record.snapshot.outside import parse_outside_code_paths, warn_about_unfrozen_code
from hpckit.values import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this machine has for a launch; Python and programs are found with `environ`."""

    plan: LaunchPlan
    snapshot: CodeSnapshot
    environ: Mapping[str, str]
    unchecked: list[str] = field(default_factory=list)

    def find_launch_problems(self) -> tuple[Finding, ...]:
        """Return what is missing; afterwards `unchecked` lists what could not be checked."""
        return tuple(dict.fromkeys(self._yield_launch_problems()))

    def _yield_launch_problems(self) -> Iterator[Finding]:
        yield from self._find_python_problems()
        yield from named_paths.warn_about_saved_model_files(
            file.path for file in self.snapshot.files or () if not file.tracked
        )
        commands = [run.settings.command for run in self.plan.runs_to_check]
        yield from warn_about_unfrozen_code(self.snapshot, str(commands))
        seen: set[tuple[str, str, WorkingFolder]] = set()
        for run in self.plan.runs_to_check:
            settings = run.settings
            task = (str(settings.entry_point), str(settings.command), settings.runtime.cwd)
            if task not in seen:
                seen.add(task)
                yield from self._find_command_or_function_problems(settings)
            yield from named_paths.find_checkpoint_problems(settings)
            yield from self._warn_about_cpu_only_torch(settings)
            yield from self._warn_about_unused_thread_count(settings)
            yield from named_paths.warn_about_config_paths(
                run.config, self._project_folders[settings.runtime.cwd]
            )

    def _warn_about_unused_thread_count(self, settings: LaunchConfig) -> Iterator[Finding]:
        """Warn about a number of threads that this shell has, and ranks will not."""
        said, cpus = self.environ.get(THREADS), str(count_cpus_per_rank(settings.resources))
        if said and said != cpus and THREADS not in {**self.plan.cluster.env, **settings.env}:
            yield build_warning_finding(
                "resources.cpus_per_task",
                cpus,
                f"{THREADS}={said} of this shell is not used: a rank has {cpus}, one per CPU",
                f"for {said} CPUs and threads: resources.cpus_per_task={said}; for {said} threads on "
                f"{cpus} CPUs: env.{THREADS}={said}",
            )

    @cached_property
    def working_dir(self) -> Path:
        """The folder of the project that a run starts in, on this machine."""
        return self.snapshot.root / self.snapshot.working_dir

    @cached_property
    def frozen_files(self) -> FrozenFiles:
        """The files of the project that the nodes will have."""
        return FrozenFiles(snapshot=self.snapshot, output_dir=Path(self.plan.folder).parent)

    @property
    def runs_on_this_machine(self) -> bool:
        """Whether the runs are for this machine."""
        return self.plan.cluster.kind is not ClusterKind.slurm

    @property
    def uses_this_python(self) -> bool:
        """Whether ranks use the same Python as this process."""
        return Path(self.plan.python) == Path(sys.executable) and not self.plan.containers

    @cached_property
    def _project_folders(self) -> Mapping[WorkingFolder, named_paths.ProjectFolder]:
        """The project's folder, by the folder that runs start in."""
        missing = self.frozen_files.explain_relative_path_missing
        return named_paths.build_project_folders(self.working_dir, missing, self.plan.runs)

    @cached_property
    def _cached_script_reader(self) -> script_imports.Reader:
        """Reads each script once: the runs of a sweep differ in what follows it."""
        return cache(script_imports.read_script)

    @property
    def _module_folders(self) -> list[Path]:
        return [self.working_dir, *(self.snapshot.root / top for top in self.snapshot.python_path)]

    def _list_import_folders(self, env: Mapping[str, str]) -> list[Path]:
        """Return these folders, and those of PYTHONPATH."""
        told = {**self.environ, **self.plan.cluster.env, **env}.get("PYTHONPATH", "")
        return [*self._module_folders, *(self.working_dir / top for top in told.split(os.pathsep) if top)]

    def _find_python_problems(self) -> Iterator[Finding]:
        """Look for the Python of the runs; on nodes it may be where this machine has nothing."""
        python = self.plan.python
        found = shutil.which(python, path=self.environ.get("PATH", os.defpath))
        if self.runs_on_this_machine and found is None:
            yield build_error_finding(
                "cluster.python",
                python,
                f"cluster.python is {python}, and there is no such program on this machine",
                f"name the Python of an environment that has hpckit, or leave the key out: {sys.executable}",
            )
        elif (
            found is not None
            and Path(python) != Path(sys.executable)
            and not capture_python_environment(found, self.environ)
        ):
            say = (
                build_error_finding if self.runs_on_this_machine else build_warning_finding
            )  # what nodes set up may add to it
            yield say(
                "cluster.python",
                python,
                f"cluster.python is {python}, and hpckit is not installed for it here",
                f"install it there, or leave the key out: {sys.executable}",
            )

    def _warn_about_cpu_only_torch(self, settings: LaunchConfig) -> Iterator[Finding]:
        asked, wanted = settings.resources.gpus_per_node or 0, settings.runtime.device
        if not asked or wanted is DeviceKind.cpu or not self.uses_this_python:
            return
        command = settings.command
        if command is not None and not self._runs_in_this_python(split_command(command)):
            return
        build = find_cpu_only_torch()
        if build is not None:
            yield build_warning_finding(
                "resources.gpus_per_node",
                asked,
                f"resources.gpus_per_node is {asked}, and the PyTorch of {self.plan.python} is a "
                f"CPU build ({build}): with this environment no rank finds a GPU",
                "install a CUDA or ROCm build into it, name another Python with cluster.python, or "
                "choose resources=cpu",
            )

    def _find_command_or_function_problems(self, settings: LaunchConfig) -> Iterator[Finding]:
        if settings.entry_point is not None:
            yield from self._find_entry_point_problems(settings.entry_point, settings.env)
        elif settings.command is not None:
            words = split_command(settings.command)
            project = self._project_folders[settings.runtime.cwd]
            if not self.plan.containers:  # whose programs this machine cannot look at
                yield from self._find_command_problems(words, settings.env, in_place=project.in_place)
            yield from script_imports.find_multi_rank_problems(
                words, settings.resources, self._find_program_or_script, self._cached_script_reader
            )
            yield from named_paths.warn_about_command_paths(words, project)

    def _find_entry_point_problems(self, text: str, env: Mapping[str, str]) -> Iterator[Finding]:
        name, _, attribute = text.partition(":")
        folders = self._list_import_folders(env)
        if self.uses_this_python and importlib.util.find_spec("torch") is None:
            yield build_error_finding(
                "entry_point",
                text,
                f"your function needs PyTorch, but {self.plan.python} does not have it",
                "pip install '.[train]' in hpckit's checkout, or set cluster.python to a Python that has it",
            )
        module = find_module(name, folders, installed=self.uses_this_python or name.startswith("hpckit."))
        if module is None:
            yield from self._report_missing_module(text, name, folders)
        elif module.file is not None and (
            why := self.frozen_files.explain_path_missing_on_nodes(module.file)
        ):
            yield _build_left_out_error("entry_point", text, module.file, why)
        elif module.has_readable_source:
            yield from self._find_function_problems(text, attribute, module, folders)

    def _report_missing_module(self, text: str, name: str, folders: list[Path]) -> Iterator[Finding]:
        looked = ", ".join(str(folder) for folder in dict.fromkeys(folders))
        if not self.uses_this_python:
            self.unchecked.append(
                f"entry_point {text}: {name} is not in the project ({looked}); whether "
                f"{'the image' if self.plan.containers else self.plan.python} has it was not looked at"
            )
            return
        yield build_error_finding(
            "entry_point",
            text,
            f"module {name} of entry_point {text} is neither in {looked} nor installed for "
            f"{self.plan.python}",
            "start hpckit in the project's folder, name its folders in code.paths, or install it",
        )

    def _find_function_problems(
        self, text: str, attribute: str, module: FoundModule, folders: list[Path]
    ) -> Iterator[Finding]:
        assert module.file is not None  # noqa: S101  # is_source says so
        try:
            source = module.file.read_bytes().decode("utf-8", errors="replace")
            there = may_define_name(source, attribute)
            slip = explain_uncallable_entry_point(source, attribute)
        except OSError as problem:
            yield build_warning_finding(
                "entry_point", text, f"{module.file} cannot be read: {problem.strerror}"
            )
        except (SyntaxError, ValueError) as problem:
            say = build_error_finding if self.uses_this_python else build_warning_finding
            yield say(
                "entry_point",
                text,
                f"{module.file} is not valid Python: {problem}",
                "correct it: every rank would fail at its import",
            )
        else:
            if slip is not None:
                yield build_error_finding("entry_point", text, f"entry_point {text} {slip[0]}", slip[1])
            yield from self._warn_about_missing_imports("entry_point", text, module.file, folders)
            if not there:
                near = " or ".join(
                    f"entry_point={text.partition(':')[0]}:{name}"
                    for name in suggest_similar_names(source, attribute)
                )
                yield build_error_finding(
                    "entry_point",
                    text,
                    f"entry_point {text}: {module.file} defines no {attribute}",
                    f"did you mean {near}?" if near else "name a function of it: module:function",
                )

    def _find_command_problems(
        self, words: tuple[str, ...], env: Mapping[str, str], *, in_place: bool
    ) -> Iterator[Finding]:
        program = words[0]
        if "/" in program and not Path(program).is_absolute():
            yield from self._find_command_file_problems(program, runs=True, in_place=in_place)
        elif (found := self._find_program_on_path(program)) is None:
            # Nodes may have programs that this machine lacks, and modules add more.
            near, cure = suggest_for_misspelled_program(program, self._find_program_on_path)
            say = build_error_finding if self.runs_on_this_machine or near else build_warning_finding
            if len(words) == 1 and len(parts := program.split()) > 1:
                say = build_error_finding
                cure = f"it is one word; leave its quotes out: hpckit launch -- {' '.join(parts)}"
            if (self.working_dir / program).is_file():
                by = "python " if program.endswith(".py") else "./"
                cure = f"a file of that name is here: write {by}{program}"
            yield say("command", program, f"there is no program {program} on this machine", cure)
        elif self.plan.cluster.python is None and (  # else the one that was set is meant
            meant := find_program_in_environment(program, self.environ)
        ) not in {None, found}:
            own = f"cluster.python={Path(str(meant)).parent}/python"
            cure = f"install hpckit there, and set {own}; or give the program's path"
            why = f"`{program}` in the command will be {found} (from hpckit's environment), "
            why += f"not {meant} (from the active one)"
            yield build_warning_finding("command", program, why, cure)
        started = parse_invocation(words)
        script = find_started_script(words)
        if started.module is not None:
            yield from self._find_module_problems(words, started.module, in_place=in_place)
        elif script is not None and (started.is_shell or script.endswith(".py")):
            yield from self._find_command_file_problems(script, in_place=in_place)
            if self._runs_in_this_python(words):
                file, folders = self.working_dir / script, self._list_import_folders(env)
                yield from self._warn_about_missing_imports("command", script, file, folders)

    def _warn_about_missing_imports(
        self, key: str, value: str, file: Path, folders: list[Path]
    ) -> Iterator[Finding]:
        """Look for what a script imports; what the nodes set up may add to it."""
        imported = script_imports.find_unimportable_modules(
            file, folders, self._cached_script_reader, partial(self._explain_module_left_out, file)
        )
        for name, why in imported.items() if self.uses_this_python else ():
            what = f"which {self.plan.python} does not have"
            cure = "install it there ('.[examples]' in hpckit's checkout for its examples), or "
            cure += "set cluster.python to a Python that has it"
            if why:
                what, cure = (f"which is not part of the frozen code: {why}", _suggest_left_out_remedy(why))
            yield build_warning_finding(key, value, f"{file.name} imports {name}, {what}", cure)

    def _explain_module_left_out(self, script: Path, module: Path) -> str | None:
        """Return why a script will not find a module of the project that is not on PYTHONPATH."""
        outside = parse_outside_code_paths(self.snapshot.outside)
        on_path = str(module).startswith(tuple(path for path in outside if path.endswith("/")))
        live = str(script) in outside  # with what is beside it
        return None if on_path or live else self.frozen_files.explain_path_missing_on_nodes(module)

    def _runs_in_this_python(self, words: tuple[str, ...]) -> bool:
        """Return whether a command uses the same Python as this process, judged by its name."""
        started = parse_invocation(words)
        by_name = started.is_python or started.program == "torchrun"
        return self.uses_this_python and by_name and "/" not in words[0]

    def _find_module_problems(
        self, words: tuple[str, ...], name: str, *, in_place: bool
    ) -> Iterator[Finding]:
        module = find_module(name, self._module_folders, installed=True)
        if module is None:
            yield (
                build_error_finding
                if self.runs_on_this_machine and self._runs_in_this_python(words)
                else build_warning_finding
            )(
                "command",
                name,
                f"module {name} of the command is neither in {self.working_dir} nor installed "
                f"for {self.plan.python}",
                "look for a typing mistake, or install it",
            )
        elif module.file is not None and not in_place:
            if why := self.frozen_files.explain_path_missing_on_nodes(module.file):
                yield _build_left_out_error("command", name, module.file, why)
            elif self._runs_in_this_python(words) and module.file.is_relative_to(self.snapshot.root):
                yield from self._warn_about_missing_imports(
                    "command", name, module.file, self._module_folders
                )

    def _find_program_on_path(self, program: str) -> str | None:
        beside_python = str(Path(self.plan.python).parent)
        path = os.pathsep.join([beside_python, self.environ.get("PATH", os.defpath)])
        return shutil.which(program, path=path)

    def _find_program_or_script(self, name: str) -> Path | None:
        file = self.working_dir / name
        found = None if "/" in name or file.is_file() else self._find_program_on_path(name)
        return file if found is None else Path(found)

    def _find_command_file_problems(
        self, name: str, *, runs: bool = False, in_place: bool = False
    ) -> Iterator[Finding]:
        file = self.working_dir / name
        if Path(name).is_absolute():
            return
        if file.is_file() and not in_place and self.frozen_files.leads_out_of_project(name):
            yield _build_left_out_error("command", name, file, OUTSIDE)
            return
        if not file.is_file():
            yield build_error_finding(
                "command",
                name,
                f"{file} is a folder, which a command cannot start"
                if file.is_dir()
                else f"there is no file {name} in {self.working_dir}, where the command starts",
                "give its path from the folder in which you call hpckit",
            )
        elif not in_place and (why := self.frozen_files.explain_path_missing_on_nodes(file)):
            yield _build_left_out_error("command", name, file, why)
        elif runs and not os.access(file, os.X_OK):
            yield build_error_finding(
                "command",
                name,
                f"{file} is not executable",
                f"chmod +x {name}, or name what runs it, for example: python {name}",
            )


def _build_left_out_error(key: str, value: str, file: Path, why: str) -> Finding:
    return build_error_finding(
        key, value, f"{file} exists, but is not part of the frozen code: {why}", _suggest_left_out_remedy(why)
    )


def _suggest_left_out_remedy(why: str) -> str:
    if "git" in why:
        return "git add -f it, take it out of .gitignore, or set code.snapshot=false"
    return "put it elsewhere in the project, give its whole path, or set code.snapshot=false"
