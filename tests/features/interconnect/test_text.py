"""What `bench comm` says to people and to programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hpckit.features.interconnect.judge import describe_measured_hardware, judge_interconnect
from hpckit.features.interconnect.model import (
    CommOperation,
    InterconnectMeasurement,
    NodeGroupTime,
    OperationTimes,
    SearchMode,
    SizedTime,
    SlowParts,
    SlowSearch,
)
from hpckit.features.interconnect.text import (
    build_bandwidth_latency_figure,
    interconnect_to_json,
    render_interconnect_page,
)
from hpckit.model.environment.facts import FabricPort, NodeLinks
from hpckit.report.text import TextTable

PORT = (FabricPort(name="mlx5_0/1", gbit_per_s=100.0),)
TIMES = tuple(
    SizedTime(size=2**n, seconds=2e-5 + 2**n / 5e9, fastest_s=1e-5, slowest_rank=1, repeats=9)
    for n in range(10, 24)
)
MEASURED = InterconnectMeasurement(
    at=datetime(2026, 1, 1, tzinfo=UTC),
    backend="nccl",
    device="cuda",
    ranks=4,
    hosts=("n1", "n2", "n3", "n4"),
    ranks_per_node=1,
    torch="2.13.0",
    nccl="2.27.3",
    network="IB",
    operations=(
        OperationTimes(operation=CommOperation.broadcast, times=TIMES, ended="the time limit was reached"),
        OperationTimes(operation=CommOperation.host_to_device, missing="ranks use no GPU"),
    ),
    links=tuple(NodeLinks(host=f"n{number}", ports=PORT) for number in range(1, 5)),
    search=SlowSearch(
        mode=SearchMode.pairs,
        size=2**20,
        rounds=3,
        groups=(NodeGroupTime(nodes=(0, 1), seconds=1.0),),
        found=SlowParts(nodes=(1,), factor=30.0, usual_s=0.1),
    ),
    seconds=12.0,
)
VERDICT = judge_interconnect(MEASURED, describe_measured_hardware(MEASURED, "lab"), ())


def test_page_has_figures_promises_and_what_to_do() -> None:
    """A head, a row for each operation that was measured, and the finding with its remedy."""
    page = render_interconnect_page(MEASURED, VERDICT)
    (table,) = (one for one in page if isinstance(one, TextTable))
    assert table.rows[0][:4] == ("broadcast", "1.0 KiB to 8.0 MiB", "20.0 +- 0.0 us", "4.94 GB/s")
    assert table.rows[0][4] == "40 % of 12.5 GB/s"
    text = "\n".join(one for one in page if isinstance(one, str))
    assert text.startswith("4 ranks on 4 nodes (n1, n2, n3, n4), NCCL 2.27.3 over IB")
    assert "between nodes: 1 fabric port, 100 Gbit/s / 8" in text
    assert "host_to_device was not measured: ranks use no GPU" in text
    assert "larger sizes were not measured: the time limit was reached" in text
    assert "n2 slow" in text
    assert "error: n2 is slow with every other node: an exchange takes 30.0 times" in text
    assert "resources.exclude=n2" in text


def test_document_is_json_and_says_whether_all_is_well() -> None:
    """Slow nodes by name; nothing in it that JSON lacks."""
    document = interconnect_to_json(MEASURED, describe_measured_hardware(MEASURED, "lab"), VERDICT)
    said = json.loads(json.dumps(document, allow_nan=False))
    assert said["slow_nodes"] == ["n2"]
    assert said["healthy"] is False
    assert said["operations"][0]["fit"]["sizes"] == 14
    assert said["operations"][1]["fit"] is None


def test_figure_has_bandwidth_and_time_over_size() -> None:
    """A line for each operation that was measured."""
    figure = build_bandwidth_latency_figure(MEASURED)
    assert figure.x_label == "size (bytes)"
    assert [panel.metric for panel in figure.panels] == ["bus bandwidth (GB/s)", "time (us)"]
    assert [line.name for line in figure.panels[0].lines] == ["broadcast"]
