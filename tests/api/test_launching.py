"""The Python door, on real runs of plain commands on this machine."""

from __future__ import annotations

import logging
import pickle
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import hpckit
from hpckit.api.display import format_html_table
from hpckit.api.launching import make_plain_command, make_plain_mapping
from hpckit.errors import NotFoundError, RunFailedError, UsageError
from hpckit.model.states import RunState

SECRET = "s3cr3t-value"  # noqa: S105
PROGRAM = """\
import json, os, sys
lr = float(sys.argv[1])
folder = os.environ["HPCKIT_ATTEMPT_DIR"]
with open(f"{folder}/metrics.jsonl", "a") as file:
    for step in range(3):
        file.write(json.dumps({"step": step, "loss": lr * step}) + chr(10))
print("lr is", lr)
if lr > 0.5:
    raise ValueError(f"too large: {lr}")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with a program whose second run fails."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(PROGRAM)
    return folder


def launch_here(
    project: Path, name: str, command: Sequence[str], words: Mapping[str, Any] | None = None, **more: Any
) -> hpckit.Launch:
    """Launch a command on this machine, its launch among those of the project."""
    settings = {"name": name, "output_dir": project / "outputs", **(words or {})}
    return hpckit.launch(settings, command=command, cluster="local", cwd=project, **more)


def run_python(code: str) -> list[str]:
    """Return the command that runs this code."""
    return [sys.executable, "-c", code]


TRAIN = (sys.executable, "train.py", "${params.lr}")


def start(project: Path) -> hpckit.Launch:
    """Launch the three points."""
    points = [{"params.lr": 0.1}, {"params.lr": 0.9}, {"params.lr": 0.2}]
    return launch_here(project, "api", TRAIN, points=points)


@pytest.fixture(scope="module")
def launch(project: Path) -> hpckit.Launch:
    """Return a launch of three runs that has ended."""
    started = start(project)
    started.wait(120)
    return started


def test_points_become_runs_whose_ends_and_metrics_a_program_reads(launch: hpckit.Launch) -> None:
    """The order is that of the points; a run that failed says why, where, and with which traceback."""
    assert [run.state for run in launch.runs] == [RunState.completed, RunState.failed, RunState.completed]
    assert launch.wait(5) is False
    results = launch.results()
    assert [row.metrics for row in results.rows] == [{"loss": 0.2}, {"loss": 1.8}, {"loss": 0.4}]
    assert [row["params.lr"] for row in results.to_dicts()] == [0.1, 0.9, 0.2]
    assert [row.overrides["params.lr"] for row in results.rows] == [0.1, 0.9, 0.2]
    assert [point.value for point in launch[0].history("loss")] == [0.0, 0.1, 0.2]
    assert launch.logs()[launch[2].id] == "lr is 0.2\n"
    assert launch[2].result().metrics == {"loss": 0.4}
    with pytest.raises(RunFailedError, match=r"api-.*\.1 failed .*ValueError: too large: 0.9") as raised:
        launch[1].result()
    assert raised.value.cause == "exception"
    assert 'raise ValueError(f"too large: {lr}")' in raised.value.__notes__[0]


def test_same_launch_again_has_the_known_runs_and_starts_no_other(
    launch: hpckit.Launch, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What completed is found under the earlier launch; what failed runs once more."""
    caplog.set_level(logging.INFO, "hpckit")
    (project / "analysis.ipynb").write_text("{}")
    launch.results().to_pandas().to_csv(project / "table.csv")
    launch.history().to_pandas().to_csv(project / "curves.csv", index=False)
    again = start(project)
    assert "2 runs skipped: already completed" in caplog.text, "a notebook or a saved table was code"
    assert [run.folder == launch.folder for run in again] == [True, False, True]
    assert again.wait(60) is False
    assert [row.metrics for row in again.results().rows] == [{"loss": 0.2}, {"loss": 1.8}, {"loss": 0.4}]
    assert len(hpckit.ls(output_dir=project / "outputs")) == 2


@pytest.mark.usefixtures("launch")
def test_changed_code_is_refused_with_the_parameter_that_allows_it(project: Path) -> None:
    """Nothing asks a question, and nothing is written."""
    (project / "train.py").write_text(f"{PROGRAM}# changed\n")
    before = len(hpckit.ls(output_dir=project / "outputs"))
    with pytest.raises(UsageError, match="2 completed runs would run again") as raised:
        start(project)
    assert "changed_code=True" in raised.value.hint
    assert len(hpckit.ls(output_dir=project / "outputs")) == before
    (project / "train.py").write_text(PROGRAM)


def test_any_process_opens_a_launch_or_a_run(launch: hpckit.Launch, project: Path) -> None:
    """By id, by its beginning, and by folder; the nearest names where there is none."""
    outputs = project / "outputs"
    program = (
        f"import hpckit; found = hpckit.open({launch.id!r} + '.1', output_dir={str(outputs)!r}); "
        "print(type(found).__name__, found.state, found.overrides[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "LaunchedRun failed params.lr=0.9\n", done.stderr
    assert hpckit.open(launch.folder).id == launch.id
    with pytest.raises(NotFoundError, match="no launch or run matching 'apj'"):
        hpckit.open("apj", output_dir=outputs)


def test_notebooks_show_results_with_curves_and_nothing_of_a_run_is_markup(launch: hpckit.Launch) -> None:
    """Static HTML, without scripts; a REPL sees the table."""
    assert repr(launch.results()).count("completed") == 2
    page = launch._repr_html_()
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert "<b>" not in format_html_table(["<b>"], [["<b>bold</b>"]])


def test_report_is_written_and_other_files_are_left_alone(launch: hpckit.Launch, tmp_path: Path) -> None:
    """As `hpckit report -o`."""
    assert launch.report(tmp_path / "r.html").read_text().count(launch.id) > 1
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(UsageError, match=r"mine\.html"):
        launch.report(tmp_path / "mine.html")


@pytest.mark.usefixtures("launch")
def test_hydra_of_the_caller_is_as_it_was(project: Path, tmp_path: Path) -> None:
    """Also its job name, its version, and the folders that it searches."""
    (tmp_path / "mine.yaml").write_text("lr: 3\njob: ${hydra:job.name}\n")
    OmegaConf.register_new_resolver("now", lambda _: "mine", replace=True)
    ConfigStore.instance().store("config", {"name": "theirs", "seed": "text"})
    with initialize_config_dir(config_dir=str(tmp_path), job_name="mine", version_base="1.3"):
        OmegaConf.register_new_resolver("now", lambda _: "mine", replace=True)
        HydraConfig.instance().set_config(compose("mine", return_hydra_config=True))
        before = GlobalHydra.instance().hydra
        assert start(project).id.startswith("api-")
        assert ConfigStore.instance().load("config.yaml").node.name == "theirs"
        assert OmegaConf.create({"x": "${now:%Y}"}).x == "mine"
        assert GlobalHydra.instance().hydra is before
        again = compose("mine", return_hydra_config=True)
        assert (again.lr, again.hydra.job.name) == (3, "mine")
        assert {
            source.provider for source in GlobalHydra.instance().config_loader().get_sources()
        }.isdisjoint({"hpckit"})
    assert not GlobalHydra.instance().is_initialized()
    del ConfigStore.instance().repo["config.yaml"]


def test_threads_launch_and_wait_side_by_side(project: Path) -> None:
    """Each gets its own launch."""
    found: dict[int, hpckit.Launch] = {}

    def one(number: int) -> None:
        command = run_python("print(${params.n})")
        found[number] = launch_here(project, f"thread{number}", command, {"params.n": number})
        found[number].wait(60)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number][0].read_log() for number in range(2)] == ["0\n", "1\n"]


def test_waiting_ends_in_time_cancelled_runs_resume(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`wait` raises TimeoutError and leaves the run alone; `cancel` and `resume` do as the verbs."""
    code = f"import os, time; time.sleep(0 if os.path.exists({str(tmp_path / 'go')!r}) else 60)"
    launch = launch_here(project, "slow", run_python(code))
    with pytest.raises(TimeoutError, match="its runs continue"):
        launch.wait(0.5)
    assert str(launch[0].state) in ("pending", "running")
    launch.cancel()
    assert launch.wait(60) is False
    assert launch[0].state is RunState.cancelled
    (tmp_path / "go").touch()
    assert launch[0].resume().wait(60)
    launch.resume()
    assert f"nothing to resume in {launch.id}: {launch[0].id}: completed" in caplog.text


RING: dict[str, Any] = {}
RING["ring"] = RING


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (({"params.x": RING},), "a word contains itself"),
        (("nonsense",), "nonsense"),
        ((3,), "hpckit.launch got 3"),
        (({"params.x": object()},), "of type object, which no configuration can hold"),
        (({"params.x": b"abc"},), "of type bytes"),
        (({"params.x": {"a", "b"}},), "of type set"),
        (({1: 2},), "has the key 1; keys are texts"),
    ],
)
def test_bad_words_are_one_clear_error(words: tuple[object, ...], told: str, tmp_path: Path) -> None:
    """And nothing is written."""
    with pytest.raises(UsageError, match=told):
        hpckit.launch(*words, command=["true"], cluster="local", cwd=tmp_path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_errors_show_their_hint_and_no_secret(tmp_path: Path) -> None:
    """In a traceback, which is all that a program's user sees; causes inside Hydra are not shown."""
    with pytest.raises(UsageError) as raised:
        hpckit.launch({"env.API_TOKEN": SECRET}, "nonsense", command=["true"], cwd=tmp_path)
    shown = "".join(traceback.format_exception(raised.value))
    assert raised.value.hint in shown
    assert SECRET not in shown
    assert "direct cause" not in shown


def test_runs_that_another_process_resumes_are_waited_for_again(project: Path, tmp_path: Path) -> None:
    """A handle that has seen their end does not take it for final."""
    flag = tmp_path / "mended"
    command = run_python(f"import os, sys; sys.exit(not os.path.exists({str(flag)!r}))")
    launch = launch_here(project, "mended", command, {"recovery": "never"})
    assert not launch.wait(60)
    flag.touch()
    hpckit.open(launch.folder).resume()
    assert launch.wait(60)


@pytest.mark.parametrize(
    ("points", "told"),
    [
        ([], "points is empty"),
        ("lr=0.1", "points is 'lr=0.1'"),
        ([{"params.lr": 0.1}, "lr=1"], r"points\[1\] is 'lr=1'"),
        (pd.DataFrame({"params.lr": [1]}), "points is a data frame"),
        ([{"params.lr": 10**5000}], "more than 4000 digits"),
        ([{"params.lr": 0.1}, {"nonsense": 1}], r"^points\[1\]: .*nonsense"),
    ],
)
def test_bad_points_are_one_clear_error(points: Any, told: str, tmp_path: Path) -> None:
    """Whatever stands in place of a list of mappings."""
    with pytest.raises(UsageError, match=told):
        hpckit.launch(points=points, command=["true"], cluster="local", cwd=tmp_path)


def test_values_reach_a_configuration_as_what_they_are() -> None:
    """Of numpy, paths, enumerations by their value; what contains itself does not."""

    class Kind(int, Enum):
        adam = 2

    given = {
        "a": np.int64(3),
        "b": np.bool_(1),
        "c": np.arange(2),
        "d": Path("/x"),
        "e": Kind.adam,
        "f": (1, None),
    }
    plain = make_plain_mapping(given, "a word")
    assert plain == {"a": 3, "b": True, "c": [0, 1], "d": "/x", "e": 2, "f": [1, None]}
    assert [type(value) for value in plain.values()] == [int, bool, list, str, int, list]
    ring: dict[str, Any] = {}
    ring["ring"] = ring
    with pytest.raises(UsageError, match="contains itself"):
        make_plain_mapping(ring, "a word")
    assert make_plain_command([Path("/bin/sleep"), 0]) == ("/bin/sleep", "0")  # type: ignore[list-item]
    with pytest.raises(UsageError, match="command is the one text 'sleep 1'"):
        make_plain_command("sleep 1")


def test_each_point_has_its_row_also_where_two_are_the_same_known_run(
    launch: hpckit.Launch, project: Path
) -> None:
    """So points and rows can be read side by side."""
    points = [{"params.lr": rate} for rate in (0.2, 0.1, 0.2)]
    twice = launch_here(project, "api", TRAIN, points=points)
    assert [row.metrics["loss"] for row in twice.results()] == [0.4, 0.2, 0.4]
    assert twice[0] == twice[2] == launch[2]
    assert len(twice.history()) == 6
    assert twice.wait(1)
    copy = pickle.loads(pickle.dumps(twice))  # noqa: S301
    assert (copy, hash(copy)) == (twice, hash(twice))
    assert copy[1:][0].state is RunState.completed


def test_threads_that_wait_while_another_resumes_hear_the_true_end(launch: hpckit.Launch) -> None:
    """A resume that finds nothing to do does not turn completed runs into others."""
    done, heard = threading.Event(), list[bool]()

    def resume() -> None:
        while not done.is_set():
            launch[::2].resume()

    def wait() -> None:
        for _ in range(100):
            heard.append(launch[0].wait(60))

    threads = [threading.Thread(target=wait) for _ in range(2)]
    other = threading.Thread(target=resume)
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    other.join()
    assert heard == [True] * 200


def test_removed_launch_is_an_error_not_an_endless_wait(project: Path) -> None:
    """Also for a handle that has seen the end before."""
    launch = launch_here(project, "removed", ["true"])
    assert launch.wait(60)
    shutil.rmtree(launch.folder)
    with pytest.raises(NotFoundError):
        launch.wait(60)
    assert "removed-" in repr(launch)


def test_times_that_a_program_garbled_hide_no_other_value(project: Path) -> None:
    """Its metrics are lines of a file, which anything can stand in."""
    lines = '{"step": 0, "loss": 1, "at": "garbage"}\n{"step": 1, "loss": 2, "at": "2026-01-01T00:00:00"}\n'
    code = f"import os; open(os.environ['HPCKIT_ATTEMPT_DIR'] + '/metrics.jsonl', 'w').write({lines!r})"
    launch = launch_here(project, "garbled", run_python(code))
    launch.wait(60)
    assert [point.at for point in launch.history("loss")] == [None, datetime(2026, 1, 1, tzinfo=UTC)]
    assert "<svg" in launch._repr_html_()


def test_child_process_launches_although_a_thread_composed_at_the_fork(tmp_path: Path) -> None:
    """A lock that another thread held at the fork is no lock of the child."""
    program = f"""
import os, threading, hpckit
from hpckit.config import session
from hpckit.errors import UsageError
held, go = threading.Event(), threading.Event()
def hold():
    with session._HYDRA_LOCK:
        held.set(); go.wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    hpckit.launch(command=["true"], cluster="local", cwd={str(tmp_path)!r})
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n", done.stderr


CALLER = """
import gc, os, sys, threading, time
import hpckit

os.environ["MINE"] = "1"
before, stderr, frozen = dict(os.environ), sys.stderr, gc.get_freeze_count()
seen, over = set(), threading.Event()

def look():
    while not over.is_set():
        now = dict(os.environ)
        seen.update(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        seen.update([] if sys.stderr is stderr else ["stderr"])
        time.sleep(0.001)

def launch(number):
    hpckit.launch({"name": f"n{number}"}, command=["true"], cluster="slurm", check=False)

threads = [threading.Thread(target=launch, args=(number,)) for number in range(4)]
other = threading.Thread(target=look)
for thread in (other, *threads):
    thread.start()
for thread in threads:
    thread.join()
over.set()
other.join()
print(sorted(seen), os.environ == before, sys.stderr is stderr, gc.get_freeze_count() - frozen)
"""


def test_program_that_launches_keeps_its_environment_streams_and_garbage(
    fake_slurm: Any, tmp_path: Path
) -> None:
    """Also for its other threads, and while several launch at once."""
    environ = fake_slurm.environ | {"SLURM_JOB_ID": "7", "SBATCH_TIMELIMIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CALLER],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "[] True True 0\n", (done.stdout, done.stderr)
