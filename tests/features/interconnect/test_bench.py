"""Promises of `hpckit bench comm` on one machine, and of what it refuses."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from hpckit.features.interconnect.model import CommOperation

LOCAL = ("bench", "comm", "cluster=local", "resources=cpu_pair")


@pytest.mark.training
def test_bench_measures_two_ranks_keeps_it_and_leaves_no_launch(shell: Any) -> None:
    """Figures of every operation of gloo, a promise that is not known, and one line kept."""
    figure = shell.cwd / "network.svg"
    small = ("--sizes", "1KiB:8KiB", "--time-s", "60", "-o", str(figure), "--json")
    said = shell(*LOCAL, *small)
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert told["healthy"] is True
    assert told["shape"]["backend"] == "gloo"
    by_name = {one["operation"]: one for one in told["operations"]}
    assert set(by_name) == set(CommOperation)
    reduced = by_name["all_reduce"]
    assert [one["size"] for one in reduced["times"]] == [1024, 2048, 4096, 8192]
    assert reduced["bus_bytes_per_s"] > 0
    assert reduced["share"] is None
    assert "no promise known" in reduced["promise"]
    assert by_name["host_to_device"]["missing"] == "ranks use no GPU"
    assert "<svg" in figure.read_text()
    assert {one.name for one in (shell.cwd / "outputs").iterdir()} == {f".interconnect-{os.getuid()}.jsonl"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench",), "KIND"),
        (("bench", "network"), "network"),
        ((*LOCAL, "--sizes", "big"), "--sizes"),
        ((*LOCAL, "--sizes", "2MiB:1MiB"), "--sizes"),
        ((*LOCAL, "--ops", "allreduce"), "did you mean all_reduce?"),
        ((*LOCAL, "--time-s", "nan"), "--time-s"),
        ((*LOCAL, "--time-s", "soon"), "soon"),
        ((*LOCAL, "--find-slow", "maybe"), "maybe"),
        ((*LOCAL, "-o", "network.txt"), "network.txt"),
        ((*LOCAL, "seed=1,2"), "seed"),
        (("bench", "comm", "cluster=local", "resources=cpu"), "one rank without a GPU"),
        (("bench", "comm", "cluster=nowhere"), "nowhere"),
        ((*LOCAL, "--ops", "host_to_device,device_to_host"), "use no GPU"),
        ((*LOCAL, "--", "python", "x.py"), "takes no command"),
        ((*LOCAL, "resources.nodes=9"), "resources.nodes"),
    ],
)
def test_bench_refuses_what_it_cannot_measure(shell: Any, words: tuple[str, ...], said: str) -> None:
    """One error with the word that is wrong, exit code 2, and nothing is launched."""
    answer = shell(*words)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert "--no-check" not in answer.err
    assert "comm_bench" not in answer.err
    assert shell.outputs == []
