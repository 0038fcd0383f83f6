"""Staging end to end on this machine: a launch, its agent, its rank, and what status says."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from hpckit.features.staging.listing import BLOCK
from hpckit.record.launches import load_launch, read_run_records

pytestmark = pytest.mark.slow

_FUNCTION = """
import pathlib

def train(config, run):
    data = run.data("late")
    assert data.read_bytes() == pathlib.Path(config.source).read_bytes()
    pathlib.Path(run.folder, "seen").write_text(str(data))
    try:
        run.data("other")
    except Exception as error:
        pathlib.Path(run.folder, "error").write_text(str(error))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file of a few blocks, outside of the project."""
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(2 * BLOCK + 3))
    return path


def _launch(shell: Any, source: Path, *words: str) -> dict[str, Any]:
    """Launch and wait; return the run in `status --json`."""
    base = ("cluster=local", "code.snapshot=false", "data=stage", f"data.dir={source.parent / 'node'}")
    said = shell("launch", "--wait", "--rerun", *base, "data.margin_gb=0", *words)
    (name,) = re.findall(r"^launched (\S+):", said.out + said.err, re.MULTILINE)
    (run,) = json.loads(shell("status", name, "--json").out)["runs"]
    assert said.code == (0 if run["state"] == "completed" else 1), said.err
    found: dict[str, Any] = run
    return found


def test_a_command_finds_its_data_and_results_come_back(shell: Any, source: Path) -> None:
    """A command has `$HPCKIT_DATA_BIG`; what it leaves in `$HPCKIT_OUT_RES` is in the run's folder."""
    run = _launch(
        shell,
        source,
        f"+data.stage.big.source={source}",
        "+data.out.res.every_s=60",
        "experiment=command",
        "command=[bash,-c,'cmp $HPCKIT_DATA_BIG $SOURCE && wc -c < $HPCKIT_DATA/big > $HPCKIT_OUT_RES/size']",
        f"+env.SOURCE={source}",
    )
    (staged,) = run["staged"]
    assert run["state"] == "completed"
    assert (staged["name"], staged["bytes"], staged["how"]) == ("big", 2 * BLOCK + 3, "copied")
    folder = Path(run["folder"]) if "folder" in run else shell.outputs[-1] / "runs" / "00000"
    assert (folder / "out" / "res" / staged["node"] / "size").read_text().strip() == str(2 * BLOCK + 3)
    assert json.loads((folder / "out" / "res" / f"{staged['node']}.manifest.json").read_text())["files"] == {
        "size": len(str(2 * BLOCK + 3)) + 1
    }
    assert "data big: 16.0 MiB on 1 node (1 copied)" in shell("status").out
    place = source.parent / "node"  # the agent ends after its run
    until(lambda: [path for path in place.rglob("*[!k]") if path.is_file()] == [place / ".hpckit-node"])


def test_what_cannot_be_brought_out_stays_and_is_told(shell: Any, source: Path) -> None:
    """The run's warnings say where it is; no later launch on the node removes it."""
    words = ("experiment=command", "+data.out.res.every_s=60")
    blocked = "command=[bash,-c,'echo 42 > $HPCKIT_OUT_RES/found; touch $HPCKIT_RUN_DIR/out']"
    run = _launch(shell, source, *words, blocked)
    (warning,) = [words for words in run["warnings"] if "data.out.res" in words]
    _launch(shell, source, *words, "command=true")
    assert Path(warning.rpartition(" ")[2], "found").read_text() == "42\n"


def test_a_kept_copy_that_was_truncated_is_copied_again(shell: Any, source: Path) -> None:
    """With keep=cache the next launch finds the data, unless it is damaged."""
    words = (f"+data.stage.big.source={source}", "data.keep=cache", "experiment=command")
    check = f"command=[cmp,{source},"
    first = _launch(shell, source, *words, "command=[bash,-c,'echo $HPCKIT_DATA_BIG']")
    (copy,) = (source.parent / "node").glob("big.*/data.bin")
    second = _launch(shell, source, *words, f"{check}{copy}]")
    os.truncate(copy, 1000)
    third = _launch(shell, source, *words, f"{check}{copy}]")
    assert [run["staged"][0]["how"] for run in (first, second, third)] == ["copied", "kept", "copied"]
    assert {run["state"] for run in (first, second, third)} == {"completed"}


def test_exact_rerun_takes_no_other_data(shell: Any, source: Path) -> None:
    """It refuses what is not as frozen, by name; without `--exact` today's data is meant."""
    words = (f"+data.stage.big.source={source}", "experiment=command", "command=[true]", "code.snapshot=true")
    run = _launch(shell, source, *words)
    assert shell("rerun", run["run"], "--exact", "--wait").code == 0
    source.write_bytes(b"other")
    said = shell("rerun", run["run"], "--exact", "--wait")
    assert (said.code, str(source) in said.err) == (2, True)
    assert shell("rerun", run["run"], "--wait").code == 0


def test_data_that_changed_is_asked_about_as_code_is(shell: Any, source: Path) -> None:
    """A run on what the file was before is not the run that is asked for."""
    base = ("cluster=local", "code.snapshot=true", "data=stage", f"data.dir={source.parent / 'node'}")
    words = (*base, "data.margin_gb=0", f"+data.stage.big.source={source}", "--", "true")
    assert shell("launch", "--wait", *words).code == 0
    assert "nothing to launch" in shell("launch", "--wait", *words).out
    source.write_bytes(b"other")
    said = shell("launch", "--wait", *words)
    assert (said.code, str(source) in said.err) == (2, True)
    assert "nothing to launch" in shell("launch", "--wait", "--any-code", *words).out
    assert json.loads(shell("launch", "--wait", "--json", "--changed-code", *words).out)["runs"]
    told = json.loads(shell("diff", *(folder.name for folder in shell.outputs), "--json").out)["environment"]
    (changed,) = (one for one in told if one["name"] == f"data {source}")
    assert changed["old"] != changed["new"]


def test_a_function_waits_for_what_comes_in_the_background(shell: Any, source: Path) -> None:
    """`run.data` returns when the data is there, and names what there is for a name that is not."""
    (shell.cwd / "mine.py").write_text(_FUNCTION)
    run = _launch(
        shell,
        source,
        "entry_point=mine:train",
        f"+source={source}",
        f"+data.stage.late.source={source}",
        "+data.stage.late.needed=background",
    )
    folder = shell.outputs[-1] / "runs" / "00000"
    assert run["state"] == "completed", run["failure"]
    assert (folder / "seen").read_text().endswith("/data.bin")
    assert "no data of the name 'other'" in (folder / "error").read_text()


def test_a_source_that_is_gone_by_then_ends_the_run(shell: Any, source: Path) -> None:
    """The failure has its own cause; nothing is tried again."""
    said = shell(
        *(
            "launch",
            "cluster=local",
            "code.snapshot=false",
            "data=stage",
            f"data.dir={source.parent / 'node'}",
        ),
        *("experiment=command", "command=sleep 1", "-m", "seed=1,2", f"+data.stage.big.source={source}"),
        *("data.margin_gb=0", "+data.out.res.every_s=60"),
    )
    assert said.code == 0, said.err
    source.write_bytes(b"other")
    shell("watch")
    launch = load_launch(shell.outputs[-1])
    failures = [record.failure for record in read_run_records(launch) if record.failure]
    assert failures
    assert {failure.cause.value for failure in failures} == {"data_refused"}
    assert all("has changed since the launch" in failure.message for failure in failures)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("+data.stage.big.source=/no/such",), "data.stage.big.source: /no/such does not exist"),
        (("+data.stage.big.sorce=/x",), "data.stage.big.sorce: there is no such key"),
        (("+data.stage.b-g.source=/x",), "is not a name for a variable"),
        (("data.keep=always",), "data.keep"),
        (("+data.stage=x",), "data.stage"),
        (("data.dir=$HPCKIT_NO_SUCH/x",), "names a variable that this machine does not have"),
    ],
)
def test_wrong_words_are_one_error_and_start_nothing(shell: Any, words: tuple[str, ...], said: str) -> None:
    """Exit code 2, one message, no launch folder."""
    base = ("launch", "cluster=local", "data=stage", "data.dir=/tmp/x", "experiment=command", "command=true")
    answer = shell(*base, *words)
    assert (answer.code, shell.outputs) == (2, [])
    assert said in answer.err
    assert "Traceback" not in answer.err
