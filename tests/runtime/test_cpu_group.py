"""Promises of our own groups: real processes, real gloo, and the sockets that they have open."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from waiting import run_to_end

pytestmark = pytest.mark.training

WORLD = 8
PROGRAM = """
import json, os, sys
from datetime import timedelta
import torch, torch.distributed as dist
from hpckit.runtime.cpu_group import make_gloo_group_of_all_ranks

def sockets():
    count = 0
    for one in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{one}").startswith("socket:")
        except FileNotFoundError:  # the descriptor of this listing
            pass
    return count

world, rank = int(sys.argv[1]), 0
for other in range(1, world):
    if os.fork() == 0:
        rank = other
        break
store = dist.FileStore(sys.argv[2], world)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
dist.barrier()
told = {"before": sockets()}
votes, files = make_gloo_group_of_all_ranks(), make_gloo_group_of_all_ranks(timedelta(hours=1))
for _ in range(3):
    vote = torch.tensor([rank])
    dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=votes)
    everyone = [None] * world
    dist.all_gather_object(everyone, rank, group=files)
    word = [rank + 100]
    dist.broadcast_object_list(word, src=0, group=files)
    dist.barrier()
told |= {"ours": sockets(), "vote": vote.item(), "everyone": everyone, "word": word}
theirs = dist.new_group(backend="gloo")
told |= {"theirs": sockets(), "set": os.environ.get("TORCH_GLOO_LAZY_INIT")}
dist.barrier()
gathered = [None] * world
dist.all_gather_object(gathered, told)
if rank == 0:
    print(json.dumps(gathered), flush=True)
dist.barrier()
os._exit(0)
"""


def grouped(store: Path, **env: str) -> list[dict[str, object]]:
    """Return what each rank of a world told of its groups, which meet in a file of their own."""
    kept = {name: value for name, value in os.environ.items() if name != "TORCH_GLOO_LAZY_INIT"}
    done = run_to_end(
        [sys.executable, "-c", PROGRAM, str(WORLD), str(store)],
        env={**kept, "GLOO_SOCKET_IFNAME": "lo", **env},
        check=True,
    )
    told: list[dict[str, object]] = json.loads(done.stdout)
    return told


def between(one: dict[str, object], first: str, last: str) -> int:
    """Return by how many sockets a rank had more at the later moment."""
    begun, ended = one[first], one[last]
    assert isinstance(begun, int)
    assert isinstance(ended, int)
    return ended - begun


def test_both_groups_of_ours_need_no_more_sockets_than_one_of_the_users(tmp_path: Path) -> None:
    """All agree as ever; ranks but 0, to which all talk, have hardly more than one mesh more."""
    told = grouped(tmp_path / "store")
    for one in told:
        assert one["vote"] == WORLD - 1
        assert one["everyone"] == list(range(WORLD))
        assert one["word"] == [100]
    for one in told[1:]:
        assert between(one, "before", "ours") <= WORLD
        assert between(one, "ours", "theirs") >= WORLD - 1
        assert one["set"] is None


def test_the_users_own_choice_for_all_groups_is_kept(tmp_path: Path) -> None:
    """Who set torch's variable has it for later groups, too."""
    for one in grouped(tmp_path / "lazy", TORCH_GLOO_LAZY_INIT="1"):
        assert one["set"] == "1"
        assert between(one, "ours", "theirs") < WORLD - 1
    for one in grouped(tmp_path / "eager", TORCH_GLOO_LAZY_INIT="0")[1:]:
        assert one["set"] == "0"
        assert between(one, "before", "ours") >= 2 * (WORLD - 1)
