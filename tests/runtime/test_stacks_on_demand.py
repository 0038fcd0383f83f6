"""A real attempt that is asked what its ranks are doing, and continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_world import verb_said
from waiting import LIMIT_S, until_here

from hpckit.model import events
from hpckit.model.states import RunState
from hpckit.record.launches import read_run_records
from hpckit.record.store import read_events

pytestmark = pytest.mark.training

TRAIN = """
import os, pathlib, time

FLAG = pathlib.Path(os.environ["FLAG"])

def wait_for_a_slow_disk():
    while not FLAG.exists():
        time.sleep(0.05)

def wait_for_the_others():
    while not FLAG.exists():
        time.sleep(0.05)

def main(config, run):
    for step in run.steps(3):
        if step == 1:
            (FLAG.parent / f"here-{run.info.rank}").touch()
            wait_for_a_slow_disk() if run.info.rank == 1 else wait_for_the_others()
"""


def test_running_run_says_what_its_ranks_do_and_completes(workshop: Any, ranks: Any, tmp_path: Path) -> None:
    """Both functions are named, one group each; the run goes on, with no stacks of a hang."""
    flag = tmp_path / "flag"
    launch = workshop.freeze(TRAIN, **ranks(2, env={"FLAG": str(flag)}))
    process = workshop.start(launch)
    try:
        until_here(process, tmp_path, 2)
        run = f"{launch.folder}/runs/00000"
        answer = verb_said("stacks", run, folder=tmp_path)
        assert answer.code == 0, answer.err
        first, second = answer.out.split("\n\n")[1:]
        assert first.startswith("rank 0 on ")
        assert "in wait_for_the_others" in first
        assert "step 1;" in first
        assert second.startswith("rank 1 on ")
        assert "in wait_for_a_slow_disk" in second
        answer = verb_said("stacks", run, "--rank", "1", "--json", folder=tmp_path)
        document = json.loads(answer.out)
        assert [one["rank"] for one in document["ranks"]] == [1]
        assert document["silent_nodes"] == []
        assert "wait_for_a_slow_disk" in document["ranks"][0]["text"]
        answer = verb_said("stacks", run, "--rank", "9", folder=tmp_path)
        assert (answer.code, "it has 0-1" in answer.err) == (2, True)
    finally:
        flag.touch()
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    (record,) = read_run_records(launch)
    assert record.state is RunState.completed
    paths = launch.paths.run(0).attempt(1)
    told = list(read_events(paths.events))
    assert not any(isinstance(one, events.RoundEnded) and one.failure for one in told)
    assert not paths.round(0).rank_stacks_file(0).exists(), "that file is for hangs"
    answer = verb_said("stacks", run, folder=tmp_path)
    assert (answer.code, "only a running run can be asked" in answer.err) == (2, True)
