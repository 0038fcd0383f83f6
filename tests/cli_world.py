"""Hands the tests of the reading verbs launches to read: frozen as ever, told by real events."""

from __future__ import annotations

import io
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from json_schemas import check_printed

from hpckit.cli.main import VERBS, build_verb_parser, import_verb_module, main
from hpckit.context import Context
from hpckit.errors import HpckitError
from hpckit.model import events
from hpckit.model.failure import Cause, Failure
from hpckit.model.launch import Cluster, ClusterKind, LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.model.plan import SweepPoint
from hpckit.model.settings import Code
from hpckit.model.states import RunState
from hpckit.planning.plan import LaunchIdentity, build_launch_plan
from hpckit.record.freeze import write_frozen_launch
from hpckit.record.launch_events import read_merged_events, record_launch_event
from hpckit.record.launches import Launch, load_launch
from hpckit.record.layout import AttemptPaths, LaunchPaths
from hpckit.record.snapshot.collect import CodeFile, CodeSnapshot
from hpckit.record.store import (
    append_event,
    append_json_lines,
    make_private_folder,
    write_json,
    write_text_atomically,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = START + timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a verb answered."""

    code: int
    out: str
    err: str


def _real_now() -> datetime:
    return datetime.now(UTC)


def make_context(cwd: Path = Path("/"), environ: Mapping[str, str] | None = None, **more: Any) -> Context:
    """Return an invocation in this folder: what it prints is kept, its clock is the real one."""
    kept: dict[str, Any] = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    usual: dict[str, Any] = {"now": _real_now, "sleep": time.sleep}
    return Context(environ=environ or {}, cwd=cwd, **{**kept, **usual, **more})


def verb_said(
    *words: str,
    folder: Path,
    environ: Mapping[str, str] = os.environ,
    now: Callable[[], datetime] = _real_now,
    sleep: Callable[[float], None] = time.sleep,
) -> Said:
    """Run `hpckit WORDS` in this process and a folder, with the real clock if none is given."""
    out, err = io.StringIO(), io.StringIO()
    context = Context(environ=dict(environ), cwd=folder, stdout=out, stderr=err, now=now, sleep=sleep)
    return _answered(words, main(words, context), out, err)


def _answered(words: Sequence[str], code: int, out: io.StringIO, err: io.StringIO) -> Said:
    """Return what a verb answered: what it prints with `--json` is as its schema says, and no error."""
    own = words[: words.index("--")] if "--" in words else words
    if "--json" in own and own[0] in VERBS and not {"-h", "--help"} & {*own}:
        answered = own[0] in {"check", "rm"} and code == 2
        assert answered or code not in {2, 3} or not out.getvalue(), f"an error after output: {words}"
        check_printed(own[0], own[1:], out.getvalue())
    return Said(code=code, out=out.getvalue(), err=err.getvalue())


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@dataclass(slots=True, kw_only=True)
class Desk:
    """A folder of launches, and the verbs to read them with."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    sleeps: list[float] = field(default_factory=list)

    def freeze(
        self,
        name: str = "demo",
        *,
        sweep: Sequence[tuple[str, ...]] = ((),),
        kind: ClusterKind = ClusterKind.local,
        minute: int = 0,
        files: Sequence[str] = (),
        **settings_given: Any,
    ) -> Launch:
        """Freeze a launch of one run per tuple of overrides, with a snapshot of these files."""
        created_at = START + timedelta(minutes=minute)
        launch = f"{name}-{created_at:%Y%m%d-%H%M%S}-ab12"
        settings = LaunchConfig(
            name=name,
            entry_point="train:main",
            code=Code(),
            **{"cluster": Cluster(kind=kind), **settings_given},
        )
        points = [
            SweepPoint(overrides=words, config=to_plain(settings), settings=settings) for words in sweep
        ]
        plan = build_launch_plan(
            points,
            identity=LaunchIdentity(id=launch, created_at=created_at),
            folder=str(self.folder / launch),
            arguments=("launch",),
            python="/usr/bin/python3",
        )
        snapshot = self._snapshot(files)
        write_frozen_launch(plan, scripts={0: "#!/bin/sh\n"}, snapshot=snapshot, environment={})
        return load_launch(Path(plan.folder))

    def _snapshot(self, names: Sequence[str]) -> CodeSnapshot:
        project = self.folder.parent / "project"
        project.mkdir(exist_ok=True)
        for name in names:
            (project / name).write_text(f"{name}\n")
        files = tuple(CodeFile(path=name, size=1, executable=False) for name in names)
        return CodeSnapshot(root=project, working_dir=".", python_path=(), files=files or None, git=None)

    def tell(self, launch: Launch, *history: events.Event) -> None:
        """Append events of the launch."""
        for event in history:
            record_launch_event(launch.paths, event)

    def say(self, verb: str, *words: str, terminal: bool = False, answer: Callable[[], str] = str) -> Said:
        """Run a verb; its errors are raised. `answer` is what a person types when asked."""
        out, err = Terminal() if terminal else io.StringIO(), io.StringIO()
        context = Context(
            environ=dict(self.environ),
            cwd=self.folder,
            stdout=out,
            stderr=err,
            now=lambda: NOW,
            sleep=self.sleeps.append,
            answer=answer,
        )
        given = build_verb_parser(verb).parse_intermixed_args([*words, "--output-dir", str(self.folder)])
        try:
            code = import_verb_module(verb).run(given, context)
        except HpckitError as error:
            _answered((verb, *words), error.exit_code, out, err)
            raise
        return _answered((verb, *words), code, out, err)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Writes what supervisor and ranks of one attempt would."""

    launch: Launch
    index: int = 0
    attempt: int = 1

    def start(
        self,
        *,
        job: str | None = None,
        restarts: int = 0,
        process: tuple[str, int, str] = ("elsewhere", 1, "1"),
    ) -> None:
        """Begin the attempt with one round of two ranks."""
        host, pid, started = process
        make_private_folder(self._paths.folder)
        self._append(
            events.AttemptStarted(
                at=START + timedelta(minutes=self.attempt),
                attempt=self.attempt,
                job=job,
                restart_count=restarts,
                host=host,
                pid=pid,
                started=started,
            )
        )
        self.round(0)

    def round(self, number: int) -> None:
        """Begin a round."""
        make_private_folder(self._paths.round(number).folder)
        at = START + timedelta(minutes=self.attempt, seconds=1)
        self._append(events.RoundStarted(at=at, round=number, world_size=2, nodes=("n1", "n2")))

    def log(self, rank: int, text: str, *, round_number: int = 0) -> None:
        """Write a rank's log."""
        path = self._paths.round(round_number).rank_log(rank)
        make_private_folder(path.parent)
        write_text_atomically(path, text)

    def agents_log(self, text: str) -> None:
        """Write the agents' log."""
        write_text_atomically(self._paths.agents_log, text)

    def metrics(self, step: int, **values: float) -> None:
        """Log metrics at a step, which becomes the latest."""
        append_json_lines(self._paths.metrics, {"step": step, "at": START.isoformat(), **values})
        write_json(self._paths.progress, {"round": 0, "step": step, "at": START.isoformat()})

    def tell(self, *history: events.Event) -> None:
        """Append events."""
        for event in history:
            self._append(event)

    def complete(self) -> None:
        """End well after two minutes."""
        self._end(RunState.completed, 0, None)

    def fail(self, *, rank: int = 1, traceback: str = "") -> None:
        """End with an exception of a rank."""
        failure = Failure(
            cause=Cause.exception,
            message="ValueError: boom",
            rank=rank,
            node="n2",
            step=7,
            traceback=traceback or None,
        )
        self._end(RunState.failed, 1, failure)

    def interrupt(self) -> None:
        """End on a notice."""
        failure = Failure(cause=Cause.notice, message="asked to stop by SIGTERM")
        self._end(RunState.interrupted, 143, failure)

    def _end(self, state: RunState, code: int, failure: Failure | None) -> None:
        at = START + timedelta(minutes=self.attempt + 2)
        self._append(events.AttemptEnded(at=at, state=state, exit_code=code, failure=failure))

    @property
    def _paths(self) -> AttemptPaths:
        return self.launch.paths.run(self.index).attempt(self.attempt)

    def _append(self, event: events.Event) -> None:
        append_event(self._paths.events, event)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return an empty folder of launches."""
    folder = tmp_path / "outputs"
    folder.mkdir()
    return Desk(folder=folder)


@pytest.fixture
def on_slurm(desk: Desk, fake_slurm: Any) -> Desk:
    """Return the desk with a fake Slurm in its environment."""
    desk.environ = fake_slurm.environ
    return desk


@pytest.fixture
def writer() -> type[Writer]:
    """Return who writes attempts."""
    return Writer


FASTER = 20
"""How much faster than the real one a shell's clock runs, so that waiting for Slurm is short."""


@dataclass(slots=True, kw_only=True)
class Shell:
    """A person's shell: the whole command line, with a clock and a token that tests choose."""

    cwd: Path
    environ: dict[str, str]
    tokens: Callable[[], str]
    sleep: Callable[[float], None]
    faster: int = FASTER

    def __call__(self, *words: str, terminal: bool = False, answer: str = "") -> Said:
        """Run `hpckit WORDS`; `answer` is what the person says to a question."""
        out, err = Terminal() if terminal else io.StringIO(), io.StringIO()
        began = time.monotonic()
        context = Context(
            environ=self.environ,
            cwd=self.cwd,
            stdout=out,
            stderr=err,
            now=lambda: NOW + (time.monotonic() - began) * self.faster * timedelta(seconds=1),
            sleep=self.sleep,
            token=self.tokens,
            answer=lambda: answer,
        )
        return _answered(words, main(words, context), out, err)

    @property
    def outputs(self) -> list[Path]:
        """What lies in the folder of launches."""
        folder = self.cwd / "outputs"
        return sorted(folder.iterdir()) if folder.exists() else []

    def events(self, folder: Path) -> list[events.Event]:
        """Return the events of a launch folder."""
        return list(read_merged_events(LaunchPaths(folder)))


def shell_in(cwd: Path, environ: Mapping[str, str]) -> Shell:
    """Return a shell in a folder."""
    numbers = itertools.count()
    active = ("VIRTUAL_ENV", "CONDA_PREFIX")  # of the shell that started the tests
    return Shell(
        cwd=cwd,
        environ={name: value for name, value in environ.items() if name not in active},
        tokens=lambda: f"t{next(numbers)}",
        sleep=lambda seconds: time.sleep(seconds / FASTER),
    )


@pytest.fixture
def shell(tmp_path: Path, path_without_slurm: str) -> Shell:
    """Return a shell in an empty folder on a host without Slurm."""
    cwd = tmp_path / "project"
    cwd.mkdir()
    return shell_in(cwd, {**os.environ, "PATH": path_without_slurm})


@pytest.fixture
def slurm_shell(shell: Shell, fake_slurm: Any) -> Shell:
    """Return a shell in an empty folder on a host with the fake Slurm."""
    shell.environ = shell_in(shell.cwd, fake_slurm.environ).environ
    return shell


LOSE_SUPERVISOR = """\
f=$HPCKIT_PROJECT/n$HPCKIT_RUN_INDEX
echo x >> $f
[ $(wc -l < $f) -ge $1 ] && exit 0
pid='s/.*"attempt_started".*"pid":\\([0-9]*\\).*/\\1/p'
kill -9 $(sed -n "$pid" $HPCKIT_ATTEMPT_DIR/events.jsonl)
sleep 60
"""


@pytest.fixture
def lose_supervisor(shell: Shell) -> Callable[[], str]:
    """Return an override: the run kills its supervisor in its first `params.i - 1` attempts."""

    def command() -> str:
        script = shell.cwd / "lose.sh"
        script.write_text(LOSE_SUPERVISOR)
        return f"command=[sh,{script},'${{params.i}}']"

    return command
