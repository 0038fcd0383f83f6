"""Applications of Hydra as people have them, under `hydra/launcher=hpckit_local`, on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from waiting import run_to_end, until

import hpckit
from hpckit.model.states import RunState

APPLICATION = """\
import os, time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import helper


class Colour(Enum):
    red = 1
    blue = 2


@dataclass
class Settings:
    lr: float = 0.1
    width: int = 4
    twice: int = "${double:${.width}}"
    colour: Colour = Colour.red
    at: str = "${now:%H-%M-%S-%f}"
    rank: int = "${oc.env:RANK,-1}"
    key: str = "${oc.env:MY_API_KEY}"
    mended: str = "${hydra:runtime.cwd}/mended"


ConfigStore.instance().store(name="config", node=Settings)
OmegaConf.register_new_resolver("double", lambda value: 2 * value)


@hydra.main(config_path=None, config_name="config", version_base="1.3")
def main(config):
    settings = OmegaConf.to_object(config)
    assert type(settings) is Settings and settings.colour is Colour.blue, settings
    hydra_config = HydraConfig.get()
    line = {"version": helper.VERSION, "cwd": os.getcwd(), "rank": settings.rank, "at": settings.at}
    line |= {"twice": settings.twice, "num": hydra_config.job.num, "id": hydra_config.job.id}
    line |= {"thread": os.environ["FROM_ENV_SET"], "file": __file__, "key": settings.key}
    Path(f"line-{settings.rank}.txt").write_text(repr(line))
    if settings.lr == 0.2 and not Path(settings.mended).exists():
        raise ValueError(f"too bad: {settings.lr}")
    return 10 * settings.lr


if __name__ == "__main__":
    main()
"""
WORDS = ("colour=blue", "hydra.job.chdir=true", "+hydra.job.env_set.FROM_ENV_SET=yes")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an application that knows nothing of hpckit, and a module of its own."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "app.py").write_text(APPLICATION)
    (folder / "helper.py").write_text("VERSION = 1\n")
    return folder


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a variable that no file holds, so that resuming needs it, too."""
    monkeypatch.setenv("MY_API_KEY", "0123456789abcdef")


def start(project: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the application to its end."""
    return run_to_end([sys.executable, *words], cwd=project, env={**os.environ, **environ})


def lines(folder: Path) -> Iterator[dict[str, object]]:
    """Yield what the ranks of a job wrote into its folder."""
    for file in sorted(folder.glob("line-*.txt")):
        yield eval(file.read_text())  # noqa: S307


def test_sweep_goes_on_beside_a_failing_job_and_resume_starts_that_one_as_it_was(project: Path) -> None:
    """The application's exit code and message tell of it; code and configuration are those of the launch.

    `rerun` takes the code of today.
    """
    swept = (*WORDS, "lr=0.1,0.2,0.3", "hydra.sweep.dir=multirun/a", "hydra.launcher.wait=true")
    done = start(project, "app.py", "-m", "hydra/launcher=hpckit_local", *swept)
    assert done.returncode == 1, done.stderr
    assert "RunFailedError: run app-" in done.stderr
    assert "exception: ValueError: too bad: 0.2\non the node:\nTraceback" in done.stderr
    assert "--failed` starts what failed with today's code" in done.stderr
    sweep = project / "multirun" / "a"
    ((of, folder),) = (
        (one["id"], Path(one["folder"]))
        for one in json.loads((sweep / "hpckit.json").read_text())["launches"]
    )
    assert f"submitted {of}: hpckit status {of}" in done.stdout
    launch = hpckit.open(folder)
    assert [run.state for run in launch.runs] == [RunState.completed, RunState.failed, RunState.completed]
    results = launch.results()
    assert [(row["lr"], row["return_value"]) for row in results.to_dicts()] == [
        (0.1, 1.0),
        (0.2, None),
        (0.3, 3.0),
    ]
    (first,) = lines(sweep / "0")
    assert first | {"at": "", "file": ""} == {
        "version": 1,
        "cwd": str(sweep / "0"),
        "rank": 0,
        "at": "",
        "twice": 8,
        "num": 0,
        "id": f"{of}.0",
        "thread": "yes",
        "file": "",
        "key": "0123456789abcdef",
    }
    assert Path(str(first["file"])).is_relative_to(folder / "code")
    written = yaml.safe_load((sweep / "0" / ".hydra" / "config.yaml").read_text())
    assert (written["at"], written["key"]) == (first["at"], "${oc.env:MY_API_KEY}")
    assert (sweep / "0" / "app.log").is_file()

    (failed,) = lines(sweep / "1")
    (project / "helper.py").write_text("VERSION = 2\n")
    (project / "mended").touch()
    launch.resume().wait(100)
    assert [run.state for run in launch.runs] == [RunState.completed] * 3
    (again,) = lines(sweep / "1")
    assert (again["version"], again["at"]) == (1, failed["at"])
    assert [run.row.attempt for run in launch.runs] == [1, 2, 1]
    rerun = start(project, "-m", "hpckit", "rerun", launch[1].id, "--wait")
    assert rerun.returncode == 0, rerun.stdout + rerun.stderr
    (mended,) = lines(sweep / "1")
    assert (mended["version"], mended["at"]) == (2, failed["at"])
    (project / "helper.py").write_text("VERSION = 1\n")


ENDING = """
import os, sys
import hydra

@hydra.main(config_path=None, version_base="1.3")
def main(config):
    print(repr(config.end))
    {"$": sys.exit, "o": os._exit}[config.end[0]](0)

main()
"""


def test_job_that_only_ends_its_process_has_failed_and_one_that_exits_has_not(tmp_path: Path) -> None:
    """Exit code 0 counts if the function came to an end of Python's; its text stands in JSON as it got it."""
    (tmp_path / "app.py").write_text(ENDING)
    words = ("app.py", "-m", "hydra/launcher=hpckit_local", "hydra.launcher.wait=true", "hydra.sweep.dir=s")
    done = start(tmp_path, *words, r'+end="\${x}",os,"$a\b"')
    assert "rank 0 ended with exit code 0 before it had finished" in done.stderr, done.stderr
    launch = hpckit.open(json.loads((tmp_path / "s" / "hpckit.json").read_text())["launches"][0]["folder"])
    assert [run.state.value for run in launch.runs] == ["completed", "failed", "completed"]
    assert [row["end"] for row in launch.results().to_dicts()] == ["${x}", "os", r"$a\b"]


def test_ranks_enter_the_module_and_a_sweep_that_does_not_wait_returns_at_once(project: Path) -> None:
    """Each rank has torchrun's variables; only rank 0 writes `.hydra`, and each a log of its own name.

    The cluster is a file of the user's; what is refused leaves nothing, and names the launcher's key.
    """
    (project / "conf" / "cluster").mkdir(parents=True)
    (project / "conf" / "cluster" / "here.yaml").write_text("kind: local\n")
    words = ("hydra/launcher=hpckit", "hydra.launcher.cluster=here", "hydra.launcher.recovery=never")
    swept = (*WORDS, "lr=0.5", "hydra.sweep.dir=multirun/b", "hydra.launcher.tasks_per_node=2")
    refused = start(project, "-m", "app", "-m", *words, *swept, "hydra.launcher.tasks_per_node=two")
    assert refused.returncode == 1
    assert "hydra.launcher.tasks_per_node takes a whole number" in refused.stderr
    assert list((project / "multirun" / "b" / ".hpckit").iterdir()) == []
    done = start(project, "-m", "app", "-m", *words, *swept)
    assert done.returncode == 0, done.stderr
    sweep = project / "multirun" / "b"
    launch = hpckit.open(json.loads((sweep / "hpckit.json").read_text())["launches"][0]["folder"])
    assert launch.wait(100)
    assert [line["rank"] for line in lines(sweep / "0")] == [0, 1]
    names = {path.name for path in (sweep / "0").iterdir()}
    assert names == {".hydra", "app.log", "app.1.log", "line-0.txt", "line-1.txt"}
    assert launch[0].metrics == {"return_value": 5.0}


PROGRAM = """\
import atexit, os, sys, time

import hydra

import helper

FAST = "--fast" in sys.argv
sys.argv = [word for word in sys.argv if word != "--fast"]


@hydra.main(config_path=None, version_base="1.3")
def first(config):
    print("first")


class Main:
    def __call__(self, config):
        while not os.path.exists("go"):
            time.sleep(0.05)
        atexit.register(lambda: print("at exit:", sys.modules["__main__"].FAST, helper.__file__))


main = hydra.main(config_path=None, version_base="1.3")(Main())
if __name__ == "__main__":
    if "RANK" in os.environ:
        first()
    main()
    raise SystemExit("only after the whole sweep")
"""


def test_program_is_entered_as_it_was_started_and_an_interrupt_leaves_its_runs_alive(
    project: Path, tmp_path: Path
) -> None:
    """A run gets its words and its frozen code, wherever it was started; its function alone decides its end.

    Another function that Hydra decorates is not called. A rerun with another value fails: its record
    would have a value that the job did not have.
    """
    (project / "wait.py").write_text(PROGRAM)
    words = ("hydra/launcher=hpckit_local", "hydra.sweeper.max_batch_size=1", "hydra.sweep.dir=multirun/c")
    script = os.path.relpath(project / "wait.py", tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-u", script, "--fast", "-m", *words, "+x=1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    record = tmp_path / "multirun" / "c" / "hpckit.json"
    until(record.is_file)
    launch = hpckit.open(json.loads(record.read_text())["launches"][0]["folder"])
    until(lambda: launch[0].state is RunState.running)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert f"stopped waiting for {launch.id}; its runs continue" in told
    assert "Traceback" not in told
    (tmp_path / "go").touch()
    assert launch.wait(100)
    printed = launch[0].read_log()
    assert f"at exit: True {launch.folder}" in printed
    assert "first" not in printed
    again = start(tmp_path, "-m", "hpckit", "rerun", launch[0].id, "x=2", "--wait")
    assert again.returncode == 1, again.stderr
    assert "x=2 does not reach a job of a sweep, which was frozen with x=1" in again.stdout


def test_sweepers_that_need_values_wait_and_refuse_not_to(project: Path, tmp_path: Path) -> None:
    """They choose values by what earlier jobs returned; `hydra.sweep.dir` is made for them.

    A module that is not frozen is named.
    """
    folder = project / "hydra_plugins" / "counting"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "sweeper.py").write_text(
        "from hydra.core.config_store import ConfigStore\n"
        "from hydra.core.plugins import Plugins\n"
        "from hydra.plugins.sweeper import Sweeper\n"
        "class Counting(Sweeper):\n"
        "    def setup(self, *, hydra_context, task_function, config):\n"
        "        self.launcher = Plugins.instance().instantiate_launcher(\n"
        "            hydra_context=hydra_context, task_function=task_function, config=config)\n"
        "    def sweep(self, arguments):\n"
        "        lr = 1.0\n"
        "        for number in range(2):\n"
        "            (done,) = self.launcher.launch([[*arguments, f'+lr={lr}']], initial_job_idx=number)\n"
        "            lr = done.return_value\n"
        "        print('found', lr)\n"
        "ConfigStore.instance().store(group='hydra/sweeper', name='counting',\n"
        "    node={'_target_': 'hydra_plugins.counting.sweeper.Counting'})\n"
    )
    (tmp_path / "elsewhere.py").touch()
    (project / "values.py").write_text(
        f"import hydra, sys\nsys.path.append({str(tmp_path)!r})\nimport elsewhere\n"
        "@hydra.main(config_path=None, version_base='1.3')\n"
        "def main(config):\n    return config.lr / 4\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    words = ("values.py", "-m", "hydra/launcher=hpckit_local", "hydra/sweeper=counting")
    done = start(project, *words, "hydra.sweep.dir=multirun/new/d", PYTHONPATH=str(project))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("found 0.0625\n")
    assert f"or lack it: elsewhere ({tmp_path / 'elsewhere.py'})\n" in done.stdout
    record = json.loads((project / "multirun" / "new" / "d" / "hpckit.json").read_text())
    assert [one["jobs"] for one in record["launches"]] == [[0], [1]]
    refused = start(project, *words, "hydra.launcher.wait=false", PYTHONPATH=str(project))
    assert refused.returncode == 1
    assert (
        "hydra.launcher.wait=false: Counting chooses values by what earlier jobs returned" in refused.stderr
    )
    assert "sweep.sampler=optuna" in refused.stderr
    assert "Traceback" not in refused.stderr
