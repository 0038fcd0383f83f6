"""Turn a rank's identity into an initialised process group.

This covers the device, the store, the check that every rank is present exactly once, and
`init_process_group`. Rank 0 binds its store before the address is published, so no port is ever
guessed. A missing or duplicate rank is an error that names it, instead of a wait of ten or thirty
minutes inside the first collective.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from hpckit.errors import DeviceError, RendezvousError
from hpckit.model import messages
from hpckit.model.launch import DeviceKind
from hpckit.model.rank import RankInfo
from hpckit.observe.gpu_choice import GPUS_ASKED, HOW_TO_ASK
from hpckit.record.store import read_json, write_json
from hpckit.runtime.channel.listen import LOOPBACK, open_listening_socket
from hpckit.runtime.channel.rank_pipe import AgentLink
from hpckit.runtime.environ import copy_environment
from hpckit.values import dataclass

_POLL_S = 0.05
_NOT_OURS = frozenset({errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN})


@dataclass(frozen=True, slots=True)
class AgentRendezvous:
    """Rendezvous through the agent and the supervisor, without writing to any file system."""

    link: AgentLink

    def publish_port(self, port: int) -> None:
        """Send the port to the supervisor, which forwards it to every rank."""
        self.link.send(messages.StoreBound(port=port))

    def wait_for_address(self, timeout: timedelta) -> tuple[str, int]:
        """Wait for the supervisor's message."""
        told = self.link.wait_for_message(messages.StoreAddress, timeout)
        return told.host, told.port


@dataclass(frozen=True, slots=True)
class FileRendezvous:
    """Rendezvous through a file that all nodes see, for ranks that srun started without an agent.

    The file name contains job, step and restart count, so that the address of a dead incarnation is never
    mistaken for a live one. `host` is the name or address by which other ranks reach this node.
    """

    file: Path
    host: str

    def publish_port(self, port: int) -> None:
        """Write the address atomically."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.file, {"host": self.host, "port": port})

    def wait_for_address(self, timeout: timedelta) -> tuple[str, int]:
        """Wait for the file."""
        deadline = time.monotonic() + timeout.total_seconds()
        while time.monotonic() < deadline:
            try:
                record = read_json(self.file)
            except FileNotFoundError:
                time.sleep(_POLL_S)
            else:
                return record["host"], record["port"]
        raise RendezvousError(
            f"rank 0 did not publish its address in {self.file} within {timeout.total_seconds():g} s",
            hint="the folder must lie on a file system that all nodes see, and rank 0 must run",
        )


Rendezvous = AgentRendezvous | FileRendezvous
"""How the other ranks learn where rank 0's store listens."""


def choose_device(
    kind: DeviceKind, info: RankInfo, visible: int | None = None, *, asked: int | None = None
) -> torch.device:
    """Return the device of this rank.

    `visible` is the number of GPUs that the rank sees, if torch is not to be asked; `asked` the
    number requested for its node, null if nothing is said of GPUs.

    A run that was given no GPU sees none (`runtime.run_variables`), and is on the CPU.

    A single visible GPU belongs to this rank, whatever its number (`--gpus-per-task`, `--gpu-bind`). With at
    least one GPU per rank, it is the GPU with the number of the local rank. Raises DeviceError if a GPU was
    requested and there is none, RendezvousError if several ranks would share one.
    """
    visible = torch.cuda.device_count() if visible is None else visible
    if kind is DeviceKind.cpu or (kind is DeviceKind.auto and not visible and not asked):
        return torch.device("cpu")
    if visible == 0:
        raise _no_gpu_error(kind, info, asked)
    if visible == 1:
        return torch.device("cuda", 0)
    if visible < info.local_world_size:
        raise RendezvousError(
            f"{info.local_world_size} ranks on {info.node or socket.gethostname()} share "
            f"{visible} GPUs; each rank needs a GPU of its own",
            hint="set resources.tasks_per_node to resources.gpus_per_node, or runtime.device=cpu",
        )
    return torch.device("cuda", info.local_rank)


def _no_gpu_error(kind: DeviceKind, info: RankInfo, asked: int | None) -> DeviceError:
    """Return an error that says why torch sees no GPU.

    Another node only helps against a broken driver.
    """
    wanted = f"resources.gpus_per_node={asked}" if asked else f"runtime.device={kind.value}"
    shown = copy_environment().get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None and torch.version.hip is None:
        why = f"this is torch {torch.__version__}, which was built without CUDA"
        hint = "install a build of torch with CUDA into the Python of the run"
    elif copy_environment().get(GPUS_ASKED) == "0":
        why = "because the run was given none"
        hint = HOW_TO_ASK
    elif shown is not None and not shown.strip("-1 "):
        why = f"CUDA_VISIBLE_DEVICES is {shown!r}"
        hint = "do not set it in env or the job's environment; Slurm sets it"
    else:
        why = "and its driver may be broken"
        hint = "run nvidia-smi on that node"
    return DeviceError(
        f"rank {info.rank} on {info.node or socket.gethostname()}: torch sees no GPU, {why}, but "
        f"{wanted} asks for one",
        hint=f"{hint}; to train on CPUs anyway, set runtime.device=cpu",
    )


def choose_backends(device: torch.device) -> str:
    """Return the backends for a device: NCCL for GPU tensors plus gloo for CPU tensors."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def open_store(info: RankInfo, rendezvous: Rendezvous, timeout: timedelta) -> Store:
    """Bind (rank 0) or connect to (all others) the store of this world."""
    if info.rank == 0:
        store = _serve_store(_open_store_listener(info), timeout)
        rendezvous.publish_port(store.port)
        return store
    host, port = rendezvous.wait_for_address(timeout)
    try:
        return TCPStore(host, port, is_master=False, timeout=timeout)
    except (RuntimeError, OSError) as error:
        raise RendezvousError(
            f"rank {info.rank} cannot reach rank 0's store at {host}:{port}: {error}",
            hint="nodes of one job must be able to open TCP connections to each other",
        ) from None


def open_store_from_environment(info: RankInfo, timeout: timedelta) -> Store:
    """Bind or connect to the store at the address in this rank's environment."""
    host, port = str(info.master_addr), int(info.master_port or 0)
    if info.rank == 0:
        return _serve_store(_open_store_listener(info, port), timeout)
    return TCPStore(host, port, is_master=False, timeout=timeout)


def _open_store_listener(info: RankInfo, port: int = 0) -> socket.socket:
    """Listen only where the ranks of this world connect, because a store asks for no secret.

    If the address by which other nodes know this one is not an address of this machine, listen on
    all interfaces.
    """
    backlog = info.world_size + 16
    host = LOOPBACK if info.num_nodes == 1 else info.master_addr
    if host is not None:
        try:
            return open_listening_socket(host, port=port, backlog=backlog)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
    return open_listening_socket(port=port, backlog=backlog)


def _serve_store(bound: socket.socket, timeout: timedelta) -> TCPStore:
    host, port = bound.getsockname()[:2]
    return TCPStore(
        "localhost" if host in {"::", "0.0.0.0"} else host,  # noqa: S104  # compared, not bound
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=bound.detach(),
    )


def build_rank_identity(info: RankInfo, device: torch.device) -> dict[str, Any]:
    """Return this rank's identity, for the others to check."""
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None
    return {
        "rank": info.rank,
        "world_size": info.world_size,
        "local_rank": info.local_rank,
        "node": info.node or socket.gethostname(),
        "pid": os.getpid(),
        "gpu": gpu,
        "torch": torch.__version__,
    }


def check_all_ranks_present(store: Store, info: RankInfo, me: Mapping[str, Any], timeout: timedelta) -> None:
    """Wait until every rank has been seen exactly once.

    Every rank puts its identity into the store; rank 0 reads all of them and publishes a verdict.
    Raises RendezvousError that names the ranks at fault.
    """
    store.set(f"identity/{info.rank}/{_claim_rank(store, info, me)}", json.dumps(dict(me)))
    store.set(f"here/{info.rank}", "")
    if info.rank == 0:
        problem = _explain_missing_ranks(store, info, timeout) or _explain_mismatched_ranks(store, info)
        store.set("verdict", problem)
    else:
        problem = _wait_for_verdict(store, info, timeout)
    if problem:
        raise RendezvousError(problem, hint="every rank must be started exactly once")


def _claim_rank(store: Store, info: RankInfo, me: Mapping[str, Any]) -> int:
    claims: int = store.add(f"claims/{info.rank}", 1)
    if claims > 1:
        first = _read_identities(store, info.rank)[0] if store.check([f"here/{info.rank}"]) else {}
        problem = (
            f"rank {info.rank} was started {claims} times: pid {first.get('pid', '?')} on "
            f"{first.get('node', '?')} and pid {me['pid']} on {me['node']}"
        )
        store.set(f"identity/{info.rank}/{claims}", json.dumps(dict(me)))
        store.set("doubled", problem)
        raise RendezvousError(problem, hint="every rank must be started exactly once")
    return claims


def _explain_missing_ranks(store: Store, info: RankInfo, timeout: timedelta) -> str:
    deadline = time.monotonic() + timeout.total_seconds()
    waiting = list(range(info.world_size))
    while waiting:
        waiting = [rank for rank in waiting if not store.check([f"here/{rank}"])]
        if store.check(["doubled"]):
            return str(store.get("doubled").decode())
        if waiting and time.monotonic() > deadline:
            names = ", ".join(map(str, waiting))
            return f"of {info.world_size} ranks, {names} did not connect within {timeout.total_seconds():g} s"
        time.sleep(_POLL_S if waiting else 0)
    return ""


def _read_identities(store: Store, rank: int) -> list[dict[str, Any]]:
    claims = store.add(f"claims/{rank}", 0)
    keys = [f"identity/{rank}/{claim}" for claim in range(1, claims + 1)]
    return [json.loads(store.get(key)) for key in keys if store.check([key])]


def _explain_mismatched_ranks(store: Store, info: RankInfo) -> str:
    everyone = [_read_identities(store, rank)[0] for rank in range(info.world_size)]
    owners: dict[str, int] = {}
    for said in everyone:
        for key, ours in (("world_size", info.world_size), ("torch", torch.__version__)):
            if said[key] != ours:
                where = f"rank {said['rank']} on {said['node']}"
                return f"{where} has {key} {said[key]}, rank 0 has {ours}"
        if said["gpu"] is not None and owners.setdefault(said["gpu"], said["rank"]) != said["rank"]:
            return f"ranks {owners[said['gpu']]} and {said['rank']} share GPU {said['gpu']}"
    return ""


def _wait_for_verdict(store: Store, info: RankInfo, timeout: timedelta) -> str:
    try:
        # Rank 0 needs its whole timeout to name the missing ranks, so wait a little longer.
        store.wait(["verdict"], timeout + timedelta(seconds=10))
        return str(store.get("verdict").decode())
    except (RuntimeError, OSError) as error:
        raise RendezvousError(f"rank {info.rank} lost rank 0's store: {error}") from None


def initialise_process_group(info: RankInfo, device: torch.device, store: Store, timeout: timedelta) -> None:
    """Check every rank's identity in `store`, then initialise the default process group.

    The store is prefixed with the restart count, so that a rank of an earlier round can never join
    this one. Raises RendezvousError.
    """
    world = PrefixStore(f"hpckit/{info.restart_count}", store)
    check_all_ranks_present(world, info, build_rank_identity(info, device), timeout)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        choose_backends(device), store=PrefixStore("group", world), rank=info.rank, world_size=info.world_size
    )
    hold_default_group()


_held: list[dist.ProcessGroup] = []


def hold_default_group() -> None:
    """Keep the default process group until the rank leaves it, even if user code destroys it."""
    if dist.is_initialized() and dist.group.WORLD is not None:
        _held.append(dist.group.WORLD)


def leave_process_group(registered: dict[str, Any]) -> None:
    """Leave the process group, unless the user's code has already done so, and forget the objects.

    A DDP model keeps its group alive after the group's destruction, by a reference cycle. What
    gloo's thread then drops while Python ends aborts the process (torch 2.13: 1 exit in 10). Hence
    the garbage collection. A model that is the last to have the group waits for gloo's thread and
    holds Python's lock meanwhile. If that thread needs the lock to drop a tensor, both wait
    forever. A group that Python drops last is destroyed without the lock, hence the list.
    """
    models = [model for model in registered.values() if isinstance(model, DistributedDataParallel)]
    _held.extend(model.process_group for model in models)
    del models
    registered.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    _held.clear()
