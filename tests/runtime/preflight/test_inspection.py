"""Promises about the inspection of a node: what it tells; that nothing holds its agent up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tiers import thorough

from hpckit.model import messages
from hpckit.model.environment.facts import GpuFacts
from hpckit.model.environment.health import NodeHealth, XidSeen
from hpckit.model.settings import PreflightLevel
from hpckit.model.telemetry.vocabulary import GpuTrouble
from hpckit.runtime.agent import inspection
from hpckit.runtime.preflight.probe import ProbeOrder
from hpckit.testing.nvml.fake_nvml import FakeNvml

ORDER = messages.Inspect(inspection=3, level=PreflightLevel.fast, limit_s=30.0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    """Return a fake library, built once."""
    fake = FakeNvml(tmp_path_factory.mktemp("nvml"))
    fake.build()
    return fake


@pytest.fixture
def fake(library: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """Return a node with two H100, which child processes see."""
    library.profile("h100", gpus=2)
    for name, value in library.environ.items():
        monkeypatch.setenv(name, value)
    yield library
    library.profile("h100", gpus=2)


def answer(probe: ProbeOrder, *xids: XidSeen, limit_s: float = 30.0) -> messages.Inspected:
    """Return what an agent answers, after a trip through the channel."""
    order = replace(ORDER, limit_s=limit_s)
    said = asyncio.run(inspection.inspect_node(order, replace(probe, limit_s=limit_s), xids))
    decoded = messages.decode_message(messages.encode_message(said))
    assert isinstance(decoded, messages.Inspected)
    return decoded


def health(told: messages.Inspected) -> NodeHealth:
    """Return the health of an answer that has one."""
    assert told.health is not None, told.problem
    return told.health


@pytest.fixture
def probe(tmp_path: Path) -> ProbeOrder:
    """Return what a process is to look at: no torch, which takes a second to import."""
    return ProbeOrder(level=PreflightLevel.fast, limit_s=30, folder=str(tmp_path))


def gpus(told: messages.Inspected) -> tuple[GpuFacts, ...]:
    """Return the GPUs of an answer."""
    found = health(told).gpus
    assert found is not None
    return found


def test_faults_of_gpus_reach_the_supervisor(fake: FakeNvml, probe: ProbeOrder) -> None:
    """Errors, links, lanes and troubles are those of the driver, each of its GPU."""
    fake.change({"g0.field.4": 2, "g1.nvlinks_down": 3, "g1.pcie_width_now": 4, "g0.field.145": 1})
    told = answer(probe, XidSeen(uuid=fake.uuid(0), code=79))
    first, second = gpus(told)
    assert (first.uuid, second.uuid) == (fake.uuid(0), fake.uuid(1))
    assert (first.ecc_uncorrected, first.troubles) == (2, (GpuTrouble.remap_failed,))
    assert (second.nvlinks, second.pcie_width, second.pcie_width_max) == (15, 4, 16)
    assert told.xids == (XidSeen(uuid=fake.uuid(0), code=79),)
    assert told.inspection == 3


def test_lost_gpu_is_told_with_the_others(fake: FakeNvml, probe: ProbeOrder) -> None:
    """One that fell off its bus does not hide the rest."""
    fake.lose(0)
    lost, other = gpus(answer(probe))
    assert (lost.index, lost.troubles) == (0, (GpuTrouble.lost,))
    assert (other.index, other.troubles) == (1, ())


def test_foreign_process_is_seen_after_some_looks(fake: FakeNvml, probe: ProbeOrder) -> None:
    """What stays on a GPU for seconds is not the end of an earlier job."""
    fake.change({"g0.process": 4711, "g0.memory_used_bytes": 6e9})
    told = answer(probe)
    assert gpus(told)[0].processes == (4711,)
    assert told.took_s > 3


def test_driver_that_hangs_costs_the_answer_and_not_the_agent(fake: FakeNvml, probe: ProbeOrder) -> None:
    """The process is ended when its time is over; the answer says so."""
    fake.change({"hang.nvmlDeviceGetCount_v2": 60})
    told = answer(probe, limit_s=2.0)
    assert told.health is None
    assert "no answer within 2 s" in told.problem


def test_folder_that_cannot_be_written_is_told_of(probe: ProbeOrder) -> None:
    """The reason is the system's."""
    told = health(answer(replace(probe, folder="/proc")))
    assert told.write_s is None
    assert told.write_problem


def test_unknown_names_are_told_of(probe: ProbeOrder) -> None:
    """Those that have no address."""
    told = health(answer(replace(probe, names=("a.invalid", "localhost"))))
    assert told.unresolved == ("a.invalid",)


@thorough
@pytest.mark.training
def test_medium_computes_on_the_cpu_where_there_is_no_gpu(probe: ProbeOrder) -> None:
    """Rates above zero, and a checksum that repeats: products of whole numbers are exact."""
    medium = replace(probe, level=PreflightLevel.medium, needs_torch=True)
    first, second = (health(answer(medium)).speeds[0] for _ in range(2))
    assert (first.device, first.problem) == ("cpu", "")
    assert (first.matmul_flops or 0) > 0
    assert (first.copy_bytes_s or 0) > 0
    assert first.repeats is True
    assert first.checksum == second.checksum


@pytest.mark.training
@pytest.mark.parametrize("away", [(), pytest.param(((3, "away", True),), marks=thorough)])
def test_nodes_add_with_their_neighbours_and_one_that_is_away_costs_only_its_pairs(
    away: tuple[tuple[int, str, bool], ...],
) -> None:
    """Three nodes and one that never comes, as agents start them: real processes, real gloo."""
    pairs: dict[int, tuple[tuple[int, str, bool], ...]] = {
        0: ((0, "n1", True), (2, "n2", False)),
        1: ((0, "n0", False), (1, "n2", True)),
        2: ((1, "n1", False), (2, "n0", True), *away),
    }
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        orders = [
            messages.MeasurePairs(
                inspection=4,
                limit_s=60.0 if own != 2 else 90.0,
                devices=("cpu",),
                pairs=pairs[own],
                host="127.0.0.1",
                port=reserved.getsockname()[1],
                serves=own == 0,
                everyone=3,
            )
            for own in pairs
        ]

        async def all_at_once() -> list[messages.PairsMeasured]:
            return list(await asyncio.gather(*map(inspection.measure_rates_with_paired_nodes, orders)))

        told = asyncio.run(all_at_once())
    for one in told:
        assert messages.decode_message(messages.encode_message(one)) == one
    rates = {(own, each.partner): each for own, one in enumerate(told) for each in one.pairs}
    for own, other in ((0, 1), (1, 2), (2, 0)):
        assert rates[own, f"n{other}"].problem == ""
        assert (rates[own, f"n{other}"].bytes_s or 0) > 0
    assert all(rates[2, "away"].bytes_s is None and rates[2, "away"].problem for _ in away)
