"""`scripts/gpu-check`: what is wrong fails, each item is bounded, and what is missing is named."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from gpu_check.command import Check, conclude, end_all_of, judged, main, run_bounded
from gpu_check.items import ITEMS
from gpu_check.measuring.energy import PowerLog
from gpu_check.needs import NEEDED, needs_text, problems
from gpu_check.recording import RecordingNvml, ReplayedNvml
from gpu_check.result import PAGE_FILE, Result, State, exit_code, page, write
from gpu_check.scene import Machine, Scene
from gpu_check_answers import right_answers
from waiting import run_to_end

from hpckit.model.telemetry.vocabulary import GpuCounter, GpuGauge, GpuSample
from hpckit.observe.gpu_choice import GpuChoice
from hpckit.observe.nvml.backend import NvmlBackend
from hpckit.testing.nvml.fake_nvml import STATE_VARIABLE, FakeNvml

ROOT = Path(__file__).parents[2]
COMMAND = ROOT / "scripts" / "gpu-check"
RECORDED = sorted((ROOT / "tests" / "data" / "nvml").glob("*.json"))
GIB = 2**30

WRONG: list[tuple[str, tuple[Any, ...], Any, str]] = [
    ("nvml", ("devices",), [], "GPUs that NVML shows is 0"),
    ("nvml", ("devices", 0, "name"), "NVIDIA A100", "name is 'NVIDIA A100'"),
    ("nvml", ("devices", 0, "memory_bytes"), 40 * GIB, "memory_bytes is"),
    ("nvml", ("loaded", "gauges", "busy_share"), 0.1, "loaded busy_share is 0.1"),
    ("nvml", ("loaded", "gauges", "power_w"), None, "loaded power_w was not measured"),
    ("nvml", ("loaded", "troubles"), ["lost"], "loaded troubles"),
    ("energy", ("load", "counter_j"), 5500.0, "load: energy counter is 5500"),
    ("energy", ("recorded", "total_j"), 7000.0, "hpckit's record is 7000"),
    ("energy", ("recorded", "total_j"), None, "hpckit's record was not measured"),
    ("energy", ("window_counter_j",), None, "what hpckit's record is compared with"),
    ("memory", ("rows", 0, "used_bytes"), 14 * GIB, "used GiB is 14"),
    ("memory", ("rows", 0, "used_bytes"), None, "used GiB was not measured"),
    ("memory", ("rows", 0, "step_s"), 0.5, "step_s is 0.5"),
    ("memory", ("rows", 0, "failure"), "failed: cuda_oom", "cuda_oom"),
    ("memory", ("rows",), [], "trainings is 0"),
    ("charlm", ("used_bytes",), 2 * GIB, "used GiB is 2"),
    ("layouts", ("rows", "tensor, bf16", "loss"), 4.4, "tensor, bf16: loss is 4.4"),
    ("layouts", ("rows", "fsdp, bf16", "loss"), float("nan"), "fsdp, bf16: loss was not"),
    ("layouts", ("rows", "none, bf16", "first_loss"), 3.0, "none, bf16: loss falls"),
    ("layouts", ("rows", "fsdp, bf16, compiled", "graphs"), 0, "compiled graphs is 0"),
    ("layouts", ("rows", "fsdp, bf16", "failure"), "failed: exception", "exception"),
    ("preflight", ("fast", "nodes", 0, "verdict"), "crit", "fast: verdict is 'crit'"),
    ("preflight", ("medium", "inspections", 0, "took_s"), 90.0, "medium: took_s is 90"),
    ("preflight", ("medium", "inspections"), [], "medium: inspections is 0"),
    ("transfers", ("loaded", "link", "pcie_generation"), 1, "own generation under load is 1"),
    ("transfers", ("speed", "pcie", "pcie_width"), 8, "medium's lanes under load is 8"),
    ("transfers", ("speed", "to_device_bytes_s"), 2e10, "to_device_bytes_s is 2e+10"),
    ("transfers", ("speed", "repeats"), False, "the same product twice is False"),
    ("comm", ("healthy",), False, "healthy is False"),
    ("comm", ("operations", 0, "share"), 0.4, "host_to_device: share of the promise is 0.4"),
    ("profile", ("summary", "on_gpu"), False, "on_gpu is False"),
    ("profile", ("summary", "idle_s"), 0.4, "compute, exposed, copies and idle is"),
    ("profile", ("done",), False, "done is False"),
    ("oom", ("cause",), "exception", "cause is 'exception'"),
    ("oom", ("snapshot",), None, "bytes of the snapshot's segments was not measured"),
    ("oom", ("figures", "reserved_bytes"), GIB, "reserved_bytes is"),
    ("recorder", ("ways", "nccl", "message"), "nothing is known", "nccl: rank 1 is named: no"),
    ("recorder", ("ways", "gloo", "cause"), "signal", "gloo: cause is 'signal'"),
    ("recorder", ("ways", "nccl timeout", "dump_bytes"), None, "bytes of the dump was not"),
    ("recorder", ("ways", "nccl alone", "collectives"), None, "nccl alone: rank 0 tells its"),
]


def put(measured: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set a value deep inside."""
    for key in path[:-1]:
        measured = measured[key]
    measured[path[-1]] = value


@pytest.mark.parametrize("name", ITEMS)
def test_judgement_passes_what_a_healthy_gpu_answers(name: str) -> None:
    """Values as they should be pass, and the exit code is 0."""
    result = judged(ITEMS[name], right_answers()[name], 1.0)
    assert (result.state, result.reason, exit_code([result])) == (State.passed, "", 0)
    assert "FAILED" not in page({}, [result])


@pytest.mark.parametrize(("name", "path", "value", "words"), WRONG)
def test_judgement_fails_a_wrong_answer(name: str, path: tuple[Any, ...], value: Any, words: str) -> None:
    """One wrong value makes the item FAILED on the page, with its name, and the exit code 1."""
    measured = right_answers()[name]
    put(measured, path, value)
    result = judged(ITEMS[name], measured, 1.0)
    assert words in result.reason
    assert f"FAILED   {name}" in page({}, [result])
    assert exit_code([result]) == 1


def test_wrong_answers_cover_every_item() -> None:
    """No item is without a wrong answer that is noticed."""
    assert {one[0] for one in WRONG} == set(ITEMS)


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize("measured", [{}, None])
def test_judgement_fails_what_was_not_measured(name: str, measured: Any) -> None:
    """An item that measured nothing never passes."""
    result = judged(ITEMS[name], measured, 1.0)
    assert result.state is State.failed
    assert result.reason


def test_recorder_says_that_nccl_refuses_two_ranks_on_a_gpu() -> None:
    """What NCCL refuses is left out with its reason, and the way by gloo still counts."""
    measured = right_answers()["recorder"]
    for name in ("nccl", "nccl timeout"):
        put(measured, ("ways", name), {"log": "Duplicate GPU detected : rank 0 and rank 1"})
    result = judged(ITEMS["recorder"], measured, 1.0)
    assert result.state is State.passed
    assert len(result.left_out) == 2
    assert "left out: nccl: NCCL refuses two ranks" in page({}, [result])


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return the scene of an item."""
    folder = tmp_path / "oom"
    folder.mkdir()
    machine = Machine(torch="2.13.0")
    file = folder / "machine.json"
    file.write_text(json.dumps({"torch": "2.13.0"}), encoding="utf-8")
    return Scene.of(folder, machine)


def test_item_that_this_machine_cannot_run_says_why(scene: Scene) -> None:
    """Without a GPU an item ends as not run, with the reason on the page, and fails nothing."""
    assert run_bounded(ITEMS["oom"], scene, 120)
    result = conclude(ITEMS["oom"], scene.folder, 1.0, None)
    assert (result.state, exit_code([result])) == (State.not_run, 2)
    assert "torch sees no GPU whose memory could run out" in page({}, [result])


def test_item_over_its_limit_is_ended_and_fails(scene: Scene) -> None:
    """An item that does not end within its limit is killed, and fails by name."""
    began = time.monotonic()
    assert not run_bounded(ITEMS["oom"], scene, 0.01)
    assert time.monotonic() - began < 30
    result = conclude(ITEMS["oom"], scene.folder, 1.0, 0.01)
    assert "did not end within 0.01 s" in result.reason
    assert result.state is State.failed


def test_item_leaves_no_process_on_the_gpu(scene: Scene) -> None:
    """What an item started is ended also if it left the session, and was stopped."""
    stopped = "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", stopped], env=dict(scene.environ), start_new_session=True
    )
    time.sleep(0.2)
    end_all_of(scene)
    assert process.wait(20) < 0


def test_item_whose_process_dies_fails(scene: Scene) -> None:
    """A process that leaves no end behind, as after a crash, is no pass."""
    scene.keep(right_answers()["oom"])
    result = conclude(ITEMS["oom"], scene.folder, 1.0, None)
    assert result.state is State.failed
    assert "its process died" in result.reason


def test_items_after_the_time_is_up_are_not_run(tmp_path: Path) -> None:
    """When the time of all is spent, the rest is named as not run."""
    check = Check(out=tmp_path, work=tmp_path, limit_s=5)
    result = check.run_one(ITEMS["comm"], Machine(torch="2.13.0"), 1.0)
    assert result.state is State.not_run
    assert "the time of all items, 5 s, was spent" in result.reason


def test_check_without_a_gpu_passes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items that a CPU can run say nothing of a GPU; a rehearsal has to be asked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["--out", str(tmp_path / "results"), "--items", "charlm"]) == 2
    assert "sees no GPU here; --rehearse" in capsys.readouterr().out
    assert not list((tmp_path / "results").iterdir())


def test_needs_names_what_is_missing_and_how_to_fetch_it() -> None:
    """Missing and old packages are named with the lines that fetch them, before anything runs."""

    def version(name: str) -> str:
        if name in {"hydra-core", "antlr4-python3-runtime"}:
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "submitit" else metadata.version(name)

    text = needs_text(problems(version), "3.12")
    assert "hydra-core>=1.3.2,<1.5: is missing" in text
    assert "submitit>=1.5.2,<2: 1.0 is installed" in text
    assert "pip download --no-deps --only-binary=:all: --python-version 3.12" in text
    assert "pip wheel --no-deps -w .whl 'antlr4-python3-runtime==4.9.*'" in text
    assert problems() == []


def test_needs_follow_the_dependencies_of_the_project() -> None:
    """Every dependency of hpckit stands among the needs, with its bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["train"]
    assert {*project["dependencies"], *extra} <= set(NEEDED)


@pytest.fixture(scope="module")
def _fake_library(tmp_path_factory: pytest.TempPathFactory) -> None:
    fake = FakeNvml(tmp_path_factory.mktemp("nvml"))
    fake.build()
    fake.load_here()


@pytest.fixture
def fake(_fake_library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Return one H100 at full load."""
    fake = FakeNvml(tmp_path)
    monkeypatch.setenv(STATE_VARIABLE, str(fake.file))
    fake.profile("h100")
    fake.load(0, {0: 0.9})
    return fake


@pytest.mark.parametrize(("wrong", "state"), [(False, State.passed), (True, State.failed)])
def test_energy_fails_if_the_counter_stands_still(fake: FakeNvml, *, wrong: bool, state: State) -> None:
    """NVML's counter is compared with power times time; one that stands still is FAILED."""
    if wrong:
        fake.change({"g0.field.83": 5_000_000})
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    log, done = PowerLog(), threading.Event()
    thread = threading.Thread(target=log.read, args=(nvml, nvml.nvmlDeviceGetHandleByIndex(0), done))
    thread.start()
    time.sleep(1.5)
    done.set()
    thread.join()
    nvml.nvmlShutdown()
    span = log.between(log.at[0], log.at[-1])
    result = judged(ITEMS["energy"], {**right_answers()["energy"], "whole": span}, 1.0)
    assert result.state is state, result.reason
    assert ("whole: energy counter is 0" in result.reason) is wrong


def sampled(nvml: Any) -> tuple[Any, GpuSample]:
    """Return the facts and the third sample of the only GPU, as hpckit reads them."""
    backend = NvmlBackend(nvml=nvml, gpm=True, choice=GpuChoice(whole_node=True))
    backend.open()
    for _ in range(3):
        found = backend.sample(counters=True)
        time.sleep(0.15)  # the shortest time over which NVML counts activity
    facts = backend.devices()[0]
    assert [event.message for event in backend.events()] == []
    backend.close()
    return facts, found[0]


def test_replayed_nvml_answers_as_the_recorded_one(fake: FakeNvml) -> None:
    """Hpckit reads from a record what it read from the library, without its UUID and address."""
    real = importlib.import_module("pynvml")
    recording = RecordingNvml(real)
    facts, sample = sampled(recording)
    text = json.dumps(recording.answers)
    assert fake.uuid(0) not in text
    replayed, again = sampled(ReplayedNvml(real, json.loads(text)))
    assert again.gauges == sample.gauges
    assert again.counters == sample.counters
    assert again.reasons == sample.reasons
    assert GpuGauge.sm_share in again.gauges
    assert (replayed.name, replayed.memory_bytes) == (facts.name, facts.memory_bytes)
    assert replayed.supported == facts.supported
    assert replayed.uuid != facts.uuid


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def record(request: pytest.FixtureRequest) -> dict[str, dict[str, list[Any]]]:
    """Return what a real GPU answered, by phase."""
    phases: dict[str, dict[str, list[Any]]]
    phases = json.loads(request.param.read_text(encoding="utf-8"))["phases"]
    return phases


def test_hpckit_reads_what_a_real_gpu_answered(record: dict[str, dict[str, list[Any]]]) -> None:
    """From a real GPU's record hpckit reads its facts, an idle and a loaded sample."""
    real = importlib.import_module("pynvml")
    seen = {}
    for phase in ("idle", "loaded"):
        answers = {**record["attached"], **record[phase]}
        facts, seen[phase] = sampled(ReplayedNvml(real, answers))
        assert facts.name
        assert facts.memory_bytes
        assert facts.driver
    # In 32 bits these would begin anew several times a second.
    assert not {GpuCounter.pcie_tx_bytes, GpuCounter.pcie_rx_bytes} & set(seen["idle"].counters)
    idle, loaded = (seen[phase].gauges for phase in ("idle", "loaded"))
    assert idle[GpuGauge.busy_share] < 0.2 < loaded[GpuGauge.busy_share] <= 1
    assert idle[GpuGauge.power_w] < loaded[GpuGauge.power_w]
    assert loaded[GpuGauge.power_w] < 1.1 * loaded[GpuGauge.power_limit_w]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        ({}, State.passed, "answers recorded"),
        ({"g0.return.nvmlDeviceGetPowerUsage": 3}, State.failed, "power_w is supported: no"),
        ({"driver.loaded": 0}, State.not_run, "NVML does not open"),
    ],
)
def test_whole_check_says_what_the_fake_gpu_is(
    tmp_path: Path, change: dict[str, Any], state: State, words: str
) -> None:
    """By one command NVML's answers are recorded and judged; the exit code and the page say how."""
    fake = FakeNvml(tmp_path)
    fake.build()
    fake.profile("h100")
    fake.load(0, {0: 0})
    fake.change(change)
    out = tmp_path / "out"
    done = run_to_end(
        [sys.executable, COMMAND, "--rehearse", "--out", out, "--items", "nvml"],
        env={**os.environ, **fake.environ},
        timeout=280,
    )
    written = json.loads((out / "gpu-check.json").read_text(encoding="utf-8"))
    assert [one["state"] for one in written["items"]] == [state.value], done.stdout
    assert done.returncode == {State.passed: 0, State.failed: 1, State.not_run: 2}[state]
    assert words in " ".join((out / PAGE_FILE).read_text(encoding="utf-8").split())
    if state is State.passed:
        assert fake.uuid(0) not in (out / "nvml.json").read_text(encoding="utf-8")


def test_what_is_left_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    """Logs have tracebacks; what is committed of them says nothing about who ran them."""
    own = Path(__file__).resolve().parents[2]
    log = f'File "{own}/scripts/gpu_check/x.py", File "{sys.prefix}/lib/torch.py"'
    failed = Result(item="oom", state=State.failed, seconds=1.0, reason=log, measured={"log": log})
    write(tmp_path, {"at": "now"}, [failed])
    for file in tmp_path.iterdir():
        text = file.read_text()
        assert "scripts/gpu_check/x.py" in text
        assert str(own) not in text
        assert sys.prefix not in text
