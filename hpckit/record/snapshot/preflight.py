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

from hpckit.model.cluster.gpus_asked import cpus_of_task
from hpckit.model.command import command_words, invocation, script_of
from hpckit.model.finding import Finding, error, warning
from hpckit.model.launch import ClusterKind, DeviceKind, LaunchConfig, WorkingFolder
from hpckit.model.plan import LaunchPlan
from hpckit.model.rank import THREADS
from hpckit.record.named_paths import (
    ProjectFolder,
    commanded_paths,
    configured_paths,
    left_states,
    settings_paths,
)
from hpckit.record.snapshot.collect import CodeSnapshot
from hpckit.record.snapshot.entry_point import (
    FoundModule,
    defines,
    find_module,
    names_like,
    uncallable,
)
from hpckit.record.snapshot.environment import (
    capture_of,
    cpu_build,
    in_active_environment,
    program_meant,
)
from hpckit.record.snapshot.frozen_files import OUTSIDE, FrozenFiles
from hpckit.record.snapshot.outside import paths_of, unfrozen_code
from hpckit.record.snapshot.script_imports import (
    Reader,
    missing_modules,
    rank_findings,
    read_script,
)
from hpckit.values import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this machine has for a launch; Python and programs are found with `environ`."""

    plan: LaunchPlan
    snapshot: CodeSnapshot
    environ: Mapping[str, str]
    unchecked: list[str] = field(default_factory=list)

    def findings(self) -> tuple[Finding, ...]:
        """Return what is missing; afterwards `unchecked` lists what could not be checked."""
        return tuple(dict.fromkeys(self._missing()))

    def _missing(self) -> Iterator[Finding]:
        yield from self._python()
        yield from left_states(file.path for file in self.snapshot.files or () if not file.tracked)
        commands = [run.settings.command for run in self.plan.checked_runs]
        yield from unfrozen_code(self.snapshot, str(commands))
        seen: set[tuple[str, str, WorkingFolder]] = set()
        for run in self.plan.checked_runs:
            settings = run.settings
            task = (str(settings.entry_point), str(settings.command), settings.runtime.cwd)
            if task not in seen:
                seen.add(task)
                yield from self._task(settings)
            yield from settings_paths(settings)
            yield from self._devices(settings)
            yield from self._threads(settings)
            yield from configured_paths(run.config, self._projects[settings.runtime.cwd])

    def _threads(self, settings: LaunchConfig) -> Iterator[Finding]:
        """Warn about a number of threads that this shell has, and ranks will not."""
        said, cpus = self.environ.get(THREADS), str(cpus_of_task(settings.resources))
        if said and said != cpus and THREADS not in {**self.plan.cluster.env, **settings.env}:
            yield warning(
                "resources.cpus_per_task",
                cpus,
                f"{THREADS}={said} of this shell does not count: a rank has {cpus}, the CPUs of it",
                f"for more of both: resources.cpus_per_task={said}; else env.{THREADS}={said}",
            )

    @cached_property
    def working_dir(self) -> Path:
        """The folder of the project that a run starts in, on this machine."""
        return self.snapshot.root / self.snapshot.working_dir

    @cached_property
    def frozen(self) -> FrozenFiles:
        """The files of the project that the nodes will have."""
        return FrozenFiles(snapshot=self.snapshot, output_dir=Path(self.plan.folder).parent)

    @property
    def here(self) -> bool:
        """Whether the runs are for this machine."""
        return self.plan.cluster.kind is not ClusterKind.slurm

    @property
    def same_python(self) -> bool:
        """Whether ranks use the same Python as this process."""
        return Path(self.plan.python) == Path(sys.executable)

    @cached_property
    def _projects(self) -> Mapping[WorkingFolder, ProjectFolder]:
        """The project's folder, by the folder that runs start in."""
        return {
            where: ProjectFolder(
                folder=self.working_dir,
                missing=self.frozen.unreached,
                in_place=where is WorkingFolder.project,
            )
            for where in WorkingFolder
        }

    @cached_property
    def _read(self) -> Reader:
        """Reads each script once: the runs of a sweep differ in what follows it."""
        return cache(read_script)

    @property
    def _folders(self) -> list[Path]:
        """The folders of the project in which Python looks for modules."""
        return [self.working_dir, *(self.snapshot.root / top for top in self.snapshot.python_path)]

    def _import_folders(self, env: Mapping[str, str]) -> list[Path]:
        """Return these folders, and those of PYTHONPATH."""
        told = {**self.environ, **self.plan.cluster.env, **env}.get("PYTHONPATH", "")
        return [*self._folders, *(self.working_dir / top for top in told.split(os.pathsep) if top)]

    def _python(self) -> Iterator[Finding]:
        """Look for the Python of the runs; on nodes it may be where this machine has nothing."""
        python = self.plan.python
        found = shutil.which(python, path=self.environ.get("PATH", os.defpath))
        if self.here and found is None:
            yield error(
                "cluster.python",
                python,
                f"cluster.python is {python}, and there is no such program on this machine",
                "name the Python of an environment that has hpckit, or leave the key out: "
                f"{sys.executable}",
            )
        elif found is not None and not self.same_python and not capture_of(found, self.environ):
            say = error if self.here else warning  # what nodes set up may add to it
            yield say(
                "cluster.python",
                python,
                f"cluster.python is {python}, and no hpckit is installed for it here",
                f"install it there, or leave the key out: {sys.executable}",
            )

    def _devices(self, settings: LaunchConfig) -> Iterator[Finding]:
        """Warn if GPUs are requested but the PyTorch that should use them cannot."""
        asked, wanted = settings.resources.gpus_per_node or 0, settings.runtime.device
        if not asked or wanted is DeviceKind.cpu or not self.same_python:
            return
        command = settings.command
        if command is not None and not self._is_own_python(command_words(command)):
            return
        build = cpu_build()
        if build is not None:
            yield warning(
                "resources.gpus_per_node",
                asked,
                f"resources.gpus_per_node is {asked}, and the PyTorch of {self.plan.python} is a "
                f"CPU build ({build}): with this environment no rank finds a GPU",
                "install a CUDA or ROCm build into it, name another Python with cluster.python, or "
                "choose resources=cpu",
            )

    def _task(self, settings: LaunchConfig) -> Iterator[Finding]:
        if settings.entry_point is not None:
            yield from self._entry_point(settings.entry_point, settings.env)
        elif settings.command is not None:
            words = command_words(settings.command)
            project = self._projects[settings.runtime.cwd]
            yield from self._command(words, settings.env, in_place=project.in_place)
            yield from rank_findings(words, settings.resources, self._find, self._read)
            yield from commanded_paths(words, project)

    def _entry_point(self, text: str, env: Mapping[str, str]) -> Iterator[Finding]:
        name, _, attribute = text.partition(":")
        folders = self._import_folders(env)
        if self.same_python and importlib.util.find_spec("torch") is None:
            yield error(
                "entry_point",
                text,
                f"a function of yours needs PyTorch, and {self.plan.python} does not have it",
                "pip install '.[train]' in hpckit's checkout, or set cluster.python to a Python "
                "that has it",
            )
        module = find_module(name, folders, installed=self.same_python)
        if module is None:
            yield from self._no_module(text, name, folders)
        elif module.file is not None and (why := self.frozen.missing(module.file)):
            yield _left_out("entry_point", text, module.file, why)
        elif module.is_source:
            yield from self._attribute(text, attribute, module, folders)

    def _no_module(self, text: str, name: str, folders: list[Path]) -> Iterator[Finding]:
        looked = ", ".join(str(folder) for folder in dict.fromkeys(folders))
        if not self.same_python:
            self.unchecked.append(
                f"entry_point {text}: {name} is not in the project ({looked}); whether "
                f"{self.plan.python} has it installed was not looked at"
            )
            return
        yield error(
            "entry_point",
            text,
            f"module {name} of entry_point {text} is neither in {looked} nor installed for "
            f"{self.plan.python}",
            "start hpckit in the project's folder, name its folders in code.paths, or install it",
        )

    def _attribute(
        self, text: str, attribute: str, module: FoundModule, folders: list[Path]
    ) -> Iterator[Finding]:
        assert module.file is not None  # noqa: S101  # is_source says so
        try:
            source = module.file.read_bytes().decode("utf-8", errors="replace")
            there = defines(source, attribute)
            slip = uncallable(source, attribute)
        except OSError as problem:
            yield warning("entry_point", text, f"{module.file} cannot be read: {problem.strerror}")
        except (SyntaxError, ValueError) as problem:
            say = error if self.same_python else warning
            yield say(
                "entry_point",
                text,
                f"{module.file} is not valid Python: {problem}",
                "correct it: every rank would fail at its import",
            )
        else:
            if slip is not None:
                yield error("entry_point", text, f"entry_point {text} {slip[0]}", slip[1])
            yield from self._missing_modules("entry_point", text, module.file, folders)
            if not there:
                near = " or ".join(
                    f"entry_point={text.partition(':')[0]}:{name}"
                    for name in names_like(source, attribute)
                )
                yield error(
                    "entry_point",
                    text,
                    f"entry_point {text}: {module.file} defines no {attribute}",
                    f"did you mean {near}?" if near else "name a function of it: module:function",
                )

    def _command(
        self, words: tuple[str, ...], env: Mapping[str, str], *, in_place: bool
    ) -> Iterator[Finding]:
        program = words[0]
        if "/" in program and not Path(program).is_absolute():
            yield from self._project_file(program, runs=True, in_place=in_place)
        elif (found := self._which(program)) is None:
            # Nodes may have programs that this machine lacks, and modules add more.
            near, cure = program_meant(program, self._which)
            say = error if self.here or near else warning
            if len(words) == 1 and len(parts := program.split()) > 1:
                say = error
                cure = f"it is one word; leave its quotes out: hpckit launch -- {' '.join(parts)}"
            if (self.working_dir / program).is_file():
                by = "python " if program.endswith(".py") else "./"
                cure = f"a file of that name is here: write {by}{program}"
            yield say("command", program, f"there is no program {program} on this machine", cure)
        elif self.plan.cluster.python is None and (  # else the one that was set is meant
            meant := in_active_environment(program, self.environ)
        ) not in {None, found}:
            own = f"cluster.python={Path(str(meant)).parent}/python"
            cure = f"install hpckit there, and set {own}; or give the program's path"
            why = f"`{program}` in the command will be {found} (from hpckit's environment), "
            why += f"not {meant} (from the active one)"
            yield warning("command", program, why, cure)
        started = invocation(words)
        script = script_of(words)
        if started.module is not None:
            yield from self._module(words, started.module, in_place=in_place)
        elif script is not None and (started.is_shell or script.endswith(".py")):
            yield from self._project_file(script, in_place=in_place)
            if self._is_own_python(words):
                file, folders = self.working_dir / script, self._import_folders(env)
                yield from self._missing_modules("command", script, file, folders)

    def _missing_modules(
        self, key: str, value: str, file: Path, folders: list[Path]
    ) -> Iterator[Finding]:
        """Look for what a script imports; what the nodes set up may add to it."""
        imported = missing_modules(file, folders, self._read, partial(self._left_out, file))
        for name, why in imported.items() if self.same_python else ():
            what = f"which {self.plan.python} does not have"
            cure = "install it there ('.[examples]' in hpckit's checkout for its examples), or "
            cure += "set cluster.python to a Python that has it"
            if why:
                what, cure = f"which is not part of the frozen code: {why}", _cure(why)
            yield warning(key, value, f"{file.name} imports {name}, {what}", cure)

    def _left_out(self, script: Path, module: Path) -> str | None:
        """Return why a script will not find a module of the project that is not on PYTHONPATH."""
        outside = paths_of(self.snapshot.outside)
        on_path = str(module).startswith(tuple(path for path in outside if path.endswith("/")))
        live = str(script) in outside  # with what is beside it
        return None if on_path or live else self.frozen.missing(module)

    def _is_own_python(self, words: tuple[str, ...]) -> bool:
        """Return whether a command uses the same Python as this process, judged by its name."""
        started = invocation(words)
        by_name = started.is_python or started.program == "torchrun"
        return self.same_python and by_name and "/" not in words[0]

    def _module(self, words: tuple[str, ...], name: str, *, in_place: bool) -> Iterator[Finding]:
        module = find_module(name, self._folders, installed=True)
        if module is None:
            yield (error if self.here and self._is_own_python(words) else warning)(
                "command",
                name,
                f"module {name} of the command is neither in {self.working_dir} nor installed "
                f"for {self.plan.python}",
                "look for a typing mistake, or install it",
            )
        elif module.file is not None and not in_place:
            if why := self.frozen.missing(module.file):
                yield _left_out("command", name, module.file, why)
            elif self._is_own_python(words) and module.file.is_relative_to(self.snapshot.root):
                yield from self._missing_modules("command", name, module.file, self._folders)

    def _which(self, program: str) -> str | None:
        beside_python = str(Path(self.plan.python).parent)
        path = os.pathsep.join([beside_python, self.environ.get("PATH", os.defpath)])
        return shutil.which(program, path=path)

    def _find(self, name: str) -> Path | None:
        """Return the file of a program or a script of the command; None if it is not here."""
        file = self.working_dir / name
        found = None if "/" in name or file.is_file() else self._which(name)
        return file if found is None else Path(found)

    def _project_file(
        self, name: str, *, runs: bool = False, in_place: bool = False
    ) -> Iterator[Finding]:
        file = self.working_dir / name
        if Path(name).is_absolute():
            return
        if file.is_file() and not in_place and self.frozen.leads_out(name):
            yield _left_out("command", name, file, OUTSIDE)
            return
        if not file.is_file():
            yield error(
                "command",
                name,
                f"{file} is a folder, which a command cannot start"
                if file.is_dir()
                else f"there is no file {name} in {self.working_dir}, where the command starts",
                "give its path from the folder in which you call hpckit",
            )
        elif not in_place and (why := self.frozen.missing(file)):
            yield _left_out("command", name, file, why)
        elif runs and not os.access(file, os.X_OK):
            yield error(
                "command",
                name,
                f"{file} is not executable",
                f"chmod +x {name}, or name what runs it, for example: python {name}",
            )


def _left_out(key: str, value: str, file: Path, why: str) -> Finding:
    return error(
        key,
        value,
        f"{file} exists, but is not part of the frozen code: {why}",
        _cure(why),
    )


def _cure(why: str) -> str:
    if "git" in why:
        return "git add -f it, take it out of .gitignore, or set code.snapshot=false"
    return "put it elsewhere in the project, give its whole path, or set code.snapshot=false"
