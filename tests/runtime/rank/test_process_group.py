"""Promises of the rendezvous: real stores, real processes, real gloo groups."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from tiers import thorough
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # as in hpckit
from waiting import LIMIT_S, run_to_end

from hpckit.errors import DeviceError, RendezvousError
from hpckit.model.launch import DeviceKind
from hpckit.model.rank import RankInfo, RankSource
from hpckit.runtime.rank.process_group import (
    FileRendezvous,
    build_rank_identity,
    check_all_ranks_present,
    choose_backends,
    choose_device,
    open_store,
)

SHORT = timedelta(seconds=1)
CPU = torch.device("cpu")


def info(rank: int, world_size: int = 3, **more: Any) -> RankInfo:
    """Return a rank of a world on one node."""
    shape = {"local_rank": rank, "local_world_size": world_size, "node_rank": 0, "num_nodes": 1}
    return RankInfo(**{"rank": rank, "world_size": world_size, "source": RankSource.agent, **shape, **more})


def _come(port: int, one: RankInfo, me: dict[str, Any], timeout: timedelta) -> str:
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=10))
    try:
        check_all_ranks_present(store, one, me, timeout)
    except RendezvousError as error:
        return error.message
    return "fine"


def _gather(comers: list[tuple[RankInfo, dict[str, Any]]], timeout: timedelta) -> list[str]:
    """Let these ranks check in at once, each over a connection of its own."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ThreadPoolExecutor(len(comers)) as pool:
        waiting = [pool.submit(_come, server.port, one, me, timeout) for one, me in comers]
        return [one.result() for one in waiting]


def _world(*ranks: int) -> list[tuple[RankInfo, dict[str, Any]]]:
    return [(info(rank), build_rank_identity(info(rank), CPU)) for rank in ranks]


def test_check_in_lets_a_whole_world_pass() -> None:
    """Every rank once: everybody passes."""
    assert _gather(_world(0, 1, 2), timedelta(seconds=20)) == ["fine"] * 3


def test_check_in_names_the_missing_rank() -> None:
    """A rank that does not come is named by all that did, within the timeout."""
    for words in _gather(_world(0, 2), SHORT):
        assert "of 3 ranks, 1 did not connect within 1 s" in words


def test_check_in_names_the_doubled_rank() -> None:
    """Two processes with one rank: both are named, and nobody waits for the third."""
    said = _gather(_world(0, 1, 1), timedelta(seconds=20))
    assert all("rank 1 was started 2 times" in words for words in (said[0], said[1]) if words)
    assert any(f"pid {os.getpid()}" in words for words in said)


def test_check_in_names_who_has_another_torch() -> None:
    """Ranks with different torch versions are refused, with both versions."""
    comers = _world(0, 1, 2)
    comers[2][1]["torch"] = "1.0"
    for words in _gather(comers, timedelta(seconds=20)):
        assert "rank 2" in words
        assert "torch 1.0" in words
        assert torch.__version__ in words


def test_check_in_names_who_share_a_gpu() -> None:
    """Two ranks on one GPU are refused before NCCL fails on them."""
    comers = _world(0, 1, 2)
    for _, me in comers[1:]:
        me["gpu"] = "GPU-7"
    for words in _gather(comers, timedelta(seconds=20)):
        assert words == "ranks 1 and 2 share GPU GPU-7"


@pytest.mark.parametrize(
    ("kind", "visible", "local_rank", "wanted"),
    [
        (DeviceKind.auto, 0, 1, "cpu"),
        (DeviceKind.auto, 1, 2, "cuda:0"),
        (DeviceKind.auto, 3, 2, "cuda:2"),
        (DeviceKind.auto, 8, 1, "cuda:1"),
        (DeviceKind.cpu, 3, 2, "cpu"),
        (DeviceKind.cuda, 1, 0, "cuda:0"),
    ],
)
def test_choose_device_follows_what_is_visible(
    kind: DeviceKind, visible: int, local_rank: int, wanted: str
) -> None:
    """One visible GPU is the rank's own; one a rank is chosen by local rank; none means CPU."""
    assert choose_device(kind, info(local_rank), visible) == torch.device(wanted)


def test_choose_device_refuses_too_few_gpus() -> None:
    """Fewer GPUs than ranks, or none where one is demanded, is an error that says what to do."""
    with pytest.raises(RendezvousError, match=r"3 ranks on .* share 2 GPUs") as shared:
        choose_device(DeviceKind.auto, info(1), 2)
    assert "tasks_per_node" in shared.value.hint


@pytest.mark.parametrize(
    ("kind", "asked", "wanted"),
    [
        (DeviceKind.cuda, 0, "runtime.device=cuda"),
        (DeviceKind.cuda, 4, "resources.gpus_per_node=4"),
        (DeviceKind.auto, 4, "resources.gpus_per_node=4"),
    ],
)
def test_choose_device_refuses_cpus_where_gpus_were_asked_for(
    kind: DeviceKind, asked: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names who asked, why there is none, and how to train on CPUs all the same."""
    reasons = {"built without CUDA": None, "its driver may be broken": "12.8"}
    for reason, version in reasons.items():
        monkeypatch.setattr(torch.version, "cuda", version)
        with pytest.raises(DeviceError, match=f"{reason}, but {wanted}") as none:
            choose_device(kind, info(1), 0, asked=asked)
        assert "runtime.device=cpu" in none.value.hint
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES is '-1'"):
        choose_device(kind, info(1), 0, asked=asked)
    assert choose_device(DeviceKind.cpu, info(1), 0, asked=asked) == torch.device("cpu")


def test_choose_device_says_that_the_run_was_given_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that wants a GPU is told how to ask for one; what chooses by itself is on the CPU."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HPCKIT_GPUS_ASKED", "0")
    with pytest.raises(DeviceError, match="because the run was given none") as none:
        choose_device(DeviceKind.cuda, info(1), 0, asked=0)
    assert "resources=one_gpu" in none.value.hint
    assert choose_device(DeviceKind.auto, info(1), 0, asked=0) == torch.device("cpu")


def test_backend_follows_the_device() -> None:
    """NCCL for GPU tensors with gloo beside it; gloo alone on CPU."""
    assert choose_backends(CPU) == "gloo"
    assert choose_backends(torch.device("cuda", 0)) == "cpu:gloo,cuda:nccl"


def test_store_is_bound_before_it_is_published(tmp_path: Path) -> None:
    """At the moment the address appears, the port already answers."""
    answered = []

    class Watch(FileRendezvous):
        def publish_port(self, port: int) -> None:
            client = TCPStore("127.0.0.1", port, is_master=False, timeout=SHORT)
            client.set("a", "b")
            answered.append(client.get("a"))
            super().publish_port(port)

    rendezvous = Watch(tmp_path / "address.json", "127.0.0.1")
    store = open_store(info(0), rendezvous, timedelta(seconds=5))
    assert answered == [b"b"]
    assert isinstance(store, TCPStore)
    assert rendezvous.wait_for_address(SHORT)[1] == store.port


def listening(port: int) -> set[str]:
    """Return the addresses at which this process listens on a port.

    Others may listen on the same port of another address, so that a connection proves nothing.
    """
    mine = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(str(link.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            address, _, hexadecimal = words[1].partition(":")
            if (words[3], int(hexadecimal, 16)) == ("0A", port) and f"socket:[{words[9]}]" in mine:
                found.add(address)
    return found


@pytest.mark.parametrize(
    ("shape", "reached", "bound"),
    [
        ({"num_nodes": 1}, "127.0.0.1", "0100007F"),
        ({"num_nodes": 2, "master_addr": "127.0.0.2"}, "127.0.0.2", "0200007F"),
    ],
)
def test_store_of_several_nodes_listens_where_they_call(
    tmp_path: Path, shape: dict[str, Any], reached: str, bound: str
) -> None:
    """It asks for no secret: it is bound to one address, for one node to loopback."""
    store = open_store(
        info(0, **shape), FileRendezvous(tmp_path / "address.json", "n1"), timedelta(seconds=5)
    )
    assert isinstance(store, TCPStore)
    socket.create_connection((reached, store.port)).close()
    assert listening(store.port) == {bound}


def test_store_is_reached_where_its_address_is_translated(tmp_path: Path) -> None:
    """An address that is none of this host's own (NAT) means all interfaces."""
    store = open_store(
        info(0, num_nodes=2, master_addr="203.0.113.9"),
        FileRendezvous(tmp_path / "address.json", "n1"),
        SHORT,
    )
    assert isinstance(store, TCPStore)
    socket.create_connection(("127.0.0.1", store.port)).close()


LISTENING = """
import os, torch, torch.distributed as dist


def main(config, run):
    dist.all_reduce(torch.ones(1))
    mine = {os.readlink(f"/proc/self/fd/{fd}")[8:-1] for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
            and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")}
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{table}").readlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in mine:
                print("listens at", words[1].split(":")[0], flush=True)
"""


@pytest.mark.training
def test_ranks_of_one_node_listen_on_loopback_alone(workshop: Any, ranks: Any) -> None:
    """Neither the store nor gloo is reached from another machine."""
    ended = workshop.attempt(LISTENING, **ranks(2))
    assert ended.code == 0, ended.output
    found = [line for rank in range(2) for line in ended.log(rank).splitlines()]
    addresses = {line.split()[-1] for line in found if line.startswith("listens at")}
    assert addresses == {"0100007F"}
    files = sorted(path.name for path in ended.paths.round(0).folder.iterdir())
    assert files == ["rank-00000.log", "rank-00001.log"], "nothing of ranks that did well"


def test_file_rendezvous_says_that_rank_0_did_not_publish(tmp_path: Path) -> None:
    """No address within the timeout: the file and what it needs are named."""
    with pytest.raises(RendezvousError, match=r"address\.json within 1 s"):
        FileRendezvous(tmp_path / "address.json", "n1").wait_for_address(SHORT)


ATTACH = """
import json, os, sys, torch, torch.distributed as dist, hpckit
run = hpckit.attach(timeout_s=20)
total = torch.ones(1)
dist.all_reduce(total)
run.log(step=0, total=total)
# In one piece: torchrun's ranks share a pipe.
line = json.dumps([run.rank, run.world_size, run.info.source, total.item()])
os.write(1, line.encode() + bytes([10]))
dist.destroy_process_group()
"""


def _attach(folder: Path, environs: list[dict[str, str]]) -> list[list[Any]]:
    """Run the script once per environment, all at once."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "HPCKIT"))}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ATTACH],
            env={**clean, **environ},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environ in environs
    ]
    ended = [process.communicate(timeout=LIMIT_S) for process in started]
    assert [process.returncode for process in started] == [0] * len(started), ended
    return sorted(json.loads(output) for output, _ in ended)


@thorough
@pytest.mark.slow
def test_attach_works_under_plain_srun(tmp_path: Path) -> None:
    """Two tasks of a Slurm step, without any agent, find each other through the folder."""
    common = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_NODEID": "0",
    }
    environs = [common | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    said = _attach(tmp_path, environs)
    assert said == [[0, 2, "slurm_step", 2.0], [1, 2, "slurm_step", 2.0]]
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["total"] == 2.0


@pytest.mark.training
def test_attach_works_alone(tmp_path: Path) -> None:
    """Without any launcher it is a world of one."""
    assert _attach(tmp_path, [{}]) == [[0, 1, "single", 1.0]]


@pytest.mark.slow
def test_attach_works_under_torchrun(tmp_path: Path) -> None:
    """Under torchrun the agent's store is used."""
    script = tmp_path / "attach.py"
    script.write_text(ATTACH)
    ended = run_to_end(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node=2", str(script)),
        ],
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    said = sorted(json.loads(line) for line in ended.stdout.splitlines())
    assert said == [[0, 2, "torchrun", 2.0], [1, 2, "torchrun", 2.0]]
    assert not list(tmp_path.glob(".hpckit-rendezvous*"))
