"""What the ranks of `hpckit bench comm` do: measure, check, search, and write one file.

Rank 0 writes the file into the run's folder; it decides nothing about what the figures mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from hpckit.features.interconnect.judge import is_below_nominal_bandwidth
from hpckit.features.interconnect.model import (
    LARGEST,
    LARGEST_ON_CPU,
    CommBenchRequest,
    CommOperation,
    InterconnectMeasurement,
    NodeGroupTime,
    OperationTimes,
    SearchMode,
    SizedTime,
    SlowParts,
    SlowSearch,
    list_doubling_sizes,
)
from hpckit.features.interconnect.operations import (
    ELEMENT,
    PreparedOperation,
    RankWorld,
    exchange_tensors,
    prepare_operation,
)
from hpckit.features.interconnect.search import (
    estimate_slowness_threshold,
    find_slow_nodes_and_links,
    start_slow_node_search,
)
from hpckit.model.environment.facts import NodeLinks
from hpckit.model.plain import from_plain, to_plain
from hpckit.observe.machine import read_granted_memory, read_node_and_gpu_links
from hpckit.planning.preflight.peers import Group, Round
from hpckit.record.layout import RunPaths
from hpckit.record.process import this_host
from hpckit.record.store import write_json
from hpckit.runtime.clock import now
from hpckit.runtime.environ import copy_environment
from hpckit.runtime.preflight.device_speed import measure_seconds, wait_for_device
from hpckit.runtime.rank.run import Run
from hpckit.values import dataclass, field, replace

_REPEATS = 7
_PAIR = 2
_EARLY = "the search stopped early: its time limit was reached"


_BUFFERS = 8
"""An operation of a size needs about five times its bytes; the rest is for everything else."""
_FEWEST_SEARCHED = 3
_SEARCH_SIZES = {"cpu": 2**20, "cuda": 2**25}
"""Messages of a search: large enough that bandwidth counts, and not latency."""
_LEAST_SEARCHED = 2**18
_SEARCH_SHARE = 0.5


def measure(config: Any, run: Run) -> None:
    """Measure as `config.comm_bench` asks (a plain CommBenchRequest); rank 0 writes the result."""
    request = from_plain(CommBenchRequest, dict(config.comm_bench))
    world = RankWorld(
        rank=run.rank, size=run.world_size, ranks_per_node=run.info.local_world_size, device=run.device
    )
    began = time.monotonic()
    sizes = list_doubling_sizes(request.smallest, choose_largest_message_size(request, world))
    operations = measure_operations(request.operations, sizes, request.time_s, world)
    first = world.rank % world.ranks_per_node == 0
    own = to_plain(read_node_and_gpu_links(this_host(), copy_environment())) if first else None
    links = [from_plain(NodeLinks, plain) for plain in gather_from_all_ranks(own, world) if plain is not None]
    cuda = world.device.type == "cuda"
    measured = InterconnectMeasurement(
        at=now(),
        backend="nccl" if cuda else str(dist.get_backend()),
        device=world.device.type,
        ranks=world.size,
        hosts=tuple(link.host for link in links),
        ranks_per_node=world.ranks_per_node,
        torch=str(torch.__version__),
        nccl=".".join(map(str, torch.cuda.nccl.version())) if cuda else None,  # type: ignore[no-untyped-call]  # untyped in torch
        operations=operations,
        links=tuple(links),
    )
    search = _search_slow_nodes(request, measured, world)
    if world.rank == 0:
        done = replace(measured, search=search, seconds=time.monotonic() - began)
        write_json(RunPaths(run.folder).interconnect, to_plain(done))


def choose_largest_message_size(request: CommBenchRequest, world: RankWorld) -> int:
    """Return the largest size in bytes that was asked for and that memory holds on every rank."""
    if world.device.type == "cuda":
        free, usual = int(torch.cuda.mem_get_info(world.device)[0]), LARGEST
    else:
        free, usual = (read_granted_memory() or 2**30) // world.ranks_per_node, LARGEST_ON_CPU
    fitting = min(map(int, gather_from_all_ranks(free // _BUFFERS, world)))
    return max(request.smallest, min(request.largest or usual, fitting))


def _search_slow_nodes(
    request: CommBenchRequest, measured: InterconnectMeasurement, world: RankWorld
) -> SlowSearch:
    """Search for slow nodes if that was asked for, or if the figures are a reason to."""
    why = broadcast_from_rank_0(explain_skipped_slow_search(request.search, measured), world)
    if why:
        return SlowSearch(mode=request.search, why_not=why)
    time_s = request.time_s * _SEARCH_SHARE
    size = choose_slow_search_message_size(measured, time_s)
    search = start_slow_node_search(measured.node_count, request.search) if world.rank == 0 else None
    began, rounds, seen, found = time.monotonic(), 0, list[NodeGroupTime](), SlowParts()
    groups: Round | None = next(search) if search is not None else ()
    while True:
        if search is not None and groups and time.monotonic() - began > time_s:
            pairs = {group.nodes: group.seconds for group in seen if len(group.nodes) == _PAIR}
            groups, why, found = (
                None,
                _EARLY,
                find_slow_nodes_and_links(pairs, estimate_slowness_threshold(seen)),
            )
        agreed: Round | None = broadcast_from_rank_0(groups, world)
        if agreed is None:
            break
        times = _measure_group_times(agreed, size, world)
        rounds += 1
        seen += times
        if search is not None:
            try:
                groups = search.send(times)
            except StopIteration as end:
                groups, found = None, end.value
    return SlowSearch(
        mode=request.search, size=size, rounds=rounds, groups=tuple(seen), found=found, why_not=why
    )


def explain_skipped_slow_search(mode: SearchMode, measured: InterconnectMeasurement) -> str:
    """Return why no slow node is searched for; empty if it is."""
    if measured.node_count < _FEWEST_SEARCHED:
        return "fewer than three nodes cannot be compared"
    if mode is SearchMode.never:
        return "it was not asked for"
    if mode is SearchMode.auto and is_below_nominal_bandwidth(measured) is False:
        return "all that was measured is near what the links promise"
    return ""


def choose_slow_search_message_size(measured: InterconnectMeasurement, time_s: float) -> int:
    """Return the bytes of a search's messages: the usual ones, or fewer if time is short."""
    times: Mapping[int, float] = {
        time_.size: time_.seconds for time_ in measured.find_times(CommOperation.point_to_point)
    }
    usual = _SEARCH_SIZES[measured.device]
    # Eight exchanges in each of n-1 rounds, and half as many again for what is slow.
    fitting = [
        size
        for size, seconds in times.items()
        if size <= usual and seconds * 12 * measured.node_count <= time_s
    ]
    return max(_LEAST_SEARCHED, max(fitting, default=0)) if times else usual


def _measure_group_times(groups: Sequence[Group], size: int, world: RankWorld) -> list[NodeGroupTime]:
    """Return the median repeat of each group; its slowest rank counts. The other nodes wait.

    The best one would hide a link that is fast for a moment, until a buffer or a quota is full.

    In a group every node exchanges a message with every other one at once: each local rank with the
    same local rank there, so that all networks of a node carry their part.
    """
    own, place = divmod(world.rank, world.ranks_per_node)
    mine = next((group for group in groups if own in group), ())
    peers = [node * world.ranks_per_node + place for node in mine if node != own]
    sent = torch.ones(max(1, size // ELEMENT), device=world.device)
    sends = [(sent, peer) for peer in peers]
    receives = [(torch.empty_like(sent), peer) for peer in peers]

    def act() -> None:
        exchange_tensors(sends, receives)

    time_synchronized_action(act, world)
    seconds = gather_from_all_ranks([time_synchronized_action(act, world) for _ in range(_REPEATS)], world)
    times = []
    for group in groups:
        members = [spans for rank, spans in enumerate(seconds) if rank // world.ranks_per_node in group]
        repeats = [max(each) for each in zip(*members, strict=True)]
        middle = median(repeats)
        times.append(NodeGroupTime(nodes=group, seconds=middle, spread=middle / min(repeats) - 1))
    return times


FEWEST_REPEATS, MOST_REPEATS = 5, 30
_SLOT_S = 0.25
"""Repeats of one size take about this long, within these bounds."""
_TIME, _MEMORY = "the time limit was reached", "there was not enough memory"
_SHOWN = 200


@dataclass(slots=True, kw_only=True)
class OperationSweep:
    """What this rank has seen of an operation; `cost_s` is what its last size took in all."""

    operation: CommOperation
    medians: list[tuple[int, float, int]] = field(default_factory=list)
    missing: str = ""
    ended: str = ""
    wrong: bool = False
    cost_s: float = 0.0


def measure_operations(
    operations: Iterable[CommOperation], sizes: Iterable[int], time_s: float, world: RankWorld
) -> tuple[OperationTimes, ...]:
    """Return the times of all ranks together; each of them must call it.

    Sizes are the outer loop, so that a bound that is too short leaves all operations alike. Rank
    0's clock decides alone what is measured next. What all must know alike goes through the process
    group that is measured: there is no other one.
    """
    began = time.monotonic()
    sweeps = [
        OperationSweep(operation=operation, missing=explain_unmeasurable(operation, world))
        for operation in operations
    ]
    for size in sizes:
        for sweep in sweeps:
            if sweep.missing or sweep.ended:
                continue
            left = time_s - (time.monotonic() - began)
            if not broadcast_from_rank_0(2 * sweep.cost_s <= left, world):
                sweep.ended = _TIME
                continue
            started = time.monotonic()
            check_and_time_message_size(sweep, size, world)
            sweep.cost_s = time.monotonic() - started
    return tuple(_gather_operation_times(sweep, world) for sweep in sweeps)


def explain_unmeasurable(operation: CommOperation, world: RankWorld) -> str:
    """Return why an operation cannot be measured at all; empty if it may be."""
    if operation.copies_between_host_and_gpu:
        return "" if world.device.type == "cuda" else "ranks use no GPU"
    return "" if world.size > 1 else "one rank alone joins no others"


def check_and_time_message_size(sweep: OperationSweep, size: int, world: RankWorld) -> None:
    """Check and time one size; the first one that fails shows that the backend has it not."""
    prepared, trouble = _try_prepare_operation(sweep.operation, size, world), ""
    if is_true_on_any_rank(here=prepared is None, world=world) or prepared is None:
        sweep.ended = _MEMORY
        return
    result, act, wanted = prepared
    wait_for_device(world.device)
    try:
        act()
        wait_for_device(world.device)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        trouble = str(error).partition("\n")[0][:_SHOWN] or type(error).__name__
    if is_true_on_any_rank(here=bool(trouble), world=world):
        if sweep.medians:
            raise RuntimeError(f"{sweep.operation} of {size} bytes failed: {trouble}")
        sweep.missing = f"the backend does not support it: {trouble}"
        return
    sweep.wrong |= not torch.equal(result, wanted())
    estimate = time_synchronized_action(act, world)
    repeats = int(broadcast_from_rank_0(count_repeats(_SLOT_S, estimate), world))
    seconds = median(time_synchronized_action(act, world) for _ in range(repeats))
    sweep.medians.append((size, seconds, repeats))


def _try_prepare_operation(operation: CommOperation, size: int, world: RankWorld) -> PreparedOperation | None:
    """Return an operation with its buffers; None if memory does not suffice."""
    try:
        return prepare_operation(operation, size, world)
    except RuntimeError:  # torch's OutOfMemoryError is one, and the host's allocator raises it
        return None


def count_repeats(slot_s: float, estimate_s: float) -> int:
    """Return how many repeats a slot of time has, at least 5 and at most 30."""
    return max(FEWEST_REPEATS, min(MOST_REPEATS, int(slot_s / max(estimate_s, 1e-9))))


def time_synchronized_action(act: Callable[[], object], world: RankWorld) -> float:
    """Return the seconds of an action that all ranks begin together."""
    if world.size > 1:
        dist.barrier()
    return measure_seconds(act, world.device)


def _gather_operation_times(sweep: OperationSweep, world: RankWorld) -> OperationTimes:
    seen = gather_from_all_ranks({"medians": sweep.medians, "wrong": sweep.wrong}, world)
    times = []
    for place, (size, _, repeats) in enumerate(sweep.medians):
        seconds = [rank["medians"][place][1] for rank in seen]
        times.append(
            SizedTime(
                size=size,
                seconds=max(seconds),
                fastest_s=min(seconds),
                slowest_rank=seconds.index(max(seconds)),
                repeats=repeats,
            )
        )
    return OperationTimes(
        operation=sweep.operation,
        times=tuple(times),
        missing=sweep.missing,
        wrong_ranks=tuple(rank for rank, one in enumerate(seen) if one["wrong"]),
        ended=sweep.ended,
    )


def broadcast_from_rank_0(value: Any, world: RankWorld) -> Any:
    """Return rank 0's value on every rank; each of them must call it."""
    told = [value]
    if world.size > 1:
        dist.broadcast_object_list(told, 0)
    return told[0]


def gather_from_all_ranks(value: Any, world: RankWorld) -> list[Any]:
    """Return every rank's value, by rank; each of them must call it."""
    everyone = [value] * world.size
    if world.size > 1:
        dist.all_gather_object(everyone, value)
    return everyone


def is_true_on_any_rank(*, here: bool, world: RankWorld) -> bool:
    """Return whether it is true on any rank; each of them must call it."""
    return any(gather_from_all_ranks(here, world))
