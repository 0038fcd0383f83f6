"""Runs in images on this machine, by a program that stands in for Apptainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_world import shell, slurm_shell
from containers_image import container_words, make_image, stand_in
from containers_world import apptainer
from waiting import until

from hpckit.batch.supervise import plan_container_step
from hpckit.record.launches import load_launch, load_run_settings
from hpckit.record.process import read_process_start_id
from hpckit.run_features import DOORWAY
from hpckit.runtime.agent.doorway import SUPERVISOR_LOST

__all__ = ["apptainer", "shell", "slurm_shell"]

SAY = ("sh", "-c", 'echo "$IMAGE"')
ASK = 'echo "$IMAGE $PWD $ONE $TWO $THREE $PYTHONPATH"'


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return an image."""
    return make_image(tmp_path / "image")


@pytest.fixture
def words(tmp_path: Path, image: Path) -> tuple[str, ...]:
    """Return the words of launches in that image."""
    return ("cluster=local", "output_dir=outputs", *container_words(stand_in(tmp_path), image))


def launched(shell: Any, *words: str) -> Path:
    """Launch, wait, and return the folder; what has run already is run again."""
    said = shell("launch", "--wait", "--json", "--rerun", *words)
    assert said.code == 0, said.out + said.err
    return Path(json.loads(said.out)["dir"])


def printed(launch: Path) -> str:
    """Return what rank 0 printed."""
    (log,) = launch.glob("runs/*/attempts/*/rounds/*/rank-00000.log")
    return log.read_text()


def status(shell: Any, launch: Path) -> dict[str, Any]:
    """Return the only run as `status` has it."""
    (run,) = json.loads(shell("status", str(launch), "--json").out)["runs"]
    return dict(run)


def test_run_is_in_its_image_with_its_variables(shell: Any, words: tuple[str, ...], image: Path) -> None:
    """The order is: image, cluster.env, container.env, env; and hpckit comes from the launch."""
    given = (
        "+cluster.env={ONE: cluster, TWO: cluster, THREE: cluster}",
        *("+container.env={TWO: container, THREE: container}", "+env.THREE=run"),
    )
    launch = launched(shell, *words, *given, "--", "sh", "-c", ASK)
    there, folder, *variables, path = printed(launch).split()
    assert there == str(image)
    assert Path(folder).is_relative_to(launch)
    assert variables == ["cluster", "container", "run"]
    assert path.split(":")[-1] == str(launch / "hpckit.zip")
    found = status(shell, launch)["container"]
    assert (found["runtime"], found["image"]) == ("apptainer", str(image))
    assert f"image {image} ({found['digest'][:19]})" in shell("status", launch.name).out
    page = shell("show", launch.name).out
    told = json.loads(shell("show", "--json", launch.name).out)
    assert told["container"]["digest"] == found["digest"]
    assert f"inside       Python {told['inside']['python']}" in page
    assert "launched by" in page
    assert found["digest"].startswith("sha256:")


def test_variables_of_the_host_stay_outside(shell: Any, words: tuple[str, ...]) -> None:
    """But what is Slurm's, a network's or the user's name."""
    shell.environ |= dict.fromkeys(("CONDA_PREFIX", "LD_PRELOAD_", "NCCL_DEBUG", "USER"), "host")
    launch = launched(shell, *words, "--", "env")
    found = {line.partition("=")[0] for line in printed(launch).splitlines()}
    assert {"NCCL_DEBUG", "USER", "RANK"} <= found
    assert {"CONDA_PREFIX", "LD_PRELOAD_"}.isdisjoint(found)


def test_command_alone_may_be_in_the_image(shell: Any, words: tuple[str, ...], image: Path) -> None:
    """Then the image needs no Python, and each rank is told who it is."""
    alone = (*words, "container.inside=command", "container.python=/nowhere/python")
    launch = launched(shell, *alone, "+env.ONE=run", "--", "sh", "-c", 'echo "$IMAGE $RANK $ONE"')
    assert printed(launch).split() == [str(image), "0", "run"]


def test_what_a_container_is_told_is_part_of_a_run(shell: Any, words: tuple[str, ...]) -> None:
    """Another variable makes another run; `env` and `cluster.env` do, too."""
    for value in ("1", "2"):
        said = shell(
            "launch", "--wait", "--json", *words, f"container.env.LR={value}", "--", "sh", "-c", "true"
        )
        assert (said.code, json.loads(said.out)["skipped"]) == (0, [])


def test_python_of_a_command_is_the_image_s(shell: Any, words: tuple[str, ...]) -> None:
    """Some images have only `python3`."""
    code = "import sys; print(sys.executable)"
    launch = launched(shell, *words, "cluster.env.PATH=/nowhere", "--", "python", "-c", code)
    assert Path(printed(launch).strip()).is_absolute()


def test_image_that_changed_is_refused_for_a_command_alone_too(
    shell: Any, words: tuple[str, ...], image: Path
) -> None:
    """What `launch` froze is what runs."""
    alone = (*words, "container.inside=command", "--", "sh", "-c", "true")
    launch = launched(shell, *alone)
    (image / "etc/more").write_text("another")
    said = shell("rerun", f"{launch.name}.0", "--exact", "--wait")
    assert said.code != 0
    assert "sha256:" in said.err


def test_staged_data_is_in_the_container(shell: Any, words: tuple[str, ...], tmp_path: Path) -> None:
    """Its folder on the node is made before the container starts, and mounted with the source."""
    source, place = tmp_path / "numbers.bin", tmp_path / "scratch" / "data"
    source.write_bytes(b"12345")
    staged = ("data=stage", f"data.dir={place}", "data.margin_gb=0", f"+data.stage.numbers.source={source}")
    launch = launched(shell, *words, *staged, "--", "sh", "-c", 'echo "$(cat $HPCKIT_DATA_NUMBERS)"')
    assert printed(launch).split() == ["12345"]
    started = (tmp_path / "started.log").read_text().split("\0")
    assert {f"{path}:{path}" for path in (source, place)} <= {*started}


def test_variables_of_an_image_win_over_no_other(shell: Any, words: tuple[str, ...], image: Path) -> None:
    """Also if only the command is in the image, whose own variables come after the host's."""
    (image / "env").write_text("ONE=image TWO=image RANK=9")
    given = (*words, "container.inside=command", "env.ONE=run", "container.env.TWO=container")
    launch = launched(shell, *given, "--", "sh", "-c", 'echo "$ONE $TWO $RANK"')
    assert printed(launch).split() == ["run", "container", "0"]


def test_values_reach_a_command_in_a_real_container_as_they_are(
    shell: Any, apptainer: str, image: Path
) -> None:
    """No shell on the way evaluates them."""
    odd = "a$$b $HOME `id` $(id) \\\\ 'q'"
    shell.environ["ODD"] = odd
    words = ("cluster=local", "output_dir=outputs", *container_words(apptainer, image))
    given = (*words, "container.inside=command", "env.ODD=${oc.env:ODD}")
    launch = launched(shell, *given, "--", "sh", "-c", 'printf "%s" "$ODD"')
    assert printed(launch) == odd


MISSING = [
    ("container.image=/usr/bin/env", "/usr/bin/env is no image, and container=apptainer takes a SIF file or"),
    ("container.image={folder}/outer", "outer is no image"),
    ("container.mounts=[/nowhere/data]", "/nowhere/data is to be mounted, and is not here"),
    ("cluster.container_bin=/nowhere/apptainer", "there is no /nowhere/apptainer here"),
    ("checkpoint.dir='/c,k'", "/c,k: the path has a comma"),
    ("checkpoint.weights='/w:1'", "/w:1: the path has a comma or a colon"),
    ("cluster.node_scratch=['/s:1']", "/s:1: the path"),
    ("container.mounts=[/opt:/.]", "container.mounts has '/opt:/.'"),
    ("checkpoint.dir='a,b'", "a,b: the path has a comma"),
]


@pytest.mark.parametrize(("word", "says"), MISSING)
def test_check_refuses_what_launch_refuses(
    shell: Any, words: tuple[str, ...], tmp_path: Path, word: str, says: str
) -> None:
    """Where nodes are this machine, what is missing here is missing; nothing is written."""
    (tmp_path / "outer" / "rootfs" / "usr").mkdir(parents=True)
    given = (*words, word.format(folder=tmp_path), "--", "true")
    for verb in ("check", "launch"):
        said = shell(verb, *given)
        assert (said.code, says in said.out + said.err) == (2, True), said
    assert shell.outputs == []


STAGES = """\
# @package _global_
name: two
stages:
  one: {overrides: ["command=[sh,-c,true]"]}
  two: {overrides: ["command=null", "entry_point=train:train"]}
"""


def test_function_of_a_later_stage_is_not_left_outside(shell: Any, words: tuple[str, ...]) -> None:
    """Only commands can be in an image alone, whatever the first run has."""
    conf = shell.cwd / "conf" / "experiment"
    conf.mkdir(parents=True)
    (conf / "two.yaml").write_text(STAGES)
    said = shell("check", "experiment=two", *words, "container.inside=command")
    assert (said.code, "is for runs with a command" in said.err) == (2, True), said


@pytest.mark.parametrize("place", [2, 3])
def test_what_only_nodes_may_have_is_a_warning(
    slurm_shell: Any, image: Path, tmp_path: Path, place: int
) -> None:
    """Which says so."""
    word, says = MISSING[place]
    words = container_words(stand_in(tmp_path), image)
    said = slurm_shell("check", "cluster=slurm", "output_dir=outputs", *words, word, "--", "true")
    assert said.code == 0, said
    assert f"{says}; unless the nodes have it, runs fail there" in said.out


def test_srun_without_pyxis_is_a_warning(slurm_shell: Any, tmp_path: Path) -> None:
    """As the nodes' may have it; and it takes no other image than its own."""
    image = tmp_path / "image.sif"
    image.write_bytes(b"hsqs")
    words = ("cluster=slurm", "output_dir=outputs", "container=pyxis", f"container.image={image}")
    said = slurm_shell("check", *words, "--", "true")
    assert "srun has no --container-image here; unless the nodes have it" in said.out, said
    image.write_bytes(b"-" * 32 + b"SIF_MAGIC\0" + b"--" + b"02")
    said = slurm_shell("check", *words, "--", "true")
    assert (said.code, "is a SIF file, and container=pyxis takes a SquashFS file" in said.out) == (2, True)


def test_container_is_started_once_for_all_rounds(shell: Any, words: tuple[str, ...], tmp_path: Path) -> None:
    """A rank that is killed starts again where it was."""
    once = "[ -e $HPCKIT_RUN_DIR/once ] || { touch $HPCKIT_RUN_DIR/once; kill -9 $$; }"
    launch = launched(shell, *words, "--", "sh", "-c", once)
    assert len([*launch.glob("runs/*/attempts/*/rounds/*")]) == 2
    assert len((tmp_path / "started.log").read_text().splitlines()) == 1


def test_run_of_another_image_is_another_run(shell: Any, words: tuple[str, ...], tmp_path: Path) -> None:
    """Known by its digest, wherever the image is; one that changed under its name is asked about."""
    command = ("--", "sh", "-c", "true")
    launched(shell, *words, *command)

    def known(*more: str) -> tuple[int, int]:
        said = shell("launch", "--wait", "--json", *words, *more, *command)
        return said.code, len(json.loads(said.out)["skipped"]) if said.out else -1

    (tmp_path / "image").rename(tmp_path / "moved")
    assert known(f"container.image={tmp_path}/moved") == (0, 1)
    other = make_image(tmp_path / "other")
    (other / "IMAGE").write_text("other")
    assert known(f"container.image={other}", "--any-code") == (0, 0)
    without = shell("launch", "--wait", "--json", "--any-code", *words[:2], *command)
    assert json.loads(without.out)["skipped"] == []
    (tmp_path / "moved").rename(tmp_path / "image")
    (tmp_path / "image" / "IMAGE").write_text("changed")
    assert known() == (2, -1)
    assert known("--any-code")[1] == 1


def test_points_that_differ_in_their_image_are_all_run(
    shell: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    """And each is known by its own image later."""
    other = make_image(tmp_path / "other")
    (other / "IMAGE").write_text("other")
    sweep = (*words, "-m", f"container.image={tmp_path}/image,{other}", "--", "sh", "-c", "true")
    said = shell("launch", *sweep[:-4], "--dry-run", *sweep[-4:])
    assert "the same as another run" not in said.err
    first = launched(shell, *sweep)
    assert len([*first.glob("runs/*")]) == 2
    said = shell("launch", "--wait", "--json", *sweep)
    assert said.code == 0, said.err
    assert sorted(run["index"] for run in json.loads(said.out)["skipped"]) == [0, 1]


def test_image_that_is_gone_cannot_be_rerun_exactly(shell: Any, words: tuple[str, ...], image: Path) -> None:
    """`--exact` means the image, too."""
    launch = launched(shell, *words, "--", "sh", "-c", "true")
    assert shell("rerun", str(launch), "--exact", "--wait").code == 0
    (image / "IMAGE").write_text("changed")
    said = shell("rerun", str(launch), "--exact", "--wait")
    assert (said.code, "container.digest is sha256:" in said.err) == (2, True)
    again = json.loads(shell("rerun", str(launch), "--wait", "--json").out)["dir"]
    old, new = (load_launch(Path(folder)).containers[0].digest for folder in (launch, again))
    assert f"image {image}: {old} -> {new}" in shell("diff", str(launch), again).out


def test_notice_while_an_image_is_unpacked_is_no_failure_of_the_image(
    shell: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    """A run that is cancelled then is cancelled, and its image is not blamed."""
    program, started = tmp_path / "apptainer", tmp_path / "unpacking"
    program.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 600\n")
    said = shell("launch", "--json", *words, "--", "true")
    launch = Path(json.loads(said.out)["dir"])
    until(started.exists)
    shell("cancel", str(launch))
    until(lambda: status(shell, launch)["state"] not in {"pending", "running"})
    run = status(shell, launch)
    assert run["state"] == "cancelled"
    assert (run["failure"] or {}).get("cause") != "container"


def test_program_that_does_not_start_is_told_in_one_line(
    shell: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    """With the phrase by which all failures of containers are known."""
    (tmp_path / "apptainer").write_bytes(b"\x7fELF of another machine")
    said = shell("launch", "--wait", "--json", *words, "--", "true")
    failure = status(shell, Path(json.loads(said.out)["dir"]))["failure"]
    line = failure["message"].splitlines()[0]
    assert "cannot use its container: " in line
    assert (failure["cause"], "Exec format error" in line) == ("container", True)


def test_image_without_a_runtime_is_refused(shell: Any, image: Path) -> None:
    """The run would not be in it."""
    said = shell("launch", "cluster=local", "output_dir=outputs", f"container.image={image}", "--", "true")
    assert (said.code, "container.runtime is none" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("container.image=/nowhere.sif", "container.image=/nowhere.sif cannot be read"),
        ("container.image=/dev/zero", "cannot be read: not a regular file"),
        ("container.digest=sha256:12", "and container.digest is sha256:12"),
        ("container.mounts=[data]", "container.mounts has 'data'"),
        ("+container.env.API_TOKEN=hf_0123456789abcdef", "looks like a secret"),
        ("container.runtime=pyxis", "container=pyxis is an option of srun"),
        ("container.runtime=auto cluster.container_runtime=pyxis", "container=pyxis is an option of srun"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    shell: Any, words: tuple[str, ...], wrong: str, says: str
) -> None:
    """With one clear error."""
    said = shell("launch", *words, *wrong.split(), "--", "true")
    assert (said.code, shell.outputs) == (2, [])
    assert says in said.err
    assert "hf_0123456789abcdef" not in said.err


NAMED = """\
#!{python}
import os, sys
words = sys.argv[1:]
names = [word.removeprefix("--env=") for word in words if word.startswith("--env=")]
place = words.index("--rootfs") + 1
with open({names!r}, "a") as log:
    print(*(word for word in words if word.startswith("--name=")), file=log)
inside = {{name: os.environ[name] for name in names if name in os.environ}}
inside |= {{"PATH": os.defpath, "IMAGE": words[place].removesuffix(":O")}}
os.execvpe(words[place + 1], words[place + 1 :], inside)
"""
"""Passes only the variables that it is told, as Podman does."""


def test_agent_needs_no_variable_that_is_not_named(shell: Any, image: Path, tmp_path: Path) -> None:
    """Where the container's program passes nothing by itself."""
    program, names = tmp_path / "podman", tmp_path / "names"
    program.write_text(NAMED.format(python=sys.executable, names=str(names)))
    program.chmod(0o755)
    words = [word for word in container_words(program, image) if not word.startswith("container=")]
    words = ["cluster=local", "output_dir=outputs", "container=podman", *words]
    launch = launched(shell, *words, "--", *SAY)
    assert printed(launch).split() == [str(image)]
    # Where each rank is in a container of its own, none takes the place of another.
    two = ("container.inside=command", "resources.tasks_per_node=2")
    launched(shell, *words, *two, "--", "true")
    assert len({*names.read_text().split()}) == 3


def test_srun_is_told_of_the_container_under_pyxis(slurm_shell: Any, tmp_path: Path) -> None:
    """By options with a name of the image and the job, so that a second step unpacks nothing.

    If the image is not the same, doorways start instead, and say so.
    """
    image = tmp_path / "image.sqsh"
    image.write_bytes(b"hsqs")
    words = ("container=pyxis", f"container.image={image}", "container.python=/opt/python")
    said = slurm_shell("launch", "cluster=slurm", "output_dir=outputs", "--json", *words, "--", *SAY)
    assert said.code == 0, said.err
    launch = load_launch(Path(json.loads(said.out)["dir"]))
    environ = {"SLURM_JOB_ID": "7", "PATH": os.defpath, "EDITOR": "vi"}
    step = plan_container_step(launch, 0, load_run_settings(launch, 0), environ)
    assert step is not None
    options = dict(option.partition("=")[::2] for option in step.options)
    digest = launch.containers[0].digest.removeprefix("sha256:")
    assert options["--container-name"] == f"hpckit_{digest[:12]}_7"
    assert str(launch.folder.parent) in options["--container-mounts"]
    assert options["--container-env"].split(",") == ["PYTHONPATH", "SLURM_JOB_ID"]
    assert (step.python, step.variables) == ("/opt/python", {"PYTHONPATH": f"{launch.folder}/hpckit.zip"})
    image.write_bytes(b"hsqs, and not the same")
    assert plan_container_step(launch, 0, load_run_settings(launch, 0), environ) is None
    doorway = [sys.executable, "-P", "-m", DOORWAY, str(launch.folder), "0", "1"]
    done = subprocess.run(doorway, check=False, capture_output=True, text=True)
    assert (done.returncode, "cannot use its container: image" in done.stderr) == (1, True)


AGENT = """\
#!{python}
import os, signal, subprocess, sys, time
heard = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(number, lambda number, _: heard.append(number))
subprocess.Popen(["sleep", "600"], start_new_session=True)
open("{folder}/will", "w").write(os.environ.get("HPCKIT_ON_SUPERVISOR_LOST", "none"))
open("{folder}/pid", "w").write(str(os.getpid()))
while not os.path.exists("{folder}/end"):
    time.sleep(0.01)
print(*heard, flush=True)
sys.exit(int(open("{folder}/end").read()))
"""


@pytest.fixture
def doorway(shell: Any, words: tuple[str, ...], tmp_path: Path) -> Any:
    """Return a function that starts a doorway whose image's Python is a program of the test."""
    program = tmp_path / "agent"
    program.write_text(AGENT.format(python=sys.executable, folder=tmp_path))
    program.chmod(0o755)
    launch = launched(shell, *words, "--", "true")
    configs = launch / "configs/00000.jsonl"
    config = json.loads(configs.read_text())
    config["container"]["python"] = str(program)
    configs.write_text(f"{json.dumps(config)}\n")

    def start() -> subprocess.Popen[str]:
        will = json.dumps(["touch", str(tmp_path / "willed")])
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hpckit.runtime.agent.doorway", launch, "0", "1"],
            env={
                **os.environ,
                "HPCKIT_ON_SUPERVISOR_LOST": will,
                "HPCKIT_RANK": "0",
                "HPCKIT_WORLD_SIZE": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        return process

    return start


@pytest.mark.parametrize("code", [0, 3, SUPERVISOR_LOST])
def test_doorway_passes_signals_and_codes_and_keeps_the_last_will(
    doorway: Any, tmp_path: Path, code: int
) -> None:
    """The will is run outside, if the agent fails and no supervisor answers; nothing is left behind."""
    process = doorway()
    assert (tmp_path / "will").read_text() == "none"
    (sleeper,) = children(int((tmp_path / "pid").read_text()))
    for number in (signal.SIGUSR1, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.05)
    (tmp_path / "code").write_text(str(code))
    (tmp_path / "code").rename(tmp_path / "end")  # never seen without its content
    out, _ = process.communicate(timeout=60)
    assert out.split() == [str(int(signal.SIGUSR1)), str(int(signal.SIGTERM))]
    assert process.returncode == code
    assert (tmp_path / "willed").exists() == bool(code)
    assert read_process_start_id(sleeper) is None


def test_will_is_run_although_the_container_does_not_end(doorway: Any, tmp_path: Path) -> None:
    """Slurm kills what has not ended soon after SIGTERM, which the agent may not manage. It is run once."""
    process = doorway()
    (told,) = tmp_path.rglob("events.jsonl")
    lines = [line for line in told.read_text().splitlines() if '"attempt_ended"' not in line]
    told.write_text("\n".join(lines) + "\n")
    process.send_signal(signal.SIGTERM)
    until((tmp_path / "willed").exists)
    assert process.poll() is None
    (tmp_path / "willed").unlink()
    (tmp_path / "end.partial").write_text("3")
    (tmp_path / "end.partial").rename(tmp_path / "end")
    process.communicate(timeout=60)
    assert (process.returncode, (tmp_path / "willed").exists()) == (3, False)


def test_agent_dies_with_its_doorway(doorway: Any, tmp_path: Path) -> None:
    """Also if that is killed."""
    process = doorway()
    agent = int((tmp_path / "pid").read_text())
    (sleeper,) = children(agent)
    process.kill()
    process.wait(60)
    process.stdout.close()
    until(lambda: read_process_start_id(agent) is None)
    os.kill(sleeper, signal.SIGKILL)


def test_killed_agent_leaves_nothing_behind(doorway: Any, tmp_path: Path) -> None:
    """Its end is told as a shell does."""
    process = doorway()
    agent = int((tmp_path / "pid").read_text())
    (sleeper,) = children(agent)
    os.kill(agent, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert read_process_start_id(sleeper) is None


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
